"""Non-negative least squares of rows on the CPU, in parallel parts like `solve`."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from ...ops.nonnegative import NONNEGATIVE, NonnegativeSolver, System
from ...ops.solve import Sums
from ...rows import blocks_of
from ..device import CpuDevice
from ..kernels import hals
from .solve import Matrix, PartitionedSolver, PartScratch, dots_of


class HostHals(PartitionedSolver):
    """See `NonnegativeSolver`; supports all ranks."""

    name = "hals"
    allocates = False
    part_rows = 256  # a row takes a microsecond or more

    def run(
        self, parts: list[PartScratch], source: Matrix, system: System, sweeps: int, target: Matrix, sums: Sums
    ) -> None:
        def work(scratch: PartScratch, part: slice, own: Sums) -> None:
            right, left = source[part], target[part]
            for block in blocks_of(len(right), len(scratch.rows)):
                rows = scratch.rows[: block.stop - block.start]
                hals.solve(right[block], *system, sweeps, left[block], rows, own.largest, dots_of(own))
                np.add(own.gram, np.matmul(rows.T, rows, out=scratch.gram), out=own.gram)

        self.in_parts(parts, len(source), sums, work)


@NONNEGATIVE.provider("cpu")
def providers(device: CpuDevice) -> Sequence[NonnegativeSolver]:
    """Return the solvers of the operation."""
    return [HostHals(device.threads.count)]
