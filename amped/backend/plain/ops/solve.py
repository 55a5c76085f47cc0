"""Least-squares rows without compiled code."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from partitioner.array_types import FloatDType

from ...device import Array
from ...ops.solve import SOLVE, Solver, SolverBytes, Sums
from ...rows import block_rows, blocks_of
from ..device import PlainDevice


class PlainSolver:
    """Multiplies rows by the inverse matrix; supports all ranks. See `Solver`."""

    name = "rows"
    allocates = True

    def suits(self, rank: int, dtype: FloatDType) -> bool:
        return True

    def prepare(self, rank: int, dtype: FloatDType) -> None:
        """See `Solver`: nothing is compiled."""

    def bytes(self, rows: int, rank: int) -> SolverBytes:
        return SolverBytes(0, 8 * rank * 3 * min(rows, block_rows(rank)))

    def make(self, rows: int, rank: int, dtype: FloatDType) -> None:
        """See `Solver`: nothing is prepared."""

    def run(self, made: None, source: Array, inverse: Array, target: Array, sums: Sums) -> None:
        for block in blocks_of(len(source), block_rows(source.shape[1])):
            rows = source[block] @ inverse
            np.maximum(sums.largest, np.abs(rows).max(axis=0), out=sums.largest)
            target[block] = rows
            rows = target[block].astype(np.float64, copy=False)
            sums.gram[...] += rows.T @ rows
            if sums.dots is not None:
                sums.dots[...] += np.einsum("ir,ir->r", source[block], rows)


@SOLVE.provider("plain")
def providers(device: PlainDevice) -> Sequence[Solver]:
    """Return the solvers of the operation."""
    return [PlainSolver()]
