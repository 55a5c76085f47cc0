"""Columns of nonzeros in the files of a store, read when they are used.

They are not memory-mapped. The system ends a process that reads a mapped file past its end without a word (SIGBUS), and
what was checked in a mapping may be something else when it is used. Here everything used is a copy, checked itself.
"""

from __future__ import annotations

import os
import weakref
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from ..errors import InputError
from ..host import checksums

PIECE = 1 << 16  # elements that are read and checked together, within a core's cache


class IndexBounds(NamedTuple):
    """What a column's indices must be: at least `low`, below `high`, and perhaps in ascending order."""

    low: int
    high: int
    ascending: bool = False


class StoredFile:
    """A file of a store. It stays the same one when another store takes the place of this one."""

    def __init__(self, path: Path, dtype: np.dtype[Any], skip: int, entry: checksums.Entry, verify: bool) -> None:
        """Open a file of elements after `skip` bytes; without `verify` checksums are not looked at."""
        self.path, self.dtype, self._skip, self._entry, self._verify = path, dtype, skip, entry, verify
        try:
            self._handle = os.open(path, os.O_RDONLY | os.O_NONBLOCK)
            weakref.finalize(self, os.close, self._handle)
            self._as_opened = self._state()
        except OSError as error:
            raise InputError(f"damaged file of the store: {error.strerror}", path=path) from None

    def _state(self) -> tuple[int, int]:
        found = os.fstat(self._handle)
        return found.st_size, found.st_mtime_ns

    def block_left(self, at: int) -> int:
        """Return the number of elements from number `at` to the end of its block, at least 1."""
        return max(
            1, (checksums.BLOCK - (self._skip + at * self.dtype.itemsize) % checksums.BLOCK) // self.dtype.itemsize
        )

    def fill(self, array: NDArray[Any], at: int, verify: bool = False) -> None:
        """Read elements, the first as number `at`; raise `InputError` if the file has changed since it was opened."""
        begin = self._skip + at * self.dtype.itemsize
        data = array.view(np.uint8)
        try:
            if verify and self._verify:
                checksums.read_blocks(self._handle, data, begin, self._entry)
            else:
                checksums.read_bytes(self._handle, data, begin)
            if self._state() != self._as_opened:
                raise ValueError("was changed while it was in use")
        except OSError as error:
            raise InputError(error.strerror or str(error), path=self.path) from None
        except ValueError as error:
            raise InputError(f"damaged file of the store: {error}", path=self.path) from None


class StoredColumn:
    """Elements `start` to `stop` of a file, of which the first may be held in memory.

    Slices are arrays in memory; `part` is a column that is still to be read.
    """

    def __init__(
        self,
        file: StoredFile,
        start: int,
        stop: int,
        bounds: IndexBounds | None = None,
        head: NDArray[Any] | None = None,
    ) -> None:
        self._file, self._start, self._bounds, self.dtype = file, start, bounds, file.dtype
        self.size = stop - start
        self._head = np.empty(0, file.dtype) if head is None else head

    def __len__(self) -> int:
        """The number of elements."""
        return self.size

    @property
    def nbytes(self) -> int:
        """The bytes of all elements."""
        return self.size * self.dtype.itemsize

    def __getitem__(self, at: Any) -> Any:
        """Return an element, or a slice as an array."""
        if isinstance(at, slice):
            begin, end, _ = at.indices(self.size)
            return self._head[begin:end] if end <= self._head.size else self.read(begin, end)
        number = range(self.size)[at]
        return self[number : number + 1][0]

    def __array__(self, dtype: Any = None, copy: bool | None = None) -> NDArray[Any]:
        """Return all elements."""
        return np.asarray(self[:], dtype)

    def part(self, begin: int, end: int, bounds: IndexBounds | None = None) -> StoredColumn:
        """Return some of the elements, none of them read."""
        return StoredColumn(self._file, self._start + begin, self._start + end, bounds or self._bounds)

    def held(self, keep: int, dtype: np.dtype[Any] | None = None) -> Any:
        """Verify all elements against the checksums, and hold the first `keep` in memory; return all, or an array.

        If all are held they are cast to `dtype`.
        """
        everything = keep == self.size
        head = np.empty(keep, (everything and dtype) or self.dtype)
        begin, last = 0, np.empty(0, self.dtype)
        while begin < self.size:
            end = min(self.size, begin + self._file.block_left(self._start + begin))
            array = self.read(begin, end, verify=True)
            if last.size:
                self._check(np.append(last, array[:1]))  # in order from block to block, too
            last = array[-1:]
            head[begin:end] = array[: max(0, keep - begin)]
            begin = end
        return (
            head if everything else StoredColumn(self._file, self._start, self._start + self.size, self._bounds, head)
        )

    def read(self, begin: int, end: int, verify: bool = False) -> NDArray[Any]:
        """Read elements into memory, within bounds."""
        array = np.empty(max(0, end - begin), self.dtype)
        if array.size:
            self._file.fill(array, self._start + begin, verify)
            for at in range(0, array.size, PIECE):
                self._check(array[max(0, at - 1) : at + PIECE])  # a piece's first must not be less than the last one
        return array

    def copy_to(self, target: NDArray[Any]) -> None:
        """Read all elements into an array, perhaps of another type, each copy checked while it is in the caches."""
        for at in range(0, self.size, PIECE):
            np.copyto(target[at : at + PIECE], self.read(at, min(at + PIECE, self.size)), casting="unsafe")

    def _check(self, part: NDArray[Any]) -> None:
        if self._bounds is None:
            return
        low, high, ascending = self._bounds
        if part.min() < low or part.max() >= high:
            raise InputError(f"an index is outside {low}..{high - 1}, its mode's or this rank's", path=self._file.path)
        if ascending and np.any(part[1:] < part[:-1]):
            raise InputError("output indices are not in ascending order", path=self._file.path)
