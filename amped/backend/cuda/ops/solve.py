"""Rows of factor matrices, solved in one pass over the MTTKRP: compiling and launching ``solve.cu``."""

from __future__ import annotations

from collections.abc import Sequence
from functools import cache
from typing import Any, NamedTuple

import cupy
import numpy as np

from partitioner.cuda.code import allow_shared, load, prepare
from partitioner.cuda.cubins import CudaSource

from ...device import Array
from ...ops.solve import SOLVE, Solver, SolverBytes, Sums
from ..device import CudaDevice
from ..launches.rows_large import ProductSolver
from ..source import ALONE, REALS, unit

SIDE, ROWS, THREADS = 8, 32, 256  # as in solve.cu
MOST_COLUMNS = 64  # a warp has its share of the Gram matrix in registers; of more, products of cuBLAS are faster
LEAST_CAPABILITY = 80  # ten times: tensor cores compute in double precision
BLOCKS = 2  # of threads on a multiprocessor: more leave more to add up
FEWEST = 2 * ROWS  # rows of a block: its part takes as much as rank + 2 rows
NOWHERE = np.uint64(0)
ONCE, APART = np.int32(0), np.int64(0)  # rows are solved for the first time; of one run alone


def shared_bytes(rank: int) -> int:
    """Return the shared memory of a block of threads: the inverse, and a tile of rows before and after."""
    span = -(-rank // SIDE) * SIDE
    return 8 * (span + 2 * ROWS) * (span + (12 if span % 16 else 4))


class SolverWorkspace(NamedTuple):
    """Compiled code, and room for the parts that blocks of threads add up, (blocks, R + 2, R)."""

    solve_rows: Any
    add_parts: Any
    parts: Array


class FusedSolver:
    """Solves rows in one pass over the MTTKRP; see `Solver`."""

    name = "fused"
    allocates = False

    def __init__(self, device: CudaDevice) -> None:
        self._device, self._limits, self._number = device, device.limits, device.number

    def suits(self, rank: int, dtype: np.dtype[Any]) -> bool:
        capable = self._device.capability >= LEAST_CAPABILITY
        return capable and rank <= MOST_COLUMNS and shared_bytes(rank) <= self._limits.shared

    def prepare(self, rank: int, dtype: np.dtype[Any]) -> None:
        prepare([adding_unit(rank, dtype)])

    def bytes(self, rows: int, rank: int) -> SolverBytes:
        """See `Solver`: the parts, and small matrices."""
        return SolverBytes(8 * rank * (self._blocks(rows, rank) * (rank + 2) + 4 * rank))

    def make(self, rows: int, rank: int, dtype: np.dtype[Any]) -> SolverWorkspace:
        parts = cupy.empty((max(1, self._blocks(rows, rank)), rank + 2, rank), np.float64)
        return SolverWorkspace(*_compiled(rank, dtype, self._number), parts)

    def _blocks(self, rows: int, rank: int) -> int:
        """Return how many blocks of threads solve so many rows."""
        return min(-(-rows // FEWEST), self._limits.processors * min(BLOCKS, self._limits.shared // shared_bytes(rank)))

    def run(self, made: SolverWorkspace, source: Array, inverse: Array, target: Array, sums: Sums) -> None:
        """See `Solver`; rows on the current stream, sums beside it: the next MTTKRP wants rows alone."""
        rows, rank = source.shape
        if not rows:
            return
        blocks = self._blocks(rows, rank)
        strides = [np.int64(matrix.strides[0] // matrix.itemsize) for matrix in (source, target)]
        arguments = ALONE, ONCE, source, strides[0], inverse, target, strides[1], np.int64(rows), made.parts
        made.solve_rows((blocks,), (THREADS,), arguments, shared_mem=shared_bytes(rank))
        grid = -(-(rank + 2) * rank // THREADS)
        dots = NOWHERE if sums.dots is None else sums.dots
        with self._device.side_stream():
            numbers = made.parts, np.int32(blocks), sums.gram, dots, sums.largest, APART
            made.add_parts((grid,), (THREADS,), (ALONE, ONCE, *numbers))


@SOLVE.provider("cuda")
def providers(device: CudaDevice) -> Sequence[Solver]:
    """Return the solvers of the operation; the last one suits all."""
    return [FusedSolver(device), ProductSolver(device)]


def adding_unit(rank: int, dtype: np.dtype[Any]) -> CudaSource:
    return unit("solve", {"RANK": rank, "REAL": REALS[dtype]})


def adder(rank: int, dtype: np.dtype[Any], device: int) -> Any:
    """Return the compiled code that adds up the parts of `SolverWorkspace`."""
    return _compiled(rank, dtype, device)[1]


@cache
def _compiled(rank: int, dtype: np.dtype[Any], device: int) -> tuple[Any, Any]:
    module = load(adding_unit(rank, dtype))
    function = module.get_function("solve")
    allow_shared(function)
    return function, module.get_function("add_parts")
