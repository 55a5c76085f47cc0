"""Readers: from a file, or a store, to a `SparseTensor`, or to the nonzeros of a file chunk by chunk."""

from __future__ import annotations

from os import PathLike, fspath
from pathlib import Path

from ..coo import SparseTensor
from ..errors import InputError
from .pieces import Outcome, Part, Progress, chunks, settle

__all__ = ["Outcome", "Part", "Progress", "chunks", "open_part", "read", "settle"]

# Readers are imported where they are used: one that is not costs no time at the start.


def read(path: str | PathLike[str], *, progress: Progress | None = None) -> SparseTensor:
    """Read a tensor.

    Parameters
    ----------
    path : str or PathLike
        A folder is a store; a name that ends in ``.npz`` is a NumPy archive; anything else is text, a nonzero
        a line, plain or compressed by gzip.
    progress : callable, optional
        Called now and then while a file is read, with the bytes read so far and those of the whole file (None
        where that is not known, as for a pipe).

    Returns
    -------
    SparseTensor

    Raises
    ------
    InputError
        If it cannot be read: the message names the file, the line where there is one, and the cause.
    """
    _check_name(path)
    if Path(path).is_dir():
        from ..store import Store

        return Store(path).tensor()
    if _is_archive(path):
        from .npz import read_npz

        return read_npz(path, progress=progress)
    from .tns import read_tns

    return read_tns(path, progress=progress)


def open_part(
    path: str | PathLike[str],
    part: int = 0,
    of: int = 1,
    *,
    threads: int | None = None,
    progress: Progress | None = None,
) -> Part:
    """Open one part of a file that is no store, to read its nonzeros in chunks of bounded size.

    Each rank opens one part, and tells the others how its reading ended::

        part = open_part(path, rank, ranks)  # raises if there is no such file, or its head is wrong
        for columns, values, more in chunks(part, 10**6):  # (order, n) int32 and (n,) float64
            ...
        whole = settle(path, comm.allgather(part.outcome))

    `settle` raises the same error on all ranks, that of the first wrong line of the file, and returns the order, the
    declared mode lengths and the number of nonzeros of the whole. A part never raises while it is read: at a fault
    it ends. One process does the same with the only part, ``settle(path, [part.outcome])``.

    Parts are equal ranges of bytes of plain text; a line is read by the part in which it begins. Gzip, a pipe and a
    NumPy archive are the first part, and the others are empty. The nonzeros of part 0, 1, ... in turn are those of
    the file, as it gives them: not sorted, duplicates and zeros kept. Beside them, a few MB are held for each
    thread; the arrays are the caller's.

    Parameters
    ----------
    path : str or PathLike
        As for `read`, but for stores.
    part, of : int
        Which part, counted from 0, of how many.
    threads : int, optional
        That parse text; by default as many as this process may use cores.
    progress : callable, optional
        As for `read`, of this part.

    Raises
    ------
    InputError
        If the file cannot be opened, or what is before its first nonzero is wrong.
    """
    _check_name(path)
    if _is_archive(path):
        from .npz import ArchivePart

        return ArchivePart(path, part, progress=progress)
    from .tns import TextPart

    return TextPart(path, part, of, threads=threads, progress=progress)


def _check_name(path: str | PathLike[str]) -> None:
    if "\0" in fspath(path):
        raise InputError("a file name holds no null byte")


def _is_archive(path: str | PathLike[str]) -> bool:
    return fspath(path).lower().endswith(".npz")
