"""Readers: a file or store as a `SparseTensor`, or a file's nonzeros in chunks."""

from __future__ import annotations

from os import PathLike, fspath
from pathlib import Path

from ..coo import SparseTensor
from ..errors import InputError
from .pieces import Outcome, Part, Progress, chunks, collect, settle

__all__ = ["Outcome", "Part", "Progress", "chunks", "open_part", "read", "settle"]

# Readers are imported where they are used, to save start-up time.


def read(path: str | PathLike[str], *, progress: Progress | None = None) -> SparseTensor:
    """Read a tensor.

    Parameters
    ----------
    path : str or PathLike
        A folder is a store; a name that ends in ``.npz`` is a NumPy archive; anything else is text, one nonzero
        per line, plain or gzip-compressed.
    progress : callable, optional
        Called now and then while a file is read, with the bytes read so far and the file's size (None if unknown,
        as for a pipe).

    Returns
    -------
    SparseTensor

    Raises
    ------
    InputError
        If it cannot be read: the message names the file, the line if any, and the cause.
    """
    _check_name(path)
    if Path(path).is_dir():
        from ..store import Store

        return Store(path).tensor()
    part = open_part(path, progress=progress)
    return SparseTensor.from_columns(*collect(path, part), part.lengths, path=path)


def open_part(
    path: str | PathLike[str],
    part: int = 0,
    of: int = 1,
    *,
    threads: int | None = None,
    progress: Progress | None = None,
) -> Part:
    """Open one part of a file (not a store), to read its nonzeros in chunks of bounded size.

    Each rank opens one part and shares its outcome::

        part = open_part(path, rank, ranks)  # raises if the file is missing or its header is wrong
        for columns, values, more in chunks(part, 10**6):  # (order, n) int32 and (n,) float64
            ...
        whole = settle(path, comm.allgather(part.outcome))

    `settle` raises the error of the file's first wrong line on all ranks, or returns the whole file's order, declared
    mode lengths and number of nonzeros. Reading a part never raises: it ends at a fault. A single process calls
    ``settle(path, [part.outcome])``.

    Parts of plain text are equal byte ranges; a line belongs to the part in which it begins. Gzip, a pipe and a NumPy
    archive are read by part 0 alone, and the other parts are empty. Parts 0, 1, ... in turn give the nonzeros in file
    order, unsorted, with duplicates and zeros. Each thread holds a few MB of buffers; the caller owns the arrays.

    Parameters
    ----------
    path : str or PathLike
        As for `read`, except stores.
    part, of : int
        Number of this part, from 0, and number of parts.
    threads : int, optional
        Threads that parse text; by default one per usable core, at most 16.
    progress : callable, optional
        As for `read`, for this part.

    Raises
    ------
    InputError
        If the file cannot be opened, or a line before its first nonzero is wrong.
    """
    _check_name(path)
    if fspath(path).lower().endswith(".npz"):
        from .npz import ArchivePart

        return ArchivePart(path, part, progress=progress)
    from .tns import TextPart

    return TextPart(path, part, of, threads=threads, progress=progress)


def _check_name(path: str | PathLike[str]) -> None:
    if "\0" in fspath(path):
        raise InputError("the file name contains a null byte")
