"""Columns of nonzeros in the files of a store, read when they are used.

Files are not memory-mapped: the system kills a process that reads a mapped file past its end (SIGBUS), and mapped data
may change after it has been verified. Here all data in use is a copy that was itself verified.
"""

from __future__ import annotations

import os
import weakref
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import DTypeLike

from ..array_types import DType, HostArray
from ..errors import InputError
from ..host import checksums

PIECE = 1 << 16  # elements read and checked at a time; they fit a core's cache


class IndexBounds(NamedTuple):
    """Constraints on a column's indices: at least `low`, below `high`, and ascending or not."""

    low: int
    high: int
    ascending: bool = False


class StoredFile:
    """A file of a store. It stays open, and so the same file, if the store is replaced."""

    def __init__(self, path: Path, dtype: DType, skip: int, entry: checksums.Entry, verify: bool) -> None:
        """Open a file whose elements begin after `skip` bytes. Without `verify` checksums are not verified."""
        self.path, self.dtype, self._skip, self._entry, self._verify = path, dtype, skip, entry, verify
        try:
            self._handle = os.open(path, os.O_RDONLY | os.O_NONBLOCK)
            weakref.finalize(self, os.close, self._handle)
            self._as_opened = self._state()
        except OSError as error:
            raise InputError(f"damaged file of the store: {error.strerror}", path=path) from None

    def _state(self) -> tuple[int, int]:
        status = os.fstat(self._handle)
        return status.st_size, status.st_mtime_ns

    def block_left(self, at: int) -> int:
        """Return the number of elements from number `at` to the end of its checksum block, at least 1."""
        return max(
            1, (checksums.BLOCK - (self._skip + at * self.dtype.itemsize) % checksums.BLOCK) // self.dtype.itemsize
        )

    def fill(self, array: HostArray, at: int, verify: bool = False) -> None:
        """Read elements, starting at number `at`; raise `InputError` if the file has changed since it was opened."""
        begin = self._skip + at * self.dtype.itemsize
        data = array.view(np.uint8)
        try:
            if verify and self._verify:
                checksums.read_blocks(self._handle, data, begin, self._entry)
            else:
                checksums.read_bytes(self._handle, data, begin)
            if self._state() != self._as_opened:
                raise ValueError("changed while it was in use")
        except OSError as error:
            raise InputError(error.strerror or str(error), path=self.path) from None
        except ValueError as error:
            raise InputError(f"damaged file of the store: {error}", path=self.path) from None


class StoredColumn:
    """Elements `start` to `stop` of a file, optionally with the first ones (`head`) in memory.

    Slices are arrays in memory; `part` returns a column that is not read yet.
    """

    def __init__(
        self,
        file: StoredFile,
        start: int,
        stop: int,
        bounds: IndexBounds | None = None,
        head: HostArray | None = None,
    ) -> None:
        self._file, self._start, self._bounds, self.dtype = file, start, bounds, file.dtype
        self.size = stop - start
        self._head = np.empty(0, file.dtype) if head is None else head

    def __len__(self) -> int:
        """The number of elements."""
        return self.size

    @property
    def nbytes(self) -> int:
        """The size of all elements in bytes."""
        return self.size * self.dtype.itemsize

    def __getitem__(self, at: Any) -> Any:
        """Return an element, or a slice as an array."""
        if isinstance(at, slice):
            begin, end, _ = at.indices(self.size)
            return self._head[begin:end] if end <= self._head.size else self.read(begin, end)
        number = range(self.size)[at]
        return self[number : number + 1][0]

    def __array__(self, dtype: DTypeLike | None = None, copy: bool | None = None) -> HostArray:
        """Return all elements."""
        return np.asarray(self[:], dtype)

    def part(self, begin: int, end: int, bounds: IndexBounds | None = None) -> StoredColumn:
        """Return a range of the elements without reading them."""
        return StoredColumn(self._file, self._start + begin, self._start + end, bounds or self._bounds)

    def load(self, keep: int, dtype: DType | None = None) -> Any:
        """Verify all elements against the checksums, and read the first `keep` into memory.

        Returns an array, cast to `dtype`, if `keep` is the number of elements, and otherwise a `StoredColumn`.
        """
        complete = keep == self.size
        head = np.empty(keep, (complete and dtype) or self.dtype)
        begin, previous = 0, np.empty(0, self.dtype)
        while begin < self.size:
            end = min(self.size, begin + self._file.block_left(self._start + begin))
            array = self.read(begin, end, verify=True)
            if previous.size:
                self._check(np.append(previous, array[:1]))  # order across blocks
            previous = array[-1:]
            head[begin:end] = array[: max(0, keep - begin)]
            begin = end
        return head if complete else StoredColumn(self._file, self._start, self._start + self.size, self._bounds, head)

    def read(self, begin: int, end: int, verify: bool = False) -> HostArray:
        """Read a range of elements into memory, checking their bounds."""
        array = np.empty(max(0, end - begin), self.dtype)
        if array.size:
            self._file.fill(array, self._start + begin, verify)
            for at in range(0, array.size, PIECE):
                self._check(array[max(0, at - 1) : at + PIECE])  # with the previous element, to check the order
        return array

    def copy_to(self, target: HostArray) -> None:
        """Read all elements into an array, converting their type, and check each piece while it is in the caches."""
        for at in range(0, self.size, PIECE):
            np.copyto(target[at : at + PIECE], self.read(at, min(at + PIECE, self.size)), casting="unsafe")

    def _check(self, part: HostArray) -> None:
        if self._bounds is None:
            return
        low, high, ascending = self._bounds
        if part.min() < low or part.max() >= high:
            raise InputError(
                f"an index is outside {low}..{high - 1}, the range of its mode or of this rank", path=self._file.path
            )
        if ascending and np.any(np.less(part[1:], part[:-1])):
            raise InputError("output indices are not in ascending order", path=self._file.path)
