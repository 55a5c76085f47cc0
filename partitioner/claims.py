"""Claims on names that will be written: held while a run goes on, so that no other run takes the same name meanwhile.

A claim is a locked file beside the name, ``.NAME.claim``. The system unlocks it when its process ends, however it does:
the claim of a run that was killed is taken over by the next one. Where a file system has no locks, claims hold nothing.
"""

from __future__ import annotations

import fcntl
import os
from contextlib import suppress
from pathlib import Path
from stat import S_ISREG

from .errors import InputError

MARK = ".{}.claim"


class Claim:
    """A name that no other process may claim until this is released."""

    def __init__(self, target: Path) -> None:
        """Claim `target`, whose folder exists; raise `InputError` if another run has it, or none can write there."""
        self.mark = target.with_name(MARK.format(target.name))
        try:
            self._file = _locked(self.mark, target)
            try:
                os.ftruncate(self._file, 0)
                os.pwrite(self._file, f"{os.getpid()} on {os.uname().nodename}\n".encode(), 0)  # a full disk says so
            except OSError:
                self.release()
                raise
        except OSError as error:
            raise InputError(f"cannot write there: {error.strerror}", path=target) from None

    def release(self) -> None:
        """Let other processes have the name."""
        with suppress(OSError):  # its folder may be gone
            self.mark.unlink(missing_ok=True)
        os.close(self._file)


def _locked(mark: Path, target: Path) -> int:
    """Return the file of a claim, opened and locked."""
    while True:
        file = os.open(mark, os.O_RDWR | os.O_CREAT | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC, 0o666)
        try:
            lock(file, mark, target)
            there = os.fstat(file)
            if not S_ISREG(there.st_mode) or there.st_nlink > 1:  # a trap: it would be written to
                raise InputError("is not the file of a claim: remove it", path=mark)
            with suppress(FileNotFoundError):  # else the run that had it has removed it meanwhile
                if os.path.samestat(there, os.stat(mark, follow_symlinks=False)):
                    return file
        except InputError:
            os.close(file)
            raise
        os.close(file)


def lock(file: int, mark: Path, target: Path) -> None:
    """Lock an open file, `mark`; raise `InputError` that names `target` if another process has locked it."""
    try:
        fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        owner = os.pread(file, 200, 0).decode(errors="replace").strip() if mark != target else ""
        who = f" (process {owner})" if owner else ""
        cause = f"another run{who} is writing it; if none is, its host was lost: remove {mark}"
        raise InputError(cause, path=target) from None
    except OSError:
        return  # no locks on this file system
