"""Rows without negative numbers, solved in one pass over the MTTKRP: compiling and launching ``nonnegative.cu``."""

from __future__ import annotations

from collections.abc import Sequence
from functools import cache
from typing import Any

import cupy
import numpy as np

from partitioner.cuda.code import allow_shared, load, prepare
from partitioner.cuda.cubins import CudaSource

from ...device import Array
from ...normal_equations.hals import ColumnSolver
from ...ops.nonnegative import NONNEGATIVE, NonnegativeSolver, System
from ...ops.solve import SolverBytes, Sums
from ..device import CudaDevice
from ..source import ALONE, REALS, lanes, unit
from .solve import APART, NOWHERE, ONCE, SolverWorkspace, adder, adding_unit

THREADS = 256  # as in nonnegative.cu
BLOCKS = 2  # of threads on a multiprocessor: more leave more to add up
MOST_COLUMNS = 128  # a row is in the registers of a warp


def shared_bytes(rank: int) -> int:
    """Return the shared memory of a block of threads: the Gram matrix, and a row of each group of lanes."""
    span = -(-rank // lanes(rank)) * lanes(rank)
    return 8 * span * (rank + THREADS // lanes(rank))


class HalsSolver:
    """Solves a row by the lanes of a warp, or a part of them; see `NonnegativeSolver`."""

    name = "hals"
    allocates = False

    def __init__(self, device: CudaDevice) -> None:
        self._limits, self._number, self._device = device.limits, device.number, device

    def suits(self, rank: int, dtype: np.dtype[Any]) -> bool:
        return rank <= MOST_COLUMNS and shared_bytes(rank) <= self._limits.shared

    def prepare(self, rank: int, dtype: np.dtype[Any]) -> None:
        prepare([_unit(rank, dtype), adding_unit(rank, dtype)])

    def bytes(self, rows: int, rank: int) -> SolverBytes:
        return SolverBytes(8 * rank * self._blocks(rows, rank) * (rank + 2))

    def make(self, rows: int, rank: int, dtype: np.dtype[Any]) -> SolverWorkspace:
        parts = cupy.empty((max(1, self._blocks(rows, rank)), rank + 2, rank), np.float64)
        return SolverWorkspace(_compiled(rank, dtype, self._number), adder(rank, dtype, self._number), parts)

    def _blocks(self, rows: int, rank: int) -> int:
        """Return how many blocks of threads solve so many rows."""
        together, fitting = THREADS // lanes(rank), max(1, self._limits.shared // shared_bytes(rank))
        return min(-(-rows // together), self._limits.processors * min(BLOCKS, fitting))

    def run(self, made: SolverWorkspace, source: Array, system: System, sweeps: int, target: Array, sums: Sums) -> None:
        rows, rank = source.shape
        if not rows:
            return
        blocks = self._blocks(rows, rank)
        strides = [np.int64(matrix.strides[0] // matrix.itemsize) for matrix in (source, target)]
        arguments = (
            ALONE, ONCE, source, strides[0], *system, np.int32(sweeps), target, strides[1], np.int64(rows), made.parts,
        )  # fmt: skip
        made.solve_rows((blocks,), (THREADS,), arguments, shared_mem=shared_bytes(rank))
        grid = -(-(rank + 2) * rank // THREADS)
        dots = NOWHERE if sums.dots is None else sums.dots
        with self._device.side_stream():
            numbers = made.parts, np.int32(blocks), sums.gram, dots, sums.largest, APART
            made.add_parts((grid,), (THREADS,), (ALONE, ONCE, *numbers))


@NONNEGATIVE.provider("cuda")
def providers(device: CudaDevice) -> Sequence[NonnegativeSolver]:
    """Return the solvers of the operation; the last one suits all."""
    return [HalsSolver(device), ColumnSolver(device)]


def _unit(rank: int, dtype: np.dtype[Any]) -> CudaSource:
    return unit("nonnegative", {"RANK": rank, "REAL": REALS[dtype], "LANES": lanes(rank)})


@cache
def _compiled(rank: int, dtype: np.dtype[Any], device: int) -> Any:
    function = load(_unit(rank, dtype)).get_function("hals")
    allow_shared(function)
    return function
