"""Slow library calls that a signal can interrupt, and temporary folders that disappear with their process."""

from __future__ import annotations

import fcntl
import os
import shutil
import tempfile
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path
from threading import Event, Thread, enumerate, main_thread
from time import sleep
from typing import TypeVar

T = TypeVar("T")

INTERVAL = 0.05  # seconds between interruptions; the first may precede the call
GRACE = 0.5  # seconds for an interrupted call to end
STUCK = "amped-stuck"  # name of threads whose calls did not end
LOCK = "lock"
ATTEMPTS = 5  # to remove a folder again


class Caller:
    """Runs calls in another thread, one at a time, so that this thread can handle signals.

    Parameters
    ----------
    interrupt : callable
        Interrupts the current call.

    Attributes
    ----------
    stuck : bool
        Whether an interrupted call has not ended, for example because it waits for a file.
    """

    def __init__(self, interrupt: Callable[[], object]) -> None:
        self._interrupt = interrupt
        self._thread = Thread()

    @property
    def stuck(self) -> bool:
        return self._thread.is_alive()

    def call(self, work: Callable[[], T]) -> T:
        """Return the result of `work`. If a signal handler raises an error meanwhile, interrupt the call."""
        results, faults, ended = list[T](), list[BaseException](), Event()

        def run() -> None:
            try:
                results.append(work())
            except BaseException as error:
                faults.append(error)
            ended.set()

        self._thread = Thread(target=run, daemon=True)
        try:
            self._thread.start()
            ended.wait()
        except BaseException:
            self._end(ended)
            raise
        self._thread.join()
        if faults:
            raise faults[0]
        return results[0]

    def _end(self, ended: Event) -> None:
        for _ in range(round(GRACE / INTERVAL)):
            self._interrupt()
            if ended.wait(INTERVAL):
                return
        self._thread.name = STUCK


def must_exit() -> bool:
    """Return whether stuck threads would keep the process from ending, or crash it at exit."""
    return any(thread.name == STUCK or not (thread.daemon or thread is main_thread()) for thread in enumerate())


class Scratch:
    """A temporary folder, removed by `close` or with this object. A new one removes those of killed runs.

    The process that created a folder holds a lock on a file in it, which the system releases when the process ends.
    """

    def __init__(self, prefix: str, folder: str | os.PathLike[str] | None = None) -> None:
        self._folder = tempfile.TemporaryDirectory(prefix=prefix, dir=folder, ignore_cleanup_errors=True)
        self.name, self._lock = self._folder.name, -1
        try:
            self._lock = os.open(os.path.join(self.name, LOCK), os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
            with suppress(OSError):  # a file system without locks
                fcntl.flock(self._lock, fcntl.LOCK_EX)
            for other in Path(self.name).parent.glob(f"{prefix}*"):
                if other.name != os.path.basename(self.name):
                    _remove_if_stale(other)
        except BaseException:  # a signal, for example
            self.close()
            raise

    def close(self) -> None:
        """Remove the folder, even if a stuck call writes to it meanwhile."""
        self._folder.cleanup()
        for _ in range(ATTEMPTS):
            if not os.path.isdir(self.name):
                break
            sleep(INTERVAL)
            shutil.rmtree(self.name, ignore_errors=True)
        if self._lock >= 0:
            os.close(self._lock)
        self._lock = -1


def _remove_if_stale(folder: Path) -> None:
    """Remove a folder of this user if the process that created it has ended."""
    with suppress(OSError):  # not accessible, or just removed
        if folder.is_symlink() or folder.stat().st_uid != os.geteuid():
            return
        lock = os.open(folder / LOCK, os.O_RDWR | os.O_NOFOLLOW | os.O_CLOEXEC)
        try:
            fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
            shutil.rmtree(folder, ignore_errors=True)
        finally:
            os.close(lock)
