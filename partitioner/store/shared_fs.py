"""Checks that all hosts see the same file system at a path: they may share none, or mount another one there."""

from __future__ import annotations

import os
import stat
from pathlib import Path

from ..errors import InputError
from ..host.ranks import Ranks, together

SPECIAL = "a special file"
REMEDY = "put it on a file system that all hosts see"


def check_same(ranks: Ranks, path: str | os.PathLike[str]) -> None:
    """Raise `InputError` on every rank if ranks see different files or folders at `path`. Collective.

    Otherwise some ranks would read a store while others refuse a missing file, or ranks would read parts of two
    different files. Only rank 0 reads a pipe, so other ranks' paths are not compared with it.
    """
    if ranks.size == 1:
        return
    seen = ranks.allgather((_kind(path), os.uname().nodename))
    if seen[0][0] == SPECIAL:
        return
    for rank, (kind, host) in enumerate(seen):
        if kind != seen[0][0]:
            cause = f"rank 0 on {seen[0][1]} sees {seen[0][0]}, rank {rank} on {host} {kind}: {REMEDY}"
            raise InputError(cause, path=path)


def check_draft(ranks: Ranks, draft: Path, target: Path) -> None:
    """Raise `InputError` on every rank if some do not see the `draft` of `target` that rank 0 created. Collective."""

    def check() -> None:
        if not draft.is_dir():
            host = os.uname().nodename
            raise InputError(f"rank {ranks.rank} on {host} does not see this folder of rank 0's: {REMEDY}", path=target)

    ranks.allgather(None)  # the draft exists
    together(ranks, check)


def _kind(path: str | os.PathLike[str]) -> str:
    try:
        status = os.stat(path)
        if stat.S_ISREG(status.st_mode) or stat.S_ISDIR(status.st_mode):  # opening a pipe would lose its data
            file = os.open(path, os.O_RDONLY | os.O_NONBLOCK | os.O_CLOEXEC)  # NFS: refreshes cached attributes
            try:
                status = os.fstat(file)
            finally:
                os.close(file)
    except OSError as error:
        return f"nothing ({error.strerror})"
    except ValueError:
        return "nothing"
    if stat.S_ISDIR(status.st_mode):
        return "a folder"
    if not stat.S_ISREG(status.st_mode):
        return SPECIAL
    return f"a file of {status.st_size:,} bytes"
