"""Rows of factor matrices, solved in one pass over the MTTKRP: compiling and launching ``solve.cu``."""

from __future__ import annotations

from collections.abc import Sequence
from functools import cache

import numpy as np

from partitioner.array_types import FloatDType
from partitioner.cuda.code import prepare
from partitioner.cuda.cubins import CudaFunction, CudaSource

from ...device import Array
from ...ops.solve import SOLVE, Solver, SolverBytes, Sums
from ..device import CudaDevice
from ..launches.fused_rows import FusedRows, functions_of, rows_unit
from ..launches.rows_large import ProductSolver
from ..source import ALONE

MOST_COLUMNS = 64  # warps hold parts of the Gram matrix in registers; with more, cuBLAS is faster
LEAST_CAPABILITY = 80  # compute capability 8.0: tensor cores support double precision
BLOCKS = 2  # thread blocks per multiprocessor; more increase the number of partial sums
FEWEST = 64  # rows per thread block, whose partial sums cost as much as rank + 2 rows


class FusedSolver:
    """Solves rows in one pass over the MTTKRP; see `Solver`."""

    name = "fused"
    allocates = False

    def __init__(self, device: CudaDevice) -> None:
        self._device = device

    def suits(self, rank: int, dtype: FloatDType) -> bool:
        return self._device.capability >= LEAST_CAPABILITY and rank <= MOST_COLUMNS

    def prepare(self, rank: int, dtype: FloatDType) -> None:
        prepare([solving_unit(rank, dtype)])

    def bytes(self, rows: int, rank: int) -> SolverBytes:
        """See `Solver`: partial sums and small matrices."""
        return SolverBytes(8 * rank * (self._blocks(rows) * (rank + 2) + 4 * rank))

    def make(self, rows: int, rank: int, dtype: FloatDType) -> FusedRows:
        return solving_rows(self._device, rank, dtype, self._blocks(rows), FEWEST)

    def _blocks(self, rows: int) -> int:
        return blocks_of(rows, self._device)

    def run(self, fused: FusedRows, source: Array, inverse: Array, target: Array, sums: Sums) -> None:
        fused.run(source, operands(inverse, sums), target, sums)


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
    functions = _compiled(rank, dtype, places > 1, device.number)
    return FusedRows(device, *functions, 0, blocks, least, rank, places, runs)


def operands(inverse: Array, sums: Sums) -> tuple[object, ...]:
    """Return what `FusedRows.run` needs to solve rows by inverses."""
    return inverse, np.int32(sums.dots is not None)


@cache
def _compiled(rank: int, dtype: FloatDType, batch: bool, device: int) -> tuple[CudaFunction, CudaFunction]:
    return functions_of(solving_unit(rank, dtype, batch), "solve")


def blocks_of(rows: int, device: CudaDevice) -> int:
    """Return the number of thread blocks that share `rows` rows."""
    return min(-(-rows // FEWEST), device.limits.processors * BLOCKS)
