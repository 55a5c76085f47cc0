"""Rows of factor matrices of large rank, solved by matrix products: compiling and launching ``rows_large.cu``."""

from __future__ import annotations

from functools import cache
from typing import NamedTuple

import cupy
import numpy as np

from partitioner.array_types import FloatDType
from partitioner.cuda.code import load, prepare
from partitioner.cuda.cubins import CudaFunction, CudaSource

from ...device import Array
from ...ops.solve import SolverBytes, Sums
from ...rows import block_rows, blocks_of
from ..blas import multiply, multiply_parts
from ..device import CudaDevice
from ..source import REALS, unit
from .device_matrices import strides_of

THREADS, COLUMNS = 256, 32  # as in rows_large.cu
LEAST = 32  # rows of a thread block, at least
MOST_BLOCKS = 256  # thread blocks for the same columns, whose partial sums are added by one thread
TALL, BROAD = 128, 64  # rows and columns of a product that a thread block computes
DEEP = 128  # rows of each of the summed products, at least
FILLING = 2  # thread blocks per multiprocessor
NOWHERE = np.uint64(0)


class LargeRowsWorkspace(NamedTuple):
    """Compiled code, and scratch memory for solved rows, (rows, R), parts of Gram matrices, and parts of other sums."""

    store: CudaFunction
    add: CudaFunction
    solved: Array
    grams: Array
    lines: Array


class ProductSolver:
    """Solves blocks of rows by cuBLAS products, for any rank. See `Solver`."""

    name = "products"
    allocates = False

    def __init__(self, device: CudaDevice) -> None:
        self._device, self._processors, self._number = device, device.limits.processors, device.number

    def suits(self, rank: int, dtype: FloatDType) -> bool:
        return True

    def prepare(self, rank: int, dtype: FloatDType) -> None:
        prepare([_unit(dtype)])

    def bytes(self, rows: int, rank: int) -> SolverBytes:
        """See `Solver`: small matrices and the workspace."""
        return SolverBytes(8 * rank * (4 * rank + sum(self._scratch_rows(rows, rank))))

    def _scratch_rows(self, rows: int, rank: int) -> tuple[int, int, int]:
        """Return the rows, of `rank` columns, of the scratch arrays: solved rows, Gram matrices, and sums."""
        together = min(rows, block_rows(rank))
        count = self._count(together, rank)
        return together + count, count * rank, 2 * MOST_BLOCKS

    def _count(self, rows: int, rank: int) -> int:
        """Return the number of products whose sum is the Gram matrix; one small product would leave processors idle."""
        blocks = -(-rank // TALL) * -(-rank // BROAD)
        return max(1, min(rows // DEEP, FILLING * self._processors // blocks))

    def make(self, rows: int, rank: int, dtype: FloatDType) -> LargeRowsWorkspace:
        scratch = [cupy.empty((lines, rank), np.float64) for lines in self._scratch_rows(rows, rank)]
        return LargeRowsWorkspace(*_compiled(dtype, self._number), *scratch)

    def run(self, made: LargeRowsWorkspace, source: Array, inverse: Array, target: Array, sums: Sums) -> None:
        """See `Solver`. Rows use the current stream, sums the side stream: the next MTTKRP needs only the rows."""
        for block in blocks_of(len(source), block_rows(source.shape[1])):
            self._device.wait_side()  # sums of the previous rows
            self._run(made, source[block], inverse, target[block], sums)

    def _run(self, made: LargeRowsWorkspace, source: Array, inverse: Array, target: Array, sums: Sums) -> None:
        rows, rank = source.shape
        count = self._count(rows, rank)
        padded_rows = -(-rows // count) * count  # equally many rows for each product
        multiply(source, inverse, made.solved[:rows], False, False)
        across = -(-rank // COLUMNS)
        blocks = min(-(-padded_rows // LEAST), MOST_BLOCKS, max(1, 8 * self._processors // across))
        strides = strides_of(source, target)
        numbers = np.int64(rows), np.int64(padded_rows), np.int32(rank), np.int32(sums.dots is not None)
        arguments = source, strides[0], made.solved, target, strides[1], *numbers, made.lines
        made.store((blocks, across), (THREADS,), arguments)
        with self._device.side_stream():
            self._add(made, made.solved[:padded_rows], count, blocks, sums)

    def _add(self, made: LargeRowsWorkspace, solved: Array, count: int, blocks: int, sums: Sums) -> None:
        """Add the Gram matrix of the stored rows, and the partial sums of the thread blocks."""
        rank = solved.shape[1]
        if count == 1:
            multiply(solved, solved, sums.gram, True, True, concurrent=True)
        else:
            multiply_parts(solved, solved, made.grams, count, rank, True, concurrent=True)
        entries = 2 * rank + (rank * rank if count > 1 else 0)
        dots = NOWHERE if sums.dots is None else sums.dots
        grams = made.grams, np.int32(count if count > 1 else 0)
        arguments = *grams, made.lines, np.int32(blocks), np.int32(rank), sums.gram, dots, sums.largest
        made.add((-(-entries // THREADS),), (THREADS,), arguments)


def _unit(dtype: FloatDType) -> CudaSource:
    return unit("rows_large", {"REAL": REALS[dtype]})


@cache
def _compiled(dtype: FloatDType, device: int) -> tuple[CudaFunction, CudaFunction]:
    module = load(_unit(dtype))
    return module.get_function("store"), module.get_function("add")
