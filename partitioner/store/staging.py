"""A draft: the folder in which a store is built, beside its target, renamed when it is complete.

The target is locked before any input is read (see `locks`), so of two runs with one target the second is refused at its
start. The lock file names the draft, so that the next run with this target can remove the draft of a killed run. Drafts
have random names, since at a predictable name someone else could create a link.
"""

from __future__ import annotations

import os
import re
import shutil
import stat
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any

from ..errors import InputError, OutputError
from ..host import checksums
from . import format as store
from .locks import Claim

PART, OLD = ".part", ".old"


def draft_of(target: Path, ending: str = PART) -> Path:
    """Return a new random name for a draft of `target`, in the same folder."""
    return target.with_name(f".{target.name}.{os.urandom(8).hex()}{ending}")


def is_draft_of(name: str, target_name: str) -> bool:
    """Return whether `draft_of` generates names like `name` for the target."""
    return re.fullmatch(rf"\.{re.escape(target_name)}\.[0-9a-f]{{16}}\.part", name) is not None


@contextmanager
def drafted(target: Path, force: bool = False) -> Iterator[Path]:
    """Lock `target` and yield a draft folder that becomes `target` after the block, or is removed on failure.

    An existing target is refused, even if it is created during the block. With `force` an existing store is replaced,
    but nothing else.
    """
    draft, claim = draft_of(target), Claim(target)
    try:
        store.check_target(target, force)
        try:
            claim.take(draft=draft.name)
            _clean_up(claim.previous, target)
            store.check_target(target, force)  # the previous run may have ended only just now
            draft.mkdir()
            mode = stat.S_IMODE(draft.stat().st_mode)
            draft.chmod(0o700)  # private until it is complete, whatever the umask
            yield draft
            draft.chmod(mode)
            _publish(draft, target, force)
        finally:
            shutil.rmtree(draft, ignore_errors=True)
            claim.release()
    except OSError as error:
        raise OutputError(f"cannot write the store: {error.strerror or error}", path=target) from None


def _publish(draft: Path, target: Path, force: bool) -> None:
    """Rename a draft to its target; remove the store that it replaces."""
    aside = draft.with_suffix(OLD)
    replaced = force and os.path.lexists(target)
    if replaced:
        os.rename(target, aside)
    try:
        # Check again under a name that nobody else knows, so that nothing can be added.
        files = store.files_to_replace(aside) if replaced else []
        _rename(draft, target)
    except BaseException as error:
        if replaced and not os.path.lexists(target):
            os.rename(aside, target)
        if isinstance(error, InputError):
            raise InputError(error.cause, path=target) from None
        raise
    checksums.sync_folder(target.parent)
    if replaced:
        checksums.remove(files, aside)


def _rename(draft: Path, target: Path) -> None:
    """Rename a folder; raise `InputError` if the new name exists, even as an empty folder."""
    try:
        os.mkdir(target)  # fails if the name exists; a rename would replace an empty folder
    except FileExistsError:
        raise InputError(
            "was created by another process meanwhile: not replaced; choose another name", path=target
        ) from None
    try:
        os.rename(draft, target)
    except BaseException:
        with suppress(OSError):
            os.rmdir(target)
        raise


def _clean_up(claim: dict[str, Any], target: Path) -> None:
    """Remove the draft of a killed run. Restore the store that it was about to replace."""
    name = str(claim.get("draft", ""))
    if not is_draft_of(name, target.name):
        return
    draft = target.with_name(name)
    aside = draft.with_suffix(OLD)
    shutil.rmtree(draft, ignore_errors=True)
    if aside.is_dir() and not os.path.lexists(target):
        os.rename(aside, target)
    elif aside.is_dir():
        with suppress(InputError, OSError):
            checksums.remove(store.files_to_replace(aside), aside)
