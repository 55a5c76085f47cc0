"""Readers: from a file, or a store, to a `SparseTensor`."""

from __future__ import annotations

from collections.abc import Callable
from os import PathLike, fspath
from pathlib import Path

from ..coo import SparseTensor
from ..errors import InputError

__all__ = ["read"]


def read(path: str | PathLike[str], *, progress: Callable[[int, int | None], None] | None = None) -> SparseTensor:
    """Read a tensor.

    Parameters
    ----------
    path : str or PathLike
        A folder is a store; a name that ends in ``.npz`` is a NumPy archive; anything else is text, a nonzero
        a line, plain or compressed by gzip.
    progress : callable, optional
        Called now and then while text is read, with the bytes read so far and those of the whole file (None
        where that is not known, as for a pipe).

    Returns
    -------
    SparseTensor

    Raises
    ------
    InputError
        If it cannot be read: the message names the file, the line where there is one, and the cause.
    """
    # Imported here: a reader that is not used costs no time at the start.
    if "\0" in fspath(path):
        raise InputError("a file name holds no null byte")
    if Path(path).is_dir():
        from ..store import Store

        return Store(path).tensor()
    if fspath(path).lower().endswith(".npz"):
        from .npz import read_npz

        return read_npz(path)
    from .tns import read_tns

    return read_tns(path, progress=progress)
