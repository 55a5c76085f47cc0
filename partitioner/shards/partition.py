"""Partition of the nonzeros over ranks: one sorted copy per mode, cut by output index.

The scheme is that of AMPED (Wijeratne, Kannan and Prasanna, ICPP 2025, section 3.1): nonzeros are grouped by output
index, so parts write disjoint rows. There are two differences. Parts have equal numbers of nonzeros, not of rows. A row
too long for balance is split over several parts whose partial sums are reduced afterwards, so any tensor is balanced,
even a mode with a single row.
"""

from __future__ import annotations

from bisect import bisect_left, bisect_right
from dataclasses import dataclass
from functools import cached_property
from typing import Protocol

import numpy as np
from numpy.typing import NDArray

from ..array_types import FloatDType, Floats, Integers
from ..host.ranks import Ranks
from ..sorting.sort import Sort, sort_nonzeros
from ..tensors.columns import StoredColumn
from ..tensors.sparse import SparseTensor
from ..tensors.used_indices import is_long

BALANCE = 0.005  # a cut moves to a row boundary if that shifts less than this fraction of a part


class ModeCopy(Protocol):
    """The nonzeros sorted by the index of one mode (the output mode), then by the other modes in order."""

    def column(self, k: int) -> NDArray[np.int32]:
        """Indices of the `k`-th mode of ``mode_order``, (nnz,); column 0, the output indices, ascends."""

    @property
    def values(self) -> Floats:
        """Values, (nnz,)."""


def mode_order(order: int, mode: int) -> list[int]:
    """Return the order of columns in a mode copy: the output mode, then the input modes ascending."""
    return [mode, *(m for m in range(order) if m != mode)]


class SortedTensor:
    """The mode copy of a tensor in memory. For mode 0 it shares the tensor's arrays."""

    def __init__(
        self, tensor: SparseTensor, mode: int, dtype: FloatDType | None = None, sort: Sort = sort_nonzeros
    ) -> None:
        """Sort the tensor by `mode`; cast values to `dtype`, by default that of the tensor."""
        self._modes = mode_order(tensor.order, mode)
        self._columns, self._values = tensor.columns, tensor.values
        if mode:
            # The tensor is in lexicographic order, so a stable sort by the output index suffices.
            sorted_ = sort(tensor.columns, tensor.values, [mode], tensor.shape, dtype=dtype)
            self._columns, self._values = sorted_.columns, sorted_.values
        elif dtype is not None:
            self._values = tensor.values.astype(dtype, copy=False)

    def column(self, k: int) -> NDArray[np.int32]:
        """See `ModeCopy`."""
        column: NDArray[np.int32] = self._columns[self._modes[k]]
        return column

    @property
    def values(self) -> Floats:
        """See `ModeCopy`."""
        return self._values


@dataclass(frozen=True)
class Cut:
    """The nonzeros and output rows of one mode that each of `parts` ranks gets.

    Attributes
    ----------
    nonzeros : (parts + 1,) int64 array
        Part ``p`` computes the sorted nonzeros ``nonzeros[p]`` up to ``nonzeros[p + 1]``.
    rows : (parts + 1,) int64 array
        Part ``p`` owns the output rows ``rows[p]`` up to ``rows[p + 1]``; every row of the mode has one owner.
    heads : (parts,) int64 array
        Row of the part's first nonzeros if an earlier part owns that row, otherwise -1.
    """

    nonzeros: NDArray[np.int64]
    rows: NDArray[np.int64]
    heads: NDArray[np.int64]

    @cached_property
    def split_rows(self) -> NDArray[np.int64]:
        """The rows whose nonzeros lie in more than one part, ascending."""
        heads = self.heads[self.heads >= 0]
        return heads[np.diff(heads, prepend=-1) > 0]  # np.unique would import numpy.ma, in 20 ms

    @property
    def imbalance(self) -> float:
        """(largest - mean) / mean of the number of nonzeros per part."""
        counts = np.diff(self.nonzeros)
        return float(counts.max() / counts.mean() - 1)


class SortedRows:
    """Looks up rows and their nonzeros in ascending output indices."""

    def __init__(self, rows: NDArray[np.int32] | StoredColumn) -> None:
        self._rows, self.nnz = rows, rows.size

    def row(self, at: int) -> int:
        """Return the row of a nonzero."""
        return int(self._rows[at])

    def span(self, at: int) -> tuple[int, int]:
        """Return the begin and end of the nonzeros in the row of nonzero `at`."""
        row = self._rows[at]
        return bisect_left(self._rows, row), bisect_right(self._rows, row)


class CountedRows:
    """Like `SortedRows`, but from the number of nonzeros per nonempty row, without sorted nonzeros.

    Parameters
    ----------
    counts : (rows,) int64 array
        Numbers of nonzeros.
    rows : (rows,) array, optional
        Row numbers, ascending; by default 0, 1, ...
    """

    def __init__(self, counts: NDArray[np.int64], rows: Integers | None = None) -> None:
        self._rows = rows
        self.offsets = np.concatenate([np.zeros(1, np.int64), np.cumsum(counts, dtype=np.int64)])
        self.nnz = int(self.offsets[-1])

    def _at(self, at: int) -> int:
        return int(np.searchsorted(self.offsets, at, "right")) - 1

    def row(self, at: int) -> int:
        """See `SortedRows`."""
        return self._at(at) if self._rows is None else int(self._rows[self._at(at)])

    def span(self, at: int) -> tuple[int, int]:
        """See `SortedRows`."""
        k = self._at(at)
        return int(self.offsets[k]), int(self.offsets[k + 1])


class DistributedRows:
    """Like `SortedRows`, for nonzeros distributed over ranks in any order. Methods are collective.

    Rows are found by bisection, so memory and message sizes do not depend on the mode's length.
    """

    def __init__(self, rows: NDArray[np.int32], length: int, ranks: Ranks) -> None:
        self._rows, self._length, self._ranks = np.sort(rows), length, ranks
        self.nnz = sum(ranks.allgather(rows.size))

    def _below(self, row: int) -> int:
        """Return the number of nonzeros in rows before `row`."""
        return sum(self._ranks.allgather(int(np.searchsorted(self._rows, row, "left"))))

    def row(self, at: int) -> int:
        """See `SortedRows`."""
        return bisect_right(range(self._length), at, key=self._below) - 1

    def span(self, at: int) -> tuple[int, int]:
        """See `SortedRows`."""
        row = self.row(at)
        return self._below(row), self._below(row + 1)


def counted_rows(rows: NDArray[np.int32], length: int) -> CountedRows:
    """Count the nonzeros per row of a mode of `length` rows; memory is bounded by the number of nonzeros."""
    if is_long(length, rows.size):
        used, counts = np.unique(rows, return_counts=True)
        return CountedRows(counts, used)
    return CountedRows(np.bincount(rows, minlength=length))


Rows = SortedRows | CountedRows | DistributedRows


def equal_offsets(rows: NDArray[np.int32] | StoredColumn | Rows, parts: int) -> NDArray[np.int64]:
    """Cut sorted nonzeros into parts of equal size, at row boundaries where balance allows.

    Returns offsets (parts + 1,), ascending from 0 to nnz. Parts may be empty if there are few nonzeros.
    """
    rows = rows if isinstance(rows, Rows) else SortedRows(rows)
    return _near_rows(rows, np.array([rows.nnz * p // parts for p in range(parts + 1)], np.int64))


def _near_rows(rows: Rows, targets: NDArray[np.int64]) -> NDArray[np.int64]:
    """Move each offset to the nearest row boundary, if that is within `BALANCE` of a part."""
    offsets, parts = targets.copy(), targets.size - 1
    for p in range(1, parts):
        target = int(targets[p])
        if target < rows.nnz:
            nearest = min(rows.span(target), key=lambda end: abs(end - target))
            offsets[p] = nearest if abs(nearest - target) <= BALANCE * rows.nnz / parts else target
    return offsets


def even_offsets(offsets: NDArray[np.int64], seconds: NDArray[np.float64]) -> NDArray[np.int64]:
    """Return offsets of parts that take equal time, assuming equal time per nonzero within a current part.

    `seconds` (parts,) is the time of each part at the current `offsets` (parts + 1,).
    """
    clock = np.concatenate([np.zeros(1), np.cumsum(seconds)])
    even: NDArray[np.int64] = np.rint(np.interp(np.linspace(0, clock[-1], clock.size), clock, offsets)).astype(np.int64)
    return even


def cut_mode(
    rows: NDArray[np.int32] | StoredColumn | Rows, length: int, parts: int, targets: NDArray[np.int64] | None = None
) -> Cut:
    """Cut the nonzeros of a mode of `length` rows into `parts`, keeping rows whole where balance allows.

    Parts have equal size, or end near the `targets`, (parts + 1,) offsets.
    """
    rows = rows if isinstance(rows, Rows) else SortedRows(rows)
    offsets = equal_offsets(rows, parts) if targets is None else _near_rows(rows, targets)
    owned, heads = np.full(parts + 1, length, np.int64), np.full(parts, -1, np.int64)
    owned[0] = 0
    for p in range(1, parts):
        at = int(offsets[p])
        if at == rows.nnz:
            continue
        row, split = rows.row(at), at > rows.span(at)[0]
        owned[p] = row + split if at else 0
        if split and offsets[p + 1] > at:
            heads[p] = row
    return Cut(offsets, owned, heads)
