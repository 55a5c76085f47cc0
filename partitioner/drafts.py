"""A store in the making: a folder beside the one that it is to be, which is renamed when it is whole.

Who makes it holds a lock on it, which goes with the process. So what a killed run has left is told from what another
one is writing, and removed by the next run into the same place.
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
    """Return the folder in which this process makes the store that is to be at `target`."""
    return target.with_name(f"{_stem(target)}{os.getpid()}.part")


def _stem(target: Path) -> str:
    # With the host's name: some file systems keep locks to each host.
    return f".{target.name}.{os.uname().nodename}."


@contextmanager
def drafted(target: Path, draft: Path) -> Iterator[None]:
    """Make the folder `draft`, to be filled, and give it its name when that is done; nothing is left if it fails."""
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
    """Remove what runs on this host that were killed have left of a store that was to be at `target`."""
    stem = _stem(target)
    for folder in target.parent.iterdir():
        pid = folder.name.removeprefix(stem).removesuffix(".part")
        if pid.isdigit() and folder.name == f"{stem}{pid}.part":
            with suppress(OSError), _locked(folder) as free:  # it may be gone already
                if free:
                    shutil.rmtree(folder, ignore_errors=True)


@contextmanager
def _locked(folder: Path) -> Iterator[bool]:
    """Lock a folder, unless somebody else has or its file system knows no locks; tell whether it is locked."""
    handle, free = os.open(folder, os.O_RDONLY), True
    try:
        try:
            fcntl.flock(handle, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except OSError:
            free = False
        yield free
    finally:
        os.close(handle)
