"""Ending Open MPI's launcher on this host, if it outlives a run that failed.

``mpirun`` and its daemons on other hosts wait for each other without a limit. If a host is lost or cannot be reached,
nothing else would end the daemons on the other hosts. Slurm's ``srun`` has a limit (``--wait``).
"""

from __future__ import annotations

from contextlib import suppress

LAUNCHERS = "prterun", "prted"  # process names of Open MPI 5's mpirun and of its daemon on other hosts

PATIENCE_SECONDS = 4.0  # for the launcher to end by itself, as it does if all hosts can be reached
ENDING_SECONDS = 2.0  # longest duration of the script below

# Runs after this process has ended. The working directory is /, because network folders may be unreachable. mpirun
# exits on the third SIGTERM within 5 seconds, but would leave its children, ssh to the other hosts.
END = r"""
is_launcher() { case $(cat "/proc/$1/comm") in prterun | prted) true ;; *) false ;; esac; }
sleep "$2"
children=$(cat "/proc/$1"/task/*/children)
for turn in 1 2 3; do
    is_launcher "$1" || exit 0
    kill -TERM "$1"
    sleep 0.5
done
kill -KILL $children
is_launcher "$1" && kill -KILL "$1"
"""


def end_soon() -> None:
    """Start a script that ends the Open MPI 5 launcher of this process, if still running after `PATIENCE_SECONDS`."""
    import subprocess  # only failed runs need these modules

    import psutil

    none = subprocess.DEVNULL
    with suppress(OSError, psutil.Error):  # this process must end in any case
        for each in psutil.Process().parents():  # a shell may be in between
            if each.name() in LAUNCHERS:
                line = ["/bin/sh", "-c", END, "amped-end", str(each.pid), str(PATIENCE_SECONDS)]
                subprocess.Popen(line, stdin=none, stdout=none, stderr=none, cwd="/", start_new_session=True)
                return
