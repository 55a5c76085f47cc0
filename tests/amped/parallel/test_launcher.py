"""A launcher that outlives a failed run is ended, no other one."""

from __future__ import annotations

import shutil
import subprocess
import sys
from pathlib import Path

import pytest
from command import ROOT, TIMEOUT, environment

from amped.parallel import launcher, watchdog

PROMISED = 30.0  # seconds from the loss of a host to the end of mpirun

# Runs in a shell in the place of the launcher, which then waits in vain.
RANK = """
from amped.parallel import launcher
launcher.PATIENCE_SECONDS = 0.1
launcher.end_soon()
"""


def start(folder: Path, name: str, waits: str) -> subprocess.Popen[bytes]:
    """Start a shell by this name, which starts a rank that fails, and then waits."""
    shell = shutil.copy(str(shutil.which("bash")), folder / name)
    line = [str(shell), "-c", f'"{sys.executable}" -c "$0"; {waits}', RANK]
    return subprocess.Popen(line, env=environment(), cwd=ROOT, start_new_session=True)


@pytest.mark.parametrize("name", ["prterun", "prted"])
@pytest.mark.parametrize("trap", ["", "trap '' TERM;"])
def test_one_that_waits_is_ended(tmp_path: Path, name: str, trap: str) -> None:
    """By SIGKILL if it does not heed SIGTERM; with its children, ssh for instance."""
    launched = start(tmp_path, name, f"{trap} while true; do sleep 0.1; done")
    assert launched.wait(TIMEOUT) < 0


def test_another_launcher_is_left_alone(tmp_path: Path) -> None:
    assert start(tmp_path, "slurmstepd", "sleep 3; exit 5").wait(TIMEOUT) == 5


def test_the_usual_times_add_up_to_what_is_promised() -> None:
    """Until a lost host is noticed, the ranks have ended, and mpirun has."""
    noticed = watchdog.SILENCE_SECONDS + 2 * watchdog.BEAT_SECONDS
    ranks = max(watchdog.ABORT_SECONDS, watchdog.LAST_WORDS_SECONDS)
    assert noticed + ranks + launcher.PATIENCE_SECONDS + launcher.ENDING_SECONDS <= PROMISED
