"""Tables of nonzeros in memory or in files, read and written piece by piece."""

from __future__ import annotations

import mmap
from collections import deque
from collections.abc import Sequence
from contextlib import suppress
from pathlib import Path
from typing import Protocol

import numpy as np
from numpy.typing import NDArray

from ..array_types import Element, FloatDType, Floats, HostArray

MIN_GROWTH = 1 << 14  # nonzeros by which a pile grows at least

Indices = NDArray[np.int32]
Values = Floats
Nonzeros = tuple[Indices, Values]
"""(order, n) indices and (n,) values."""


class Table(Protocol):
    """Nonzeros in memory or in files."""

    def read(self, begin: int, columns: Indices, values: Values) -> None:
        """Fill the arrays with consecutive nonzeros, starting at number `begin`."""

    def read_column(self, mode: int, begin: int, end: int) -> Indices:
        """Return the indices of one mode for nonzeros `begin` to `end`."""


class MemoryTable:
    """Nonzeros in memory. See `Table`."""

    def __init__(self, columns: Indices, values: Values) -> None:
        self._columns, self._values = columns, values

    def read(self, begin: int, columns: Indices, values: Values) -> None:
        """See `Table`."""
        np.copyto(columns, self._columns[:, begin : begin + values.size])
        np.copyto(values, self._values[begin : begin + values.size])

    def read_column(self, mode: int, begin: int, end: int) -> Indices:
        """See `Table`."""
        column: Indices = self._columns[mode, begin:end]
        return column


class DiskTable:
    """Nonzeros in files: one per mode and one for values of type `dtype`. See `Table`.

    The first write creates the files. Each begins with a header of `skip` bytes.
    """

    def __init__(self, paths: Sequence[Path], dtype: FloatDType, skip: int = 0) -> None:
        self._paths, self._dtype, self._skip = paths, dtype, skip

    def write(self, at: int, columns: Indices, values: Values) -> None:
        """Write nonzeros, starting at number `at`."""
        for k, array in enumerate((*columns, values.astype(self._dtype, copy=False))):
            self.write_column(k, at, array)

    def write_column(self, k: int, at: int, array: HostArray) -> None:
        """Write an index column or the values (file `k`) of nonzeros, starting at number `at`."""
        self._paths[k].touch()
        with open(self._paths[k], "r+b") as file:
            file.seek(self._skip + at * array.itemsize)
            file.write(np.ascontiguousarray(array).data)

    def read(self, begin: int, columns: Indices, values: Values) -> None:
        """See `Table`."""
        for path, column in zip(self._paths, columns, strict=False):
            self._fill(path, begin, column)
        self.read_values(begin, values)

    def read_column(self, mode: int, begin: int, end: int) -> Indices:
        """See `Table`."""
        column = np.empty(end - begin, np.int32)
        self._fill(self._paths[mode], begin, column)
        return column

    def read_values(self, begin: int, values: Values) -> None:
        """Fill an array with values, starting at number `begin`."""
        self._fill(self._paths[-1], begin, values)

    def _fill(self, path: Path, begin: int, array: HostArray) -> None:
        with open(path, "rb") as file:
            file.seek(self._skip + begin * array.itemsize)
            if file.readinto(array.data) != array.nbytes:
                raise OSError(None, "truncated while it was read", str(path))

    def remove(self) -> None:
        """Delete the files."""
        for path in self._paths:
            path.unlink(missing_ok=True)


class Pile:
    """Collects nonzeros that arrive in pieces into contiguous arrays, up to `limit` of them.

    If about `expected` nonzeros are announced, their memory is mapped at once and becomes resident as they arrive. If
    more arrive, all are copied at the end.

    Attributes
    ----------
    size : int
        Number of nonzeros so far.
    """

    def __init__(self, order: int, dtype: FloatDType, limit: int, expected: int = 0) -> None:
        self._order, self._dtype, self._limit, self._expected = order, dtype, limit, expected
        self._slabs = deque[Nonzeros]()
        self._free = self.size = 0

    def reserve(self, count: int) -> list[Nonzeros]:
        """Return consecutive arrays for the next `count` nonzeros, or for fewer at the limit."""
        targets = []
        count = min(count, self._limit - self.size)
        while count:
            if not self._free:
                self._grow()
            columns, values = self._slabs[-1]
            begin, used = values.size - self._free, min(count, self._free)
            targets.append((columns[:, begin : begin + used], values[begin : begin + used]))
            self._free, self.size, count = self._free - used, self.size + used, count - used
        return targets

    def _grow(self) -> None:
        self._free = min(max(MIN_GROWTH, self.size, self._expected - self.size), self._limit - self.size)
        columns = mapped(self._order * self._free, np.dtype(np.int32)).reshape(self._order, self._free)
        self._slabs.append((columns, mapped(self._free, self._dtype)))

    def add(self, columns: Indices, values: Values) -> Nonzeros | None:
        """Copy nonzeros into the pile; return those beyond the limit, or None."""
        taken = copy_to(self.reserve(values.size), columns, values)
        return None if taken == values.size else (columns[:, taken:], values[taken:])

    def take(self) -> Nonzeros:
        """Return all nonzeros and empty the pile."""
        if len(self._slabs) == 1:
            columns, values = self._slabs.pop()
            taken = _close_gaps(columns, self.size), values[: self.size]
        else:
            whole = Pile(self._order, self._dtype, self.size, self.size)
            while self._slabs:  # frees each slab once it is copied
                columns, values = self._slabs.popleft()
                used = values.size - (0 if self._slabs else self._free)
                whole.add(columns[:, :used], values[:used])
            taken = whole.take() if self.size else _empty(self._order, self._dtype)
        self._free = self.size = 0
        return taken


def copy_to(targets: Sequence[Nonzeros], columns: Indices, values: Values) -> int:
    """Copy nonzeros to reserved arrays, in order; return the number copied."""
    at = 0
    for to_columns, to_values in targets:
        stop = at + to_values.size
        to_columns[:], to_values[:] = columns[:, at:stop], values[at:stop]
        at = stop
    return at


def _empty(order: int, dtype: FloatDType) -> Nonzeros:
    return np.empty((order, 0), np.int32), np.empty(0, dtype)


def _close_gaps(columns: Indices, size: int) -> Indices:
    """Move the first `size` elements of each row together, so that the rows are contiguous; return them."""
    order, width = columns.shape
    flat = columns.reshape(-1)
    memory = flat.data  # memory views move overlapping ranges, NumPy would copy
    for m in range(1, order if size < width else 0):
        memory[m * size : (m + 1) * size] = memory[m * width : m * width + size]
    return flat[: order * size].reshape(order, size)


def mapped(size: int, dtype: np.dtype[Element]) -> NDArray[Element]:
    """Return an array in its own memory mapping, so that freed memory returns to the system at once."""
    mapping = mmap.mmap(-1, max(1, size * dtype.itemsize), mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS)
    with suppress(AttributeError, OSError):  # not available on every system
        mapping.madvise(mmap.MADV_HUGEPAGE)
    return np.frombuffer(mapping, dtype, size)
