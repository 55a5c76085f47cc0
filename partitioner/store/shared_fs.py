"""What ranks on several hosts see of a path: they may share no file system, or mount another one there."""

from __future__ import annotations

import os
import stat
from pathlib import Path

from ..errors import InputError
from ..host.ranks import Ranks, together

SPECIAL = "a special file"
REMEDY = "put it on a file system that all hosts see"


def check_same(ranks: Ranks, path: str | os.PathLike[str]) -> None:
    """Raise `InputError` on every rank if they do not all see the same file or folder at `path`. Collective.

    Otherwise some would read a store while others refuse a missing file, or ranks would read parts of two files. A pipe
    is rank 0's: the others do not look at theirs.
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
    """Raise `InputError` on every rank if some do not see the `draft` that rank 0 has made of `target`. Collective."""

    def check() -> None:
        if not draft.is_dir():
            host = os.uname().nodename
            raise InputError(f"rank {ranks.rank} on {host} does not see this folder of rank 0's: {REMEDY}", path=target)

    ranks.allgather(None)  # the draft exists
    together(ranks, check)


def _kind(path: str | os.PathLike[str]) -> str:
    try:
        found = os.stat(path)
        if stat.S_ISREG(found.st_mode) or stat.S_ISDIR(found.st_mode):  # a pipe's writer would lose what it wrote
            file = os.open(path, os.O_RDONLY | os.O_NONBLOCK | os.O_CLOEXEC)  # NFS checks on opening what it remembers
            try:
                found = os.fstat(file)
            finally:
                os.close(file)
    except OSError as error:
        return f"nothing ({error.strerror})"
    except ValueError:
        return "nothing"
    if stat.S_ISDIR(found.st_mode):
        return "a folder"
    if not stat.S_ISREG(found.st_mode):
        return SPECIAL
    return f"a file of {found.st_size:,} bytes"
