"""Products of order-3 blocks with one factor matrix on a CPU, computed in pieces; see `Products`."""

from __future__ import annotations

import numpy as np

from ...device import Array
from ...ops.dense import BlockForm
from ...ops.dimension_tree import DimensionTree, tree_bytes, tree_of
from .khatri import contract, put
from .passes import DEPTH, HEIGHT, KEPT_SHARE, Matrix, Pool, SweepScratch, rounded


def tree_on_cpu(form: BlockForm) -> DimensionTree | None:
    """Return the dimension tree whose partial results, in double precision, fit the workspace; None if none fits."""
    return tree_of(form, form.workspace // KEPT_SHARE * (KEPT_SHARE - 1), form.rank, 8)


def scratch_bytes(form: BlockForm, tree: DimensionTree, threads: int) -> int:
    """Return the bytes of scratch memory: partial results, a float64 factor matrix, and pieces of products."""
    piece = rounded(HEIGHT * form.rank * form.dtype.itemsize)
    return rounded(tree_bytes(form, tree)) + rounded(max(form.lengths) * form.rank * 8) + threads * piece


class CpuProducts:
    """See `Products`. Each thread multiplies pieces with single-threaded BLAS; sums are in double precision."""

    def __init__(self, form: BlockForm, threads: int, scratch: Array) -> None:
        self._rank, self._pool, scratch_arrays = form.rank, Pool(threads), SweepScratch(scratch)
        self._factor = scratch_arrays.take((max(form.lengths), form.rank), np.float64)
        self._pieces = [scratch_arrays.take((HEIGHT, form.rank), form.dtype) for _ in range(threads)]

    def whole(self, block: Array) -> Array:
        """See `Products`: the block is contiguous as it is."""
        return block

    def multiply(self, matrix: Array, factor: Array, out: Array, adds: bool, transposed: bool) -> None:
        source, narrow = (matrix.T if transposed else matrix), factor[:, : self._rank]
        count = self._threads(matrix.size)

        def multiply_rows(part: int) -> None:
            low, high = len(source) * part // count, len(source) * (part + 1) // count
            self._product(source[low:high], narrow, out[low:high], adds, part)

        self._pool.run(multiply_rows, range(count))

    def multiply_each(self, matrices: Array, factor: Array, out: Array, transposed: bool) -> None:
        narrow, count_all = factor[:, : self._rank], len(matrices)
        count = min(count_all, self._threads(matrices.size))

        def multiply_some(part: int) -> None:
            for i in range(count_all * part // count, count_all * (part + 1) // count):
                self._product(matrices[i].T if transposed else matrices[i], narrow, out[i], False, part)

        self._pool.run(multiply_some, range(count))

    def _threads(self, elements: int) -> int:
        return self._pool.worth(elements * self._rank)

    def _product(self, matrix: Matrix, factor: Matrix, out: Matrix, adds: bool, thread: int) -> None:
        """Multiply a thread's rows, in pieces whose sums are accumulated in `out`."""
        height, depth = matrix.shape
        direct = matrix.dtype == out.dtype and not adds
        for p in range(0, height, HEIGHT):
            q = min(p + HEIGHT, height)
            if direct:
                np.matmul(matrix[p:q], factor, out=out[p:q])
                continue
            for k in range(0, depth, DEPTH):
                piece = self._pieces[thread][: q - p]
                np.matmul(matrix[p:q, k : k + DEPTH], factor[k : k + DEPTH], out=piece)
                put(out[p:q], piece, adds or k > 0)

    def contract(
        self, partial: Array, lengths: tuple[int, int], at: int, factor: Array, out: Array, adds: bool
    ) -> None:
        rows, count = self._factor[: len(factor)], self._threads(len(partial))
        rows[...] = factor[:, : self._rank]
        numbers, none = np.array(lengths, np.int64), np.zeros(2, np.int64)
        if not adds:
            out[:, : self._rank] = 0

        def contract_rows(part: int) -> None:
            low, high = lengths[at] * part // count, lengths[at] * (part + 1) // count
            contract(partial, 0, rows, none, numbers, at, low, high, out)

        self._pool.run(contract_rows, range(count))
