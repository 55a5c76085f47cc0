"""Ends the launcher's process on this host, if it outlives a run that has failed.

Open MPI's ``mpirun`` waits for its daemons on other hosts to answer, and they for it, without a limit: where a host is
lost or cannot be reached, nothing else would end those on the other hosts. Slurm's ``srun`` has a limit (``--wait``).
"""

from __future__ import annotations

import subprocess
from contextlib import suppress

import psutil

LAUNCHERS = "prterun", "prted"  # what mpirun of Open MPI 5 is, and its daemon on other hosts

PATIENCE_SECONDS = 4.0  # for a launcher that ends by itself, as it does where all hosts can be reached
ENDING_SECONDS = 2.0  # until it is gone, at most

# Runs after this process has ended, from a disk that is surely there: folders of other hosts may not be. The third
# SIGTERM within 5 seconds makes mpirun leave; its children, ssh to the other hosts, would stay.
END = r"""
is_there() { case $(cat "/proc/$1/comm") in prterun | prted) true ;; *) false ;; esac; }
sleep "$2"
children=$(cat "/proc/$1"/task/*/children)
for turn in 1 2 3; do
    is_there "$1" || exit 0
    kill -TERM "$1"
    sleep 0.5
done
kill -KILL $children
is_there "$1" && kill -KILL "$1"
"""


def end_soon() -> None:
    """End the launcher that started this process, in `PATIENCE_SECONDS`, if it is one of Open MPI 5 and still there."""
    none = subprocess.DEVNULL
    with suppress(OSError, psutil.Error):  # this process is to end in any case
        for each in psutil.Process().parents():  # a shell may be between
            if each.name() in LAUNCHERS:
                line = ["/bin/sh", "-c", END, "amped-end", str(each.pid), str(PATIENCE_SECONDS)]
                subprocess.Popen(line, stdin=none, stdout=none, stderr=none, cwd="/", start_new_session=True)
                return
