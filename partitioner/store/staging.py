"""A draft: the folder in which a store is built, beside its target, renamed when it is complete.

Before anything is read the target's name is claimed (see `claims`), so that of two runs with one target the second is
refused at its start. The claim names the draft: the next run with the same target removes that of a killed run. Drafts
have random names, as others could guess any other and put a link there.
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
    draft, claim = draft_of(target), Claim(target)
    try:
        store.check_target(target, force)
        try:
            claim.take(draft=draft.name)
            _remove_remains(claim.left, target)
            store.check_target(target, force)  # the run before may have ended, or have been killed, just now
            draft.mkdir()
            mode = stat.S_IMODE(draft.stat().st_mode)
            draft.chmod(0o700)  # until it is complete nobody else may put anything there, whatever the umask
            yield draft
            draft.chmod(mode)
            _put(draft, target, force)
        finally:
            shutil.rmtree(draft, ignore_errors=True)
            claim.release()
    except OSError as error:
        raise OutputError(f"cannot write the store: {error.strerror or error}", path=target) from None


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
    checksums.sync_folder(target.parent)
    if replaced:
        checksums.remove(files, aside)


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
            checksums.remove(store.files_to_replace(aside), aside)
