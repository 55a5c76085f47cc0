"""Non-negative rows, solved in one pass over the MTTKRP: compiling and launching ``nonnegative.cu``."""

from __future__ import annotations

from collections.abc import Sequence
from functools import cache

import numpy as np

from partitioner.array_types import FloatDType
from partitioner.cuda.code import prepare
from partitioner.cuda.cubins import CudaFunction, CudaSource

from ...device import Array
from ...normal_equations.hals import ColumnSolver
from ...ops.nonnegative import NONNEGATIVE, NonnegativeSolver, System
from ...ops.solve import SolverBytes, Sums
from ..device import CudaDevice
from ..launches.fused_rows import THREADS, FusedRows, functions_of, rows_unit
from ..source import ALONE, lanes

BLOCKS = 2  # thread blocks per multiprocessor; more increase the number of partial sums
MOST_COLUMNS = 128  # a warp holds a row in registers


def shared_bytes(rank: int) -> int:
    """Return the shared memory of a thread block: the Gram matrix, and a row per group of lanes."""
    span = -(-rank // lanes(rank)) * lanes(rank)
    return 8 * span * (rank + THREADS // lanes(rank))


class HalsSolver:
    """Solves each row with a warp or part of a warp; see `NonnegativeSolver`."""

    name = "hals"
    allocates = False

    def __init__(self, device: CudaDevice) -> None:
        self._limits, self._device = device.limits, device

    def suits(self, rank: int, dtype: FloatDType) -> bool:
        return rank <= MOST_COLUMNS and shared_bytes(rank) <= self._limits.shared

    def prepare(self, rank: int, dtype: FloatDType) -> None:
        prepare([sweeping_unit(rank, dtype)])

    def bytes(self, rows: int, rank: int) -> SolverBytes:
        return SolverBytes(8 * rank * self._blocks(rows, rank) * (rank + 2))

    def make(self, rows: int, rank: int, dtype: FloatDType) -> FusedRows:
        return sweeping_rows(self._device, rank, dtype, self._blocks(rows, rank), THREADS // lanes(rank))

    def _blocks(self, rows: int, rank: int) -> int:
        """Return the number of thread blocks that solve `rows` rows."""
        together, fitting = THREADS // lanes(rank), max(1, self._limits.shared // shared_bytes(rank))
        return min(-(-rows // together), self._limits.processors * min(BLOCKS, fitting))

    def run(self, fused: FusedRows, source: Array, system: System, sweeps: int, target: Array, sums: Sums) -> None:
        fused.run(source, (*system, np.int32(sweeps)), target, sums)


@NONNEGATIVE.provider("cuda")
def providers(device: CudaDevice) -> Sequence[NonnegativeSolver]:
    """Return the solvers of the operation; the last one supports all ranks."""
    return [HalsSolver(device), ColumnSolver(device)]


def sweeping_unit(rank: int, dtype: FloatDType, batch: bool = False) -> CudaSource:
    return rows_unit("nonnegative", rank, dtype, batch, LANES=lanes(rank))


def sweeping_rows(
    device: CudaDevice,
    rank: int,
    dtype: FloatDType,
    blocks: int,
    least: int,
    places: int = 1,
    runs: np.void = ALONE,
) -> FusedRows:
    """Return the solver for non-negative rows of one run or several; see `FusedRows`."""
    functions = _compiled(rank, dtype, places > 1, device.number)
    return FusedRows(device, *functions, shared_bytes(rank), blocks, least, rank, places, runs)


@cache
def _compiled(rank: int, dtype: FloatDType, batch: bool, device: int) -> tuple[CudaFunction, CudaFunction]:
    return functions_of(sweeping_unit(rank, dtype, batch), "hals")
