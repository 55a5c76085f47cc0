"""A sparse tensor unfolded in one mode, on the hosts of all ranks, for computing spectra.

Some of the other modes may already be compressed by factor matrices, which all ranks hold. Each rank has whole groups
of nonzeros (see `grouped`), so that neither a matrix of the squared length of the mode nor one as wide as the
unfolding is needed.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping

import numpy as np
from numpy.typing import NDArray

from partitioner.host.threads import fair_threads, parallel_map
from partitioner.sorting.sort import stable_argsort

from ...backend.blas import scipy_linalg
from ...parallel.mpi import Comm
from ..sources.protocols import SparseSource
from .grouped import LARGE, add_grams, add_products, add_rows, group_starts
from .whole_rows import cut_by_rows, load_rows

Matrix = NDArray[np.float64]
DOUBLE = np.dtype(np.float64)
COPIES = 1 << 30  # bytes at most of the sums of all threads


class Unfolded:
    """A tensor ``X x_m U_m^T ...`` unfolded in a mode; construction and all methods are collective.

    Parameters
    ----------
    source : SparseSource
    comm : Comm
    mode : int
    done : mapping of int to (I_m, R_m) arrays
        The factor matrices of the compressed modes.
    """

    def __init__(self, source: SparseSource, comm: Comm, mode: int, done: Mapping[int, Matrix]) -> None:
        self._comm, self._threads = comm, fair_threads(comm)
        self.length, order = source.shape[mode], len(source.shape)
        left = [m for m in range(order) if m != mode and m not in done]
        along, cut = cut_by_rows(source, comm, left or [mode])
        columns, self._values = load_rows(source, comm, along, cut, DOUBLE)
        if left:
            by = stable_argsort([columns[m] for m in left], [source.shape[m] for m in left])
            columns, self._values = [column[by] for column in columns], self._values[by]
        self._rows = columns[mode]
        self._columns = tuple(columns[m] for m in sorted(done))
        self._factors = tuple(np.ascontiguousarray(done[m], DOUBLE) for m in sorted(done))
        self.width = int(np.prod([float(f.shape[1]) for f in self._factors]))
        empty = np.zeros(1, np.int64)
        self._starts = group_starts(tuple(columns[m] for m in left)) if left and self._values.size else empty
        self._owned = None if left else slice(int(cut.rows[comm.rank]), int(cut.rows[comm.rank + 1]))
        self._cut = cut

    @property
    def last(self) -> bool:
        """Whether all other modes are compressed: the matrix has `width` columns."""
        return self._owned is not None

    @property
    def _weights(self) -> tuple[object, ...]:
        """The arguments of the kernels that describe nonzeros; a factor matrix of ones if no mode is compressed."""
        if self._columns:
            return self._rows, self._values, self._columns, self._factors, self.width
        nothing = np.zeros(self._rows.size, np.int32)
        return self._rows, self._values, (nothing,), (np.ones((1, 1)),), 1

    def gram(self) -> Matrix:
        """Return the product of the matrix and its transpose, (length, length)."""

        def work(begin: int, end: int, out: Matrix) -> None:
            add_grams(begin, end, self._starts, *self._weights, out)

        if self.last:
            mine = self.rows()
            whole = np.zeros((self.length, self.width))
            whole[self._owned] = mine
            self._comm.all_reduce(whole, "sum")
            return whole @ whole.T
        if min(int(np.diff(self._starts).max(initial=0)), self.length) * self.width > LARGE:
            scipy_linalg()  # Numba's matrix product needs it, and would import more modules with it
        return self._summed(work, (self.length, self.length))

    def products(self, basis: Matrix) -> Matrix:
        """Return the product of `gram` and a basis, (length, columns), without computing `gram`."""

        def work(begin: int, end: int, out: Matrix) -> None:
            add_products(begin, end, self._starts, *self._weights, basis, out)

        if self.last:
            mine = self.rows()
            across = mine.T @ basis[self._owned]
            self._comm.all_reduce(across, "sum")
            return self.gathered(mine @ across)
        return self._summed(work, basis.shape)

    def rows(self) -> Matrix:
        """Return the rows of the matrix that this rank owns; only if `last`."""
        assert self._owned is not None
        first, count = self._owned.start, self._owned.stop - self._owned.start
        out = np.zeros((count, self.width))
        add_rows(0, self._values.size, *self._weights, first, out)
        return out

    def gathered(self, rows: Matrix) -> Matrix:
        """All-gather owned rows, as returned by `rows`, into the whole matrix."""
        whole = np.empty((self.length, rows.shape[1]))
        whole[self._owned] = rows
        self._comm.all_gather_rows(whole, self._cut.rows[:-1], self._cut.rows[1:])
        return whole

    def _summed(self, work: Callable[[int, int, Matrix], object], shape: tuple[int, ...]) -> Matrix:
        """Return the sum of `work` over the groups of all ranks; each thread has its own sums."""
        groups = self._starts.size - 1
        threads = max(1, min(self._threads, groups, COPIES // (8 * int(np.prod(shape)))))
        cuts = np.searchsorted(self._starts, [int(self._starts[-1]) * t // threads for t in range(threads + 1)])
        cuts[0], cuts[-1] = 0, groups

        def part(number: int) -> Matrix:
            out = np.zeros(shape)
            work(int(cuts[number]), int(cuts[number + 1]), out)
            return out

        parts = parallel_map(part, range(threads), threads)
        total = parts[0]
        for other in parts[1:]:
            total += other
        self._comm.all_reduce(total, "sum")
        return total
