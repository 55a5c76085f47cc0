"""Nonzeros in memory or in files, read and written by the piece."""

from __future__ import annotations

import mmap
from collections.abc import Sequence
from contextlib import suppress
from pathlib import Path
from typing import Any, Protocol

import numpy as np
from numpy.typing import NDArray

Nonzeros = tuple[NDArray[np.int32], NDArray[np.floating]]
"""(order, n) indices and (n,) values."""


class Table(Protocol):
    """Nonzeros that are somewhere."""

    def read(self, begin: int, columns: NDArray[np.int32], values: NDArray[np.floating]) -> None:
        """Fill arrays with those from number `begin` on."""

    def read_column(self, mode: int, begin: int, end: int) -> NDArray[np.int32]:
        """Return some indices of one mode."""


class Held:
    """Nonzeros in memory. See `Table`."""

    def __init__(self, columns: NDArray[np.int32], values: NDArray[np.floating]) -> None:
        self._columns, self._values = columns, values

    def read(self, begin: int, columns: NDArray[np.int32], values: NDArray[np.floating]) -> None:
        """See `Table`."""
        np.copyto(columns, self._columns[:, begin : begin + values.size])
        np.copyto(values, self._values[begin : begin + values.size])

    def read_column(self, mode: int, begin: int, end: int) -> NDArray[np.int32]:
        """See `Table`."""
        column: NDArray[np.int32] = self._columns[mode, begin:end]
        return column


class Files:
    """Nonzeros in files, one for each mode and one for the values. See `Table`.

    Parameters
    ----------
    paths : sequence of Path
        Made when they are written to.
    dtype : numpy.dtype
        Of the values.
    skip : int
        Bytes of a header, in each file.
    """

    def __init__(self, paths: Sequence[Path], dtype: np.dtype[Any], skip: int = 0) -> None:
        self._paths, self._dtype, self._skip = paths, dtype, skip

    def write(self, at: int, columns: NDArray[np.int32], values: NDArray[np.floating]) -> None:
        """Write nonzeros from number `at` on."""
        for k, array in enumerate((*columns, values.astype(self._dtype, copy=False))):
            self.write_column(k, at, array)

    def write_column(self, k: int, at: int, array: NDArray[Any]) -> None:
        """Write what nonzeros from number `at` on have in file number `k`."""
        self._paths[k].touch()
        with open(self._paths[k], "r+b") as file:
            file.seek(self._skip + at * array.itemsize)
            file.write(np.ascontiguousarray(array).data)

    def read(self, begin: int, columns: NDArray[np.int32], values: NDArray[np.floating]) -> None:
        """See `Table`."""
        for path, column in zip(self._paths, columns, strict=False):
            self._fill(path, begin, column)
        self.read_values(begin, values)

    def read_column(self, mode: int, begin: int, end: int) -> NDArray[np.int32]:
        """See `Table`."""
        column = np.empty(end - begin, np.int32)
        self._fill(self._paths[mode], begin, column)
        return column

    def read_values(self, begin: int, values: NDArray[np.floating]) -> None:
        """Fill an array with the values from number `begin` on."""
        self._fill(self._paths[-1], begin, values)

    def _fill(self, path: Path, begin: int, array: NDArray[Any]) -> None:
        with open(path, "rb") as file:
            file.seek(self._skip + begin * array.itemsize)
            if file.readinto(array.data) != array.nbytes:
                raise OSError(None, "cut short while it was read", str(path))

    def remove(self) -> None:
        """Delete the files."""
        for path in self._paths:
            path.unlink(missing_ok=True)


def mapped(size: int, dtype: np.dtype[Any]) -> NDArray[Any]:
    """Return an array that is mapped by itself: its memory goes back to the system, whatever malloc would keep."""
    room = mmap.mmap(-1, max(1, size * dtype.itemsize), mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS)
    with suppress(AttributeError, OSError):  # not on every system
        room.madvise(mmap.MADV_HUGEPAGE)
    return np.frombuffer(room, dtype, size)
