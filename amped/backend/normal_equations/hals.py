"""HALS by operations on columns, for NumPy and CuPy. See `backend.ops.nonnegative`."""

from __future__ import annotations

from types import ModuleType

import numpy as np
from numpy.typing import NDArray

from partitioner.array_types import FloatDType

from ..device import Array, Device
from ..ops.nonnegative import System
from ..ops.solve import SolverBytes, Sums
from ..rows import add_gram, block_rows, blocks_of, down

Matrix = NDArray[np.float64]

BLOCKS = 4  # blocks of rows, in float64, that are in memory at a time
SETTLED = 1e-13  # sweeps stop when the change of a row, relative to its largest number, is below this


class ColumnSolver:
    """Updates one column of a block of rows at a time; supports all ranks. See `NonnegativeSolver`."""

    name = "columns"
    allocates = True

    def __init__(self, device: Device) -> None:
        self._device = device

    def suits(self, rank: int, dtype: FloatDType) -> bool:
        return True

    def prepare(self, rank: int, dtype: FloatDType) -> None:
        """See `NonnegativeSolver`: nothing is compiled."""

    def bytes(self, rows: int, rank: int) -> SolverBytes:
        return SolverBytes(0, 8 * rank * BLOCKS * min(rows, block_rows(rank)))

    def make(self, rows: int, rank: int, dtype: FloatDType) -> None:
        """See `NonnegativeSolver`: nothing is prepared."""

    def run(self, made: None, source: Array, system: System, sweeps: int, target: Array, sums: Sums) -> None:
        xp = self._device.xp
        columns = np.flatnonzero(np.diag(self._device.to_host(system.gram)) > 0).tolist()
        for block in blocks_of(len(source), block_rows(source.shape[1])):
            rows = target[block] * system.begin
            rights = source[block] * system.right
            rows[:, columns] *= (rights != 0).any(axis=1)[:, None]
            _sweep(xp, rows, rights, system.gram, columns, sweeps)
            target[block] = rows
            xp.maximum(sums.largest, down(xp, xp.max, xp.abs(rows)), out=sums.largest)
            add_gram(xp, target[block], sums.gram)
            if sums.dots is not None:
                sums.dots[...] += down(xp, xp.sum, source[block] * target[block])


def _sweep(xp: ModuleType, rows: Array, rights: Array, gram: Array, columns: list[int], sweeps: int) -> None:
    """Update `rows`, (rows, R) float64, in place."""
    for _ in range(sweeps):
        before = rows.copy()
        for r in columns:
            change = (rights[:, r] - rows @ gram[r]) / gram[r, r]
            rows[:, r] = xp.maximum(0.0, rows[:, r] + change)
        if not bool((xp.abs(rows - before) > SETTLED * xp.abs(rows).max(axis=1)[:, None]).any()):
            return


def sweep_columns(xp: ModuleType, rows: Array, right: Array, gram: Matrix, sweeps: int) -> None:
    """Update columns, which are the rows of `rows`, (R, n) float64, in place; see `System`.

    `right`, (R, n), is in the same memory; `gram` is in host memory. Columns whose diagonal entry is 0 are not changed.
    """
    pivots = gram.diagonal()
    live = np.flatnonzero(pivots > 0).tolist()
    others = np.where(np.eye(len(gram), dtype=bool), 0.0, gram)
    steps = [(row, right[r] / pivots[r], xp.asarray(others[r] / pivots[r])) for r, row in enumerate(rows) if r in live]
    for _ in range(sweeps):
        for row, target, change in steps:
            xp.maximum(target - change @ rows, 0.0, out=row)
