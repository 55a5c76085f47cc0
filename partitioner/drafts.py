"""A draft: the folder in which a store is built, beside its target, renamed when it is complete.

Its process holds a lock on it until it ends. An unlocked draft is thus the remains of a killed run, and the next run
with the same target removes it.
"""

from __future__ import annotations

import fcntl
import os
import shutil
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

from . import checked
from .errors import InputError


def draft_name(target: Path) -> Path:
    """Return the draft folder of this process for a store at `target`."""
    return target.with_name(f"{_stem(target)}{os.getpid()}.part")


def _stem(target: Path) -> str:
    # Names the host, as some file systems do not share locks between hosts.
    return f".{target.name}.{os.uname().nodename}."


@contextmanager
def drafted(target: Path, draft: Path) -> Iterator[None]:
    """Make the folder `draft`; rename it to `target` at the end of the block, or remove it on failure."""
    aside = draft.with_suffix(".old")
    try:
        remove_stale(target)
        draft.mkdir()
        with _locked(draft):
            yield
            if target.exists():
                os.rename(target, aside)
            os.rename(draft, target)
        checked.sync_folder(target.parent)
        shutil.rmtree(aside, ignore_errors=True)
    except OSError as error:
        raise InputError(f"cannot write the store: {error.strerror or error}", path=target) from None
    finally:
        if aside.exists() and not target.exists():
            os.rename(aside, target)
        shutil.rmtree(draft, ignore_errors=True)


def remove_stale(target: Path) -> None:
    """Remove drafts of `target` that killed runs left on this host."""
    stem = _stem(target)
    for folder in target.parent.iterdir():
        pid = folder.name.removeprefix(stem).removesuffix(".part")
        if pid.isdigit() and folder.name == f"{stem}{pid}.part":
            with suppress(OSError), _locked(folder) as free:  # another run may have removed it
                if free:
                    shutil.rmtree(folder, ignore_errors=True)


@contextmanager
def _locked(folder: Path) -> Iterator[bool]:
    """Try to lock a folder; yield False if another process has it locked or the file system has no locks."""
    handle, free = os.open(folder, os.O_RDONLY), True
    try:
        try:
            fcntl.flock(handle, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except OSError:
            free = False
        yield free
    finally:
        os.close(handle)
