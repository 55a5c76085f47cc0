"""How a CPU solves rows of factor matrices: by NumPy's matrix products, one thread for each.

BLAS has no threads of its own here: for 20 milliseconds after a product they look for the next one, and keep the cores
from the MTTKRP that follows.
"""

from __future__ import annotations

from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from functools import cached_property
from typing import Any

import numpy as np
from numpy.typing import NDArray

from ...rows import RowSolver, block_rows
from ...solve import Solver, Sums, Takes
from ..device import CpuDevice

PART_ROWS = 4096  # fewer take less time than a thread takes to begin
MOST_PARTS = 16  # each has sums of its own


def providers(device: CpuDevice) -> Sequence[Solver]:
    """Return the solvers of the family."""
    return [HostSolver(device.threads.count)]


class HostSolver(RowSolver):
    """Solves parts of the rows side by side; the same parts whatever the threads, so that sums are the same."""

    def __init__(self, threads: int) -> None:
        super().__init__(np, blocks=2)
        self._threads = threads

    def bytes(self, rows: int, rank: int) -> Takes:
        at_once = 2 * min(rows, self._threads * block_rows(rank))
        return Takes(super().bytes(rows, rank).kept, 8 * rank * (at_once + _parts(rows) * (rank + 2)))

    def run(self, made: None, source: NDArray[Any], inverse: NDArray[Any], target: NDArray[Any], sums: Sums) -> None:
        count = _parts(len(source))
        if count == 1:
            return super().run(made, source, inverse, target, sums)
        ends = [len(source) * k // count for k in range(count + 1)]
        own = [Sums(*(None if each is None else np.zeros_like(each) for each in sums)) for _ in range(count)]

        def part(k: int) -> None:
            rows = slice(ends[k], ends[k + 1])
            RowSolver.run(self, made, source[rows], inverse, target[rows], own[k])

        list(self._pool.map(part, range(count)) if self._threads > 1 else map(part, range(count)))
        for each in own:
            sums.gram[...] += each.gram
            np.maximum(sums.largest, each.largest, out=sums.largest)
            if sums.dots is not None:
                sums.dots[...] += each.dots
        return None

    @cached_property
    def _pool(self) -> ThreadPoolExecutor:
        return ThreadPoolExecutor(self._threads, "amped-solve")


def _parts(rows: int) -> int:
    return max(1, min(MOST_PARTS, rows // PART_ROWS))
