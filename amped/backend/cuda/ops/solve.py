"""Rows of factor matrices, solved in one pass over the MTTKRP: compiling and launching ``solve.cu``."""

from __future__ import annotations

from collections.abc import Sequence
from functools import cache

import numpy as np

from partitioner.array_types import FloatDType
from partitioner.cuda.code import load, prepare
from partitioner.cuda.cubins import CudaFunction, CudaSource

from ...device import Array
from ...ops.solve import SOLVE, Solver, SolverBytes, Sums
from ..device import CudaDevice
from ..launches.fused_rows import FusedRows, function_of, rows_unit
from ..launches.rows_large import ProductSolver
from ..source import ALONE

SIDE, ROWS = 8, 32  # as in solve.cu
MOST_COLUMNS = 64  # warps hold parts of the Gram matrix in registers; with more, cuBLAS is faster
LEAST_CAPABILITY = 80  # compute capability 8.0: tensor cores support double precision
BLOCKS = 2  # thread blocks per multiprocessor; more increase the number of partial sums
FEWEST = 2 * ROWS  # rows per thread block, whose partial sums cost as much as rank + 2 rows


def shared_bytes(rank: int) -> int:
    """Return the shared memory of a thread block: the inverse, and tiles of input and output rows."""
    span = -(-rank // SIDE) * SIDE
    return 8 * (span + 2 * ROWS) * (span + (12 if span % 16 else 4))


class FusedSolver:
    """Solves rows in one pass over the MTTKRP; see `Solver`."""

    name = "fused"
    allocates = False

    def __init__(self, device: CudaDevice) -> None:
        self._device, self._limits = device, device.limits

    def suits(self, rank: int, dtype: FloatDType) -> bool:
        capable = self._device.capability >= LEAST_CAPABILITY
        return capable and rank <= MOST_COLUMNS and shared_bytes(rank) <= self._limits.shared

    def prepare(self, rank: int, dtype: FloatDType) -> None:
        prepare([solving_unit(rank, dtype)])

    def bytes(self, rows: int, rank: int) -> SolverBytes:
        """See `Solver`: partial sums and small matrices."""
        return SolverBytes(8 * rank * (self._blocks(rows, rank) * (rank + 2) + 4 * rank))

    def make(self, rows: int, rank: int, dtype: FloatDType) -> FusedRows:
        return solving_rows(self._device, rank, dtype, self._blocks(rows, rank), FEWEST)

    def _blocks(self, rows: int, rank: int) -> int:
        """Return the number of thread blocks that solve `rows` rows."""
        return min(-(-rows // FEWEST), self._limits.processors * min(BLOCKS, self._limits.shared // shared_bytes(rank)))

    def run(self, fused: FusedRows, source: Array, inverse: Array, target: Array, sums: Sums) -> None:
        fused.run(source, (inverse,), target, sums)


@SOLVE.provider("cuda")
def providers(device: CudaDevice) -> Sequence[Solver]:
    """Return the solvers of the operation; the last one supports all ranks."""
    return [FusedSolver(device), ProductSolver(device)]


def solving_unit(rank: int, dtype: FloatDType, batch: bool = False) -> CudaSource:
    return rows_unit("solve", rank, dtype, batch)


def solving_rows(
    device: CudaDevice,
    rank: int,
    dtype: FloatDType,
    blocks: int,
    least: int,
    places: int = 1,
    runs: np.void = ALONE,
) -> FusedRows:
    """Return the solver for rows of one run or several, by inverses; see `FusedRows`."""
    solve, add_parts = compiled(rank, dtype, places > 1, device.number)
    return FusedRows(device, solve, add_parts, shared_bytes(rank), blocks, least, rank, places, runs)


@cache
def compiled(rank: int, dtype: FloatDType, batch: bool, device: int) -> tuple[CudaFunction, CudaFunction]:
    """Return the compiled functions that solve rows and add up the partial sums of `FusedRows`."""
    source = solving_unit(rank, dtype, batch)
    return function_of(source, "solve"), load(source).get_function("add_parts")
