"""How a CPU solves rows of factor matrices: NumPy's matrix products, one thread for each, and one pass for all else.

BLAS has no threads of its own here: for 20 milliseconds after a product they look for the next one, and keep the cores
from the MTTKRP that follows.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from functools import cached_property
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from ...ops.solve import SOLVE, Solver, SolverBytes, Sums
from ...rows import block_rows, blocks_of
from ..device import CpuDevice
from ..kernels import normal_equations

PART_ROWS = 4096  # fewer take less time than a thread takes to begin
MOST_PARTS = 16  # each has sums of its own

Matrix = NDArray[Any]


class PartScratch(NamedTuple):
    """What a part of the rows needs: a block of rows, (rows, R), a Gram matrix, and sums of its own."""

    rows: Matrix
    gram: Matrix
    sums: Sums


Work = Callable[[PartScratch, slice, Sums], None]
"""Works on some of the rows with the room of a part, and adds up what it finds."""


class PartitionedSolver:
    """Works on parts of the rows side by side, the same parts whatever the threads."""

    part_rows = PART_ROWS

    def __init__(self, threads: int) -> None:
        self._threads = threads

    def suits(self, rank: int, dtype: np.dtype[np.floating]) -> bool:
        return True

    def prepare(self, rank: int, dtype: np.dtype[np.floating]) -> None:
        """See `Solver`: what is compiled is kept on disk."""

    def bytes(self, rows: int, rank: int) -> SolverBytes:
        return SolverBytes(8 * rank * self._parts(rows) * (self._block(rows, rank) + 2 * rank + 2))

    def make(self, rows: int, rank: int, dtype: np.dtype[np.floating]) -> list[PartScratch]:
        """See `Solver`: room for each part."""
        block = self._block(rows, rank)
        return [_part_scratch(block, rank) for _ in range(self._parts(rows))]

    def _parts(self, rows: int) -> int:
        return max(1, min(MOST_PARTS, rows // self.part_rows))

    def _block(self, rows: int, rank: int) -> int:
        """Return the rows that a part solves at a time."""
        parts = self._parts(rows)
        return max(1, min(-(-rows // parts), block_rows(rank) // parts))

    def in_parts(self, made: list[PartScratch], rows: int, sums: Sums, work: Work) -> None:
        """Do `work` on all rows, and add up what it has added up."""
        count = min(len(made), self._parts(rows))
        if count == 1:
            work(made[0], slice(0, rows), sums)
            return
        ends = [rows * k // count for k in range(count + 1)]
        own = [room.sums if sums.dots is not None else room.sums._replace(dots=None) for room in made]

        def part(k: int) -> None:
            for total in own[k]:
                if total is not None:
                    total.fill(0)
            work(made[k], slice(ends[k], ends[k + 1]), own[k])

        list(self._pool.map(part, range(count)) if self._threads > 1 else map(part, range(count)))
        for each in own[:count]:  # in order, so that sums are the same every time
            sums.gram[...] += each.gram
            np.maximum(sums.largest, each.largest, out=sums.largest)
            if sums.dots is not None:
                sums.dots[...] += each.dots

    @cached_property
    def _pool(self) -> ThreadPoolExecutor:
        return ThreadPoolExecutor(self._threads, "amped-solve")


class HostSolver(PartitionedSolver):
    """Solves rows by a product of matrices; suits all. See `Solver`."""

    name = "rows"
    allocates = False

    def run(self, made: list[PartScratch], source: Matrix, inverse: Matrix, target: Matrix, sums: Sums) -> None:
        def work(room: PartScratch, rows: slice, own: Sums) -> None:
            _solve(room, source[rows], inverse, target[rows], own)

        self.in_parts(made, len(source), sums, work)


@SOLVE.provider("cpu")
def providers(device: CpuDevice) -> Sequence[Solver]:
    """Return the solvers of the operation."""
    return [HostSolver(device.threads.count)]


def _solve(room: PartScratch, source: Matrix, inverse: Matrix, target: Matrix, sums: Sums) -> None:
    for block in blocks_of(len(source), len(room.rows)):
        rows = np.matmul(source[block], inverse, out=room.rows[: block.stop - block.start])
        normal_equations.put(rows, source[block], target[block], sums.largest, sums.dots)
        np.add(sums.gram, np.matmul(rows.T, rows, out=room.gram), out=sums.gram)


def _part_scratch(block: int, rank: int) -> PartScratch:
    sums = Sums(np.zeros((rank, rank)), np.zeros(rank), np.zeros(rank))
    return PartScratch(np.empty((block, rank)), np.empty((rank, rank)), sums)
