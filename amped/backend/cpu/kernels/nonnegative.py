"""How a CPU solves rows without negative numbers: parts of them side by side, as `solve` does."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from ...nonnegative import NonnegativeSolver, System
from ...rows import blocks_of
from ...solve import Sums
from .. import hals
from ..device import CpuDevice
from .solve import InParts, Matrix, Room


class HostHals(InParts):
    """See `NonnegativeSolver`; suits all."""

    name = "hals"
    allocates = False
    part_rows = 256  # each takes a microsecond or more

    def run(self, made: list[Room], source: Matrix, system: System, sweeps: int, target: Matrix, sums: Sums) -> None:
        def work(room: Room, part: slice, own: Sums) -> None:
            right, left = source[part], target[part]
            for block in blocks_of(len(right), len(room.rows)):
                rows = room.rows[: block.stop - block.start]
                hals.solve(right[block], *system, sweeps, left[block], rows, own.largest, own.dots)
                np.add(own.gram, np.matmul(rows.T, rows, out=room.gram), out=own.gram)

        self.in_parts(made, len(source), sums, work)


def providers(device: CpuDevice) -> Sequence[NonnegativeSolver]:
    """Return the solvers of the family."""
    return [HostHals(device.threads.count)]
