"""Locks on the names of output files, so that no other run writes the same files at the same time.

A lock is a locked file beside the target, ``.NAME.claim``, which names its process. The system unlocks it when the
process ends, and the next run takes over the file of a killed run. On a file system without locks an existing file
counts as locked, and the message says which file to remove.
"""

from __future__ import annotations

import fcntl
import json
import os
from contextlib import suppress
from pathlib import Path
from stat import S_ISREG
from typing import Any

from ..errors import InputError

MARK = ".{}.claim"
FLAGS = os.O_RDWR | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC


class BusyError(InputError):
    """The name is in use by another run, or another run has just removed its folder."""


class Claim:
    """A lock on a name, from `take` to `release`.

    Attributes
    ----------
    mark : Path
        The lock file.
    previous : dict
        What the lock file of a killed process said, without its process and host.
    """

    def __init__(self, target: Path) -> None:
        self.mark = target.with_name(MARK.format(target.name))
        self.previous: dict[str, Any] = {}
        self._target, self._file, self._is_held = target, -1, False

    def take(self, **facts: str) -> Claim:
        """Lock the name and write `facts` to the lock file; raise `InputError` if another process has the lock."""
        try:
            self._lock()
            self.previous = _content(self._file)
            text = json.dumps({"process": os.getpid(), "host": os.uname().nodename, **facts})
            os.ftruncate(self._file, 0)
            os.pwrite(self._file, text.encode(), 0)  # fails now if the disk is full
        except OSError as error:
            self.release()
            exists = os.path.lexists(self.mark)
            remedy = f"; if nobody writes there, remove {self.mark}" if exists else ""
            raise InputError(f"cannot write there: {error.strerror}{remedy}", path=self._target) from None
        except BaseException:
            self.release()
            raise
        return self

    def release(self) -> None:
        """Unlock the name, if this process has locked it."""
        if self._is_held:
            with suppress(OSError):  # its folder may have been removed
                self.mark.unlink(missing_ok=True)
        if self._file >= 0:
            os.close(self._file)
        self._file, self._is_held = -1, False

    def _lock(self) -> None:
        """Create or open the lock file, and lock it."""
        while not self._is_held:
            self._file, is_new = self._opened()
            now = os.fstat(self._file)
            if not S_ISREG(now.st_mode) or now.st_nlink > 1 or now.st_uid != os.geteuid():
                cause = f"another user writes there; if nobody does, remove {self.mark}"
                raise InputError(cause, path=self._target)
            lock(self._file, self._target, self.mark, is_new)
            with suppress(FileNotFoundError):  # its owner has just removed it
                self._is_held = os.path.samestat(now, os.stat(self.mark, follow_symlinks=False))
            if not self._is_held:
                self.release()

    def _opened(self) -> tuple[int, bool]:
        """Open the lock file, never through a link; return it and whether it is new."""
        try:
            return os.open(self.mark, FLAGS | os.O_CREAT | os.O_EXCL, 0o600), True
        except FileExistsError:
            with suppress(FileNotFoundError):  # its owner has just removed it
                return os.open(self.mark, FLAGS), False
            return self._opened()
        except FileNotFoundError:
            if not self.mark.parent.is_dir():  # its owner created the folder and has removed it
                raise BusyError("its folder has just been removed", path=self._target) from None
            raise  # no file can be created there, as in /proc


def lock(file: int, target: Path, mark: Path, is_new: bool = True) -> None:
    """Lock the open file `mark`; raise `BusyError` if another process has locked it and so writes `target`."""
    try:
        fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        raise _taken(file, target, mark) from None
    except OSError:  # the file system has no locks
        if not is_new:
            raise _taken(file, target, mark) from None


def _taken(file: int, target: Path, mark: Path) -> BusyError:
    owner = _content(file, whole=True) if mark != target else {}
    process = f", process {owner.get('process')} on {owner.get('host')}," if owner else ""
    remedy = f"; if it has ended, remove {mark}" if mark != target else ""
    return BusyError(f"another run{process} writes there{remedy}", path=target)


def _content(file: int, whole: bool = False) -> dict[str, Any]:
    """Return the content of a lock file, empty if it is new. Without `whole` omit the process and the host."""
    facts: object = None
    with suppress(OSError, ValueError, RecursionError):
        facts = json.loads(os.pread(file, 1 << 16, 0))
    if not isinstance(facts, dict):
        return {}
    return facts if whole else {name: fact for name, fact in facts.items() if name not in ("process", "host")}
