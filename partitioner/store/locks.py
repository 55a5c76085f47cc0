"""Claims on names that will be written: held while a run goes on, so that no other run takes the same name meanwhile.

A claim is a locked file beside the name, ``.NAME.claim``, that says whose it is. The system unlocks it when its process
ends, however it does: the claim of a run that was killed is taken over by the next one. Where a file system has no
locks, a claim that is there holds, and the message says what to remove.
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
    """A name that another run has, or whose folder another run has just removed."""


class Claim:
    """A name that no other process may claim from `take` to `release`.

    `left` is what the claim of a process that was killed said, without its process and host.
    """

    def __init__(self, target: Path) -> None:
        self.mark = target.with_name(MARK.format(target.name))
        self.left: dict[str, Any] = {}
        self._target, self._file, self._ours = target, -1, False

    def take(self, **facts: str) -> Claim:
        """Claim the name, whose folder exists, and say `facts`; raise `InputError` if another process has it."""
        try:
            self._lock()
            self.left = _said(self._file)
            text = json.dumps({"process": os.getpid(), "host": os.uname().nodename, **facts})
            os.ftruncate(self._file, 0)
            os.pwrite(self._file, text.encode(), 0)  # a full disk says so now
        except OSError as error:
            self.release()
            there = os.path.lexists(self.mark)
            remedy = f"; if nobody writes there, remove {self.mark}" if there else ""
            raise InputError(f"cannot write there: {error.strerror}{remedy}", path=self._target) from None
        except BaseException:
            self.release()
            raise
        return self

    def release(self) -> None:
        """Let other processes have the name, if this one has it."""
        if self._ours:
            with suppress(OSError):  # its folder may be gone
                self.mark.unlink(missing_ok=True)
        if self._file >= 0:
            os.close(self._file)
        self._file, self._ours = -1, False

    def _lock(self) -> None:
        """Open and lock the file."""
        while not self._ours:
            with suppress(FileNotFoundError):  # the process that had it has just ended and removed it
                self._file, is_new = _opened(self.mark)
                now = os.fstat(self._file)
                if not S_ISREG(now.st_mode) or now.st_nlink > 1 or now.st_uid != os.geteuid():
                    cause = f"another user writes there; if nobody does, remove {self.mark}"
                    raise InputError(cause, path=self._target)
                lock(self._file, self._target, self.mark, is_new)
                self._ours = os.path.samestat(now, os.stat(self.mark, follow_symlinks=False))
            if not self._ours:
                self.release()
                if not self.mark.parent.is_dir():  # removed with it, as it was made for it
                    raise BusyError("its folder has just been removed", path=self._target)


def _opened(mark: Path) -> tuple[int, bool]:
    """Return the file of a claim, and whether it is new; it is no link."""
    try:
        return os.open(mark, FLAGS | os.O_CREAT | os.O_EXCL, 0o600), True
    except FileExistsError:
        return os.open(mark, FLAGS), False


def lock(file: int, target: Path, mark: Path, is_new: bool = True) -> None:
    """Lock the open file `mark`; raise `BusyError` if another process has locked it and so writes `target`."""
    try:
        fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        raise _taken(file, target, mark) from None
    except OSError:  # no locks on this file system
        if not is_new:
            raise _taken(file, target, mark) from None


def _taken(file: int, target: Path, mark: Path) -> BusyError:
    said = _said(file, whole=True) if mark != target else {}
    who = f", process {said.get('process')} on {said.get('host')}," if said else ""
    remedy = f"; if it has ended, remove {mark}" if mark != target else ""
    return BusyError(f"another run{who} writes there{remedy}", path=target)


def _said(file: int, whole: bool = False) -> dict[str, Any]:
    """Return what a claim says; nothing if it is new."""
    facts: object = None
    with suppress(OSError, ValueError, RecursionError):
        facts = json.loads(os.pread(file, 1 << 16, 0))
    if not isinstance(facts, dict):
        return {}
    return facts if whole else {name: fact for name, fact in facts.items() if name not in ("process", "host")}
