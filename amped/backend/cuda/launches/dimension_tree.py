"""Products of order-3 blocks with one factor matrix on a GPU by ``dimension_tree.cu``. See `DimensionTreeSweep`."""

from __future__ import annotations

from functools import cache

import cupy
import numpy as np

from partitioner.cuda.code import load
from partitioner.cuda.cubins import CudaFunction

from ...device import Array
from ...ops.dense import BlockForm
from .. import blas
from ..code.dense import macros
from ..code.dimension_tree import MOST_BLOCKS, ROWS, VECTOR, WARP, last_bytes, pair_macros
from ..source import unit

THREADS = 256  # as in dimension_tree.cu
LEAST_CHUNK = 32  # rows per chunk, at least


class PairProducts:
    """See `Products`."""

    def __init__(self, form: BlockForm, scratch: Array, device: int) -> None:
        """`scratch`, float64, is used for partial sums and a factor matrix; `device` is the number of the device."""
        self._columns, self._last = form.stride, form.lengths[-1]
        end = last_bytes(form) // scratch.itemsize
        self._wide, self._parts = scratch[:end].reshape(end // form.stride, form.stride), scratch[end:]
        self._contract, self._add_up = _functions(form, device)

    def whole(self, block: Array) -> Array:
        if block.shape[2] == self._last:
            return block
        return cupy.lib.stride_tricks.as_strided(block, (*block.shape[:2], self._last), block.strides)

    def multiply(self, matrix: Array, factor: Array, out: Array, adds: bool, transposed: bool) -> None:
        depth = matrix.shape[0 if transposed else 1]
        blas.multiply(matrix, self._padded(factor, depth), out, adds, transposed)

    def multiply_each(self, matrices: Array, factor: Array, out: Array, transposed: bool) -> None:
        depth = matrices.shape[1 if transposed else 2]
        blas.multiply_each(matrices, self._padded(factor, depth), out, transposed)

    def _padded(self, factor: Array, rows: int) -> Array:
        """Return a factor matrix padded with zero rows."""
        if len(factor) == rows:
            return factor
        wide = self._wide[:rows]
        wide[: len(factor)], wide[len(factor) :] = factor, 0
        return wide

    def contract(
        self, partial: Array, lengths: tuple[int, int], at: int, factor: Array, out: Array, adds: bool
    ) -> None:
        columns, rows, count = self._columns, min(lengths[at], len(out)), min(lengths[1 - at], len(factor))
        row_step, sum_step = (1, lengths[1]) if at else (lengths[1], 1)
        across, down = -(-columns * factor.itemsize // (WARP * VECTOR)), -(-rows // ROWS)
        chunks = max(1, min(-(-MOST_BLOCKS // (across * down)), count // LEAST_CHUNK))
        chunk = -(-count // chunks)
        chunks = -(-count // chunk)
        target, numbers = (out if chunks == 1 else self._parts), (np.int32(columns), np.int32(rows), np.int32(count))
        steps = np.int64(row_step), np.int64(sum_step), np.int32(chunk), np.int32(adds and chunks == 1)
        self._contract((across * down, chunks), (THREADS,), (partial, factor, *numbers, *steps, target))
        if chunks > 1:
            each = rows * columns
            sums = np.int64(each), np.int32(chunks), np.int32(adds)
            self._add_up((-(-each // THREADS),), (THREADS,), (self._parts, *sums, out))


@cache
def _functions(form: BlockForm, device: int) -> tuple[CudaFunction, CudaFunction]:
    pair, dense = load(unit("dimension_tree", pair_macros(form))), load(unit("dense", macros(form)))
    return pair.get_function("contract_pair"), dense.get_function("add_up")
