"""Rows of factor matrices on the CPU: NumPy's matrix products in parallel parts, and one pass for everything else.

BLAS runs single-threaded, because its threads spin for 20 ms after a product and so delay the next MTTKRP.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from functools import cached_property
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from partitioner.array_types import FloatDType, Floats

from ...ops.solve import SOLVE, Solver, SolverBytes, Sums
from ...rows import blocks_of
from ..device import CpuDevice
from ..kernels import normal_equations

PART_ROWS = 4096  # with fewer, starting a thread takes longer than the work
SAMPLED, EMPTY = 16, 0.75  # one row in 16 is sampled; matrices are hypersparse if at least this fraction is empty
MOST_PARTS = 16  # each has its own sums
BLOCK_BYTES = 1 << 19  # of the rows that a part solves at a time, which stay in a core's private cache
STACK, STACKED = 128, 64  # rows per product for up to 64 columns, because BLAS is faster at small products
NO_DOTS = np.empty(0)

Matrix = Floats


class PartScratch(NamedTuple):
    """Scratch of one part: a block of rows, (rows, R), a Gram matrix, and the part's sums."""

    rows: Matrix
    gram: Matrix
    sums: Sums


Work = Callable[[PartScratch, slice, Sums], None]
"""Computes some of the rows with the scratch of a part, and adds to its sums."""


class PartitionedSolver:
    """Computes parts of the rows in parallel; the parts are independent of the number of threads."""

    part_rows = PART_ROWS

    def __init__(self, threads: int) -> None:
        self._threads = threads

    def suits(self, rank: int, dtype: FloatDType) -> bool:
        return True

    def prepare(self, rank: int, dtype: FloatDType) -> None:
        """See `Solver`: compiled code is cached on disk."""

    def bytes(self, rows: int, rank: int) -> SolverBytes:
        return SolverBytes(8 * rank * self._parts(rows) * (self._block(rows, rank) + 2 * rank + 2))

    def make(self, rows: int, rank: int, dtype: FloatDType) -> list[PartScratch]:
        """See `Solver`: scratch of each part."""
        block = self._block(rows, rank)
        return [_part_scratch(block, rank) for _ in range(self._parts(rows))]

    def _parts(self, rows: int) -> int:
        return max(1, min(MOST_PARTS, rows // self.part_rows))

    def _block(self, rows: int, rank: int) -> int:
        """Return the number of rows that a part solves at a time."""
        return max(1, min(-(-rows // self._parts(rows)), BLOCK_BYTES // (8 * rank)))

    def in_parts(self, parts: list[PartScratch], rows: int, sums: Sums, work: Work) -> None:
        """Call `work` for all rows; add the parts' sums to `sums`."""
        count = min(len(parts), self._parts(rows))
        if count == 1:
            work(parts[0], slice(0, rows), sums)
            return
        ends = [rows * k // count for k in range(count + 1)]
        own = [part.sums if sums.dots is not None else part.sums._replace(dots=None) for part in parts]

        def compute(k: int) -> None:
            for total in own[k]:
                if total is not None:
                    total.fill(0)
            work(parts[k], slice(ends[k], ends[k + 1]), own[k])

        list(self._pool.map(compute, range(count)) if self._threads > 1 else map(compute, range(count)))
        for each in own[:count]:  # in order, so that results are repeatable
            sums.gram[...] += each.gram
            np.maximum(sums.largest, each.largest, out=sums.largest)
            if sums.dots is not None:
                sums.dots[...] += each.dots

    @cached_property
    def _pool(self) -> ThreadPoolExecutor:
        return ThreadPoolExecutor(self._threads, "amped-solve")


class HostSolver(PartitionedSolver):
    """Solves rows by a matrix product; supports all ranks. See `Solver`."""

    name = "rows"
    allocates = False

    def run(self, parts: list[PartScratch], source: Matrix, inverse: Matrix, target: Matrix, sums: Sums) -> None:
        def work(scratch: PartScratch, rows: slice, own: Sums) -> None:
            _solve(scratch, source[rows], inverse, target[rows], own)

        self.in_parts(parts, len(source), sums, work)


@SOLVE.provider("cpu")
def providers(device: CpuDevice) -> Sequence[Solver]:
    """Return the solvers of the operation."""
    return [HostSolver(device.threads.count)]


def _solve(scratch: PartScratch, source: Matrix, inverse: Matrix, target: Matrix, sums: Sums) -> None:
    for block in blocks_of(len(source), len(scratch.rows)):
        if (some := _nonempty(source[block])) is None:
            _solve_block(scratch, source[block], inverse, target[block], sums)
        else:
            solved = np.empty((some.size, target.shape[1]), target.dtype)
            _solve_block(scratch, source[block][some], inverse, solved, sums)
            target[block] = 0
            target[block][some] = solved


def _nonempty(source: Matrix) -> NDArray[np.intp] | None:
    """Return the rows that are not zero, as those without nonzeros are; None unless they are few."""
    sample = source[::SAMPLED, 0]
    if np.count_nonzero(sample) > (1 - EMPTY) * sample.size:
        return None
    some = np.flatnonzero(np.bitwise_or.reduce(source.view(np.uint64), axis=1))
    return some if some.size <= (1 - EMPTY) * len(source) else None


def _solve_block(scratch: PartScratch, source: Matrix, inverse: Matrix, target: Matrix, sums: Sums) -> None:
    rows = scratch.rows[: len(source)]
    _multiply(source, inverse, rows)
    normal_equations.put(rows, source, target, sums.largest, dots_of(sums))
    np.add(sums.gram, np.matmul(rows.T, rows, out=scratch.gram), out=sums.gram)


def _multiply(source: Matrix, inverse: Matrix, rows: Matrix) -> None:
    """Multiply rows by the inverse matrix, by one small product for each stack of rows if that is faster."""
    rank = len(inverse)
    stacked = len(source) // STACK * STACK if rank <= STACKED else 0
    if stacked:
        shape = stacked // STACK, STACK, rank
        np.matmul(source[:stacked].reshape(shape), inverse, out=rows[:stacked].reshape(shape))
    if stacked < len(source):
        np.matmul(source[stacked:], inverse, out=rows[stacked:])


def dots_of(sums: Sums) -> Matrix:
    """Return the inner products of sums; an empty array for none, because code is compiled again for another type."""
    return NO_DOTS if sums.dots is None else sums.dots


def _part_scratch(block: int, rank: int) -> PartScratch:
    sums = Sums(np.zeros((rank, rank)), np.zeros(rank), np.zeros(rank))
    return PartScratch(np.empty((block, rank)), np.empty((rank, rank)), sums)
