"""Non-negative rows, solved in one pass over the MTTKRP: ``nonnegative.cu`` and ``nonnegative_wide.cu``."""

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
from ..source import ALONE
from . import solve

BLOCKS = 2  # thread blocks per multiprocessor; more increase the number of partial sums
MOST_COLUMNS = 128  # a warp holds a row in registers
LANES, WARPS, SIDE = 32, THREADS // 32, 8  # as in the sources


class HalsSolver:
    """Solves several rows or one row with a warp; see `NonnegativeSolver`."""

    name = "hals"
    allocates = False

    def __init__(self, device: CudaDevice) -> None:
        self._limits, self._device = device.limits, device

    def suits(self, rank: int, dtype: FloatDType) -> bool:
        return rank <= MOST_COLUMNS and shared_bytes(rank, self._device) <= self._limits.shared

    def prepare(self, rank: int, dtype: FloatDType) -> None:
        prepare([sweeping_unit(rank, dtype, file_of(rank, self._device))])

    def bytes(self, rows: int, rank: int) -> SolverBytes:
        return SolverBytes(8 * rank * self._blocks(rows, rank) * (rank + 2))

    def make(self, rows: int, rank: int, dtype: FloatDType) -> FusedRows:
        return sweeping_rows(self._device, rank, dtype, self._blocks(rows, rank), self._together(rank))

    def _blocks(self, rows: int, rank: int) -> int:
        """Return the number of thread blocks that solve `rows` rows."""
        fitting = max(1, self._limits.shared // shared_bytes(rank, self._device))
        return min(-(-rows // self._together(rank)), self._limits.processors * min(BLOCKS, fitting))

    def _together(self, rank: int) -> int:
        """Return the rows that a thread block solves at once."""
        return WARPS if is_wide(rank, self._device) else WARPS * SIDE

    def run(self, fused: FusedRows, source: Array, system: System, sweeps: int, target: Array, sums: Sums) -> None:
        fused.run(source, operands(system, sweeps, sums), target, sums)


@NONNEGATIVE.provider("cuda")
def providers(device: CudaDevice) -> Sequence[NonnegativeSolver]:
    """Return the solvers of the operation; the last one supports all ranks."""
    return [HalsSolver(device), ColumnSolver(device)]


def operands(system: System, sweeps: int, sums: Sums) -> tuple[object, ...]:
    """Return what `FusedRows.run` needs for non-negative rows."""
    return *system, np.int32(sweeps), np.int32(sums.dots is not None)


def is_wide(rank: int, device: CudaDevice) -> bool:
    """Return whether a warp solves a row, instead of several with tensor cores."""
    return rank > solve.MOST_COLUMNS or device.capability < solve.LEAST_CAPABILITY


def file_of(rank: int, device: CudaDevice) -> str:
    """Return the name of the CUDA source."""
    return "nonnegative_wide" if is_wide(rank, device) else "nonnegative"


def shared_bytes(rank: int, device: CudaDevice) -> int:
    """Return the shared memory of a thread block: the Gram matrix, and rows of each warp."""
    if is_wide(rank, device):
        return 8 * -(-rank // LANES) * LANES * (rank + WARPS)
    span = -(-rank // SIDE) * SIDE
    return 8 * (span * (span + SIDE + 3) + WARPS * SIDE * (span + 2))


def sweeping_unit(rank: int, dtype: FloatDType, file: str, batch: bool = False) -> CudaSource:
    return rows_unit(file, rank, dtype, batch)


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
    functions = _compiled(rank, dtype, file_of(rank, device), places > 1, device.number)
    return FusedRows(device, *functions, shared_bytes(rank, device), blocks, least, rank, places, runs)


@cache
def _compiled(rank: int, dtype: FloatDType, file: str, batch: bool, device: int) -> tuple[CudaFunction, CudaFunction]:
    return functions_of(sweeping_unit(rank, dtype, file, batch), "hals")
