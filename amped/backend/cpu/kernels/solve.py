"""How a CPU solves rows of factor matrices: NumPy's matrix products, and one pass for all else."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

from ...base import Array
from ...rows import block_rows, blocks_of
from ...solve import Solver, Sums, Takes
from .. import small
from ..device import CpuDevice


class HostSolver:
    """Solves blocks of rows; suits all. See `Solver`."""

    name = "rows"
    allocates = False

    def suits(self, rank: int, dtype: np.dtype[Any]) -> bool:
        return True

    def prepare(self, rank: int, dtype: np.dtype[Any]) -> None:
        """See `Solver`: what is compiled is kept on disk."""

    def bytes(self, rows: int, rank: int) -> Takes:
        return Takes(8 * rank * (min(rows, block_rows(rank)) + 4 * rank))

    def make(self, rows: int, rank: int, dtype: np.dtype[Any]) -> tuple[NDArray[np.float64], NDArray[np.float64]]:
        """See `Solver`: room for a block of rows, and for its Gram matrix."""
        return np.empty((min(rows, block_rows(rank)), rank)), np.empty((rank, rank))

    def run(self, made: Any, source: Array, inverse: Array, target: Array, sums: Sums) -> None:
        solved, gram = made
        for block in blocks_of(len(source), block_rows(source.shape[1])):
            rows = np.matmul(source[block], inverse, out=solved[: block.stop - block.start])
            small.put(rows, source[block], target[block], sums.largest, sums.dots)
            np.add(sums.gram, np.matmul(rows.T, rows, out=gram), out=sums.gram)


def providers(device: CpuDevice) -> Sequence[Solver]:
    """Return the solvers of the family."""
    return [HostSolver()]
