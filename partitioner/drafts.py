"""A draft: the folder in which a store is built, beside its target, renamed when it is complete.

Before anything is read the target's name is claimed: its process locks the file ``.TARGET.claim``, which names it and
its draft, until it ends. So of two runs with one target the second is refused at its start. A claim that nobody has
locked is the remains of a killed run: the next run with the same target takes it over and removes that run's draft.
Drafts have random names, as others could guess any other and put a link there.
"""

from __future__ import annotations

import fcntl
import json
import os
import re
import shutil
import stat
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any

from . import checked, store
from .errors import InputError

PART, OLD = ".part", ".old"


def draft_of(target: Path, ending: str = PART) -> Path:
    """Return a new name for a draft of `target`, beside it."""
    return target.with_name(f".{target.name}.{os.urandom(8).hex()}{ending}")


def is_draft_of(name: str, target_name: str) -> bool:
    """Tell whether `draft_of` gives such names."""
    return re.fullmatch(rf"\.{re.escape(target_name)}\.[0-9a-f]{{16}}\.part", name) is not None


@contextmanager
def drafted(target: Path, force: bool = False) -> Iterator[Path]:
    """Claim `target` and give a folder that is renamed to it at the end of the block, or removed on failure.

    What is at `target` is refused, also if it was made meanwhile; with `force` a store is replaced, and nothing else.
    """
    draft = draft_of(target)
    try:
        store.check_target(target, force)
        with _claimed(target, draft):
            store.check_target(target, force)  # the run before may have ended, or have been killed, just now
            try:
                draft.mkdir()
                mode = stat.S_IMODE(draft.stat().st_mode)
                draft.chmod(0o700)  # until it is complete nobody else may put anything there, whatever the umask
                yield draft
                draft.chmod(mode)
                _put(draft, target, force)
            finally:
                shutil.rmtree(draft, ignore_errors=True)
    except OSError as error:
        raise InputError(f"cannot write the store: {error.strerror or error}", path=target) from None


def _put(draft: Path, target: Path, force: bool) -> None:
    """Rename a draft to its target; remove the store that was there before."""
    aside = draft.with_suffix(OLD)
    replaced = force and os.path.lexists(target)
    if replaced:
        os.rename(target, aside)
    try:
        # Looked at once more, by a name that nobody else knows: what it holds now is all it will hold.
        files = store.files_to_replace(aside) if replaced else []
        _rename(draft, target)
    except BaseException as error:
        if replaced and not os.path.lexists(target):
            os.rename(aside, target)
        if isinstance(error, InputError):
            raise InputError(error.cause, path=target) from None
        raise
    checked.sync_folder(target.parent)
    if replaced:
        checked.remove(files, aside)


def _rename(draft: Path, target: Path) -> None:
    """Rename a folder; raise `InputError` if there is something by the new name, be it an empty folder."""
    try:
        os.mkdir(target)  # fails if anything is there, which a rename alone would not
    except FileExistsError:
        raise InputError("was made by somebody else meanwhile: not replaced", path=target) from None
    try:
        os.rename(draft, target)
    except BaseException:
        with suppress(OSError):
            os.rmdir(target)
        raise


@contextmanager
def _claimed(target: Path, draft: Path) -> Iterator[None]:
    """Hold the claim of a target."""
    path = target.with_name(f".{target.name}.claim")
    handle = _locked(path, target)
    try:
        _remove_remains(_facts(handle), target)
        facts = {"process": os.getpid(), "host": os.uname().nodename, "draft": draft.name}
        os.truncate(handle, 0)
        os.pwrite(handle, json.dumps(facts).encode(), 0)
        yield
    finally:
        path.unlink(missing_ok=True)
        os.close(handle)


def _locked(path: Path, target: Path) -> int:
    """Return the locked file of a claim; raise `InputError` if another process has it."""
    while True:
        try:
            handle, is_new = _open(path)
        except FileNotFoundError:  # its owner has just ended and removed it
            continue
        except OSError as error:
            if not os.path.lexists(path):
                raise
            cause = f"cannot be claimed ({error.strerror}); if nobody writes there, remove {path}"
            raise InputError(cause, path=target) from None
        try:
            _lock(handle, is_new, path, target)
            if _is(handle, path):
                return handle
        except BaseException:
            os.close(handle)
            raise
        os.close(handle)


def _open(path: Path) -> tuple[int, bool]:
    """Return the file of a claim, and whether it was made; it is no link."""
    flags = os.O_RDWR | os.O_NOFOLLOW | os.O_NONBLOCK
    try:
        return os.open(path, flags | os.O_CREAT | os.O_EXCL, 0o600), True
    except FileExistsError:
        return os.open(path, flags), False


def _lock(handle: int, is_new: bool, path: Path, target: Path) -> None:
    there = os.fstat(handle)
    if not stat.S_ISREG(there.st_mode) or there.st_uid != os.geteuid():
        raise InputError(f"another user writes there; if nobody does, remove {path}", path=target)
    try:
        fcntl.flock(handle, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        raise InputError(f"{_owner(handle)} writes there", path=target) from None
    except OSError:  # the file system has no locks
        if not is_new:
            cause = f"{_owner(handle)} writes there; if it has ended, remove {path}"
            raise InputError(cause, path=target) from None


def _is(handle: int, path: Path) -> bool:
    """Tell whether an open file still has this name."""
    try:
        return os.path.samestat(os.fstat(handle), os.lstat(path))
    except FileNotFoundError:
        return False


def _facts(handle: int) -> dict[str, Any]:
    """Return what a claim says; nothing if it was just made."""
    try:
        facts = json.loads(os.pread(handle, 1 << 16, 0))
    except ValueError:
        return {}
    return facts if isinstance(facts, dict) else {}


def _owner(handle: int) -> str:
    facts = _facts(handle)
    return f"process {facts.get('process')} on {facts.get('host')}" if facts else "another process"


def _remove_remains(facts: dict[str, Any], target: Path) -> None:
    """Remove the draft of a run that was killed; put back the store that it was about to replace."""
    name = str(facts.get("draft", ""))
    if not is_draft_of(name, target.name):
        return
    draft = target.with_name(name)
    aside = draft.with_suffix(OLD)
    shutil.rmtree(draft, ignore_errors=True)
    if aside.is_dir() and not os.path.lexists(target):
        os.rename(aside, target)
    elif aside.is_dir():
        with suppress(InputError, OSError):
            checked.remove(store.files_to_replace(aside), aside)
