"""What a signal can end, and leaves nothing: calls of libraries that take long, and temporary folders."""

from __future__ import annotations

import fcntl
import os
import shutil
import tempfile
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path
from threading import Event, Thread, enumerate, main_thread
from typing import TypeVar

T = TypeVar("T")

BETWEEN = 0.05  # seconds from one interruption to the next: the first may come before the call has begun
PATIENCE = 0.5  # seconds for a call to end when it is interrupted
LEFT = "amped-left"  # the name of threads whose calls have not
LOCK = "lock"


class Caller:
    """Makes calls in another thread, one after the other, while this one can handle signals.

    Attributes
    ----------
    left : bool
        Whether a call was interrupted and has not ended, as it waits for a file, say.
    """

    def __init__(self, interrupt: Callable[[], object]) -> None:
        self._interrupt = interrupt
        self._thread = Thread()

    @property
    def left(self) -> bool:
        return self._thread.is_alive()

    def call(self, work: Callable[[], T]) -> T:
        """Return what `work` returns; if a signal raises an error meanwhile, interrupt it."""
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
        for _ in range(round(PATIENCE / BETWEEN)):
            self._interrupt()
            if ended.wait(BETWEEN):
                return
        self._thread.name = LEFT


def must_exit() -> bool:
    """Return whether threads are left that would keep the process from ending, or crash as it ends."""
    return any(thread.name == LEFT or not (thread.daemon or thread is main_thread()) for thread in enumerate())


class Scratch:
    """A temporary folder that is removed by `close`, or with this object; the next one removes those of killed runs.

    A folder's lock is held by the process that made it, and let go however that ends.
    """

    def __init__(self, prefix: str, folder: str | os.PathLike[str] | None = None) -> None:
        self._folder = tempfile.TemporaryDirectory(prefix=prefix, dir=folder, ignore_cleanup_errors=True)
        self.name = self._folder.name
        self._lock = os.open(os.path.join(self.name, LOCK), os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
        with suppress(OSError):  # a file system without locks
            fcntl.flock(self._lock, fcntl.LOCK_EX)
        for other in Path(self.name).parent.glob(f"{prefix}*"):
            if other.name != os.path.basename(self.name):
                _remove_if_left(other)

    def close(self) -> None:
        """Remove the folder."""
        self._folder.cleanup()
        if self._lock >= 0:
            os.close(self._lock)
        self._lock = -1


def _remove_if_left(folder: Path) -> None:
    """Remove a folder of this user if the process that made it has ended."""
    with suppress(OSError):  # another user's, a link, or removed just now
        if folder.is_symlink() or folder.stat().st_uid != os.geteuid():
            return
        lock = os.open(folder / LOCK, os.O_RDWR | os.O_NOFOLLOW | os.O_CLOEXEC)
        try:
            fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
            shutil.rmtree(folder, ignore_errors=True)
        finally:
            os.close(lock)
