"""MTTKRP of one shard on the cores of a rank."""

from __future__ import annotations

from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from ..base import PERMUTED
from .segmented import segmented
from .vectors import LANE

KERNELS = ("segmented", "prefetched", PERMUTED)
MOST_LANES = 8  # 256 bytes of a row: half of the registers, on a processor with AVX2
SMALLEST = 4096  # nonzeros a thread; below this a second thread costs more than it saves


@dataclass(frozen=True)
class HostShard:
    """Nonzeros sorted by output row, or in any order with a permutation that sorts them.

    Attributes
    ----------
    indices : sequence of (nnz,) int32 arrays
        The output index, then the input modes' indices in ascending order of modes.
    values : (nnz,) array
    row_begin : int
        The output index that is row 0 of the output.
    continues : bool
        The first row already has a sum, to be added to.
    ahead : bool
        Whether the rows of nonzeros to come are fetched.
    permutation : (nnz,) uint32 array, optional
        Which nonzero comes when; those are of a shard of mode 0, which counts their memory, and any row may have a sum.
    """

    indices: Sequence[NDArray[np.int32]]
    values: NDArray[Any]
    row_begin: int
    continues: bool
    ahead: bool = False
    permutation: NDArray[np.uint32] | None = None

    @property
    def nnz(self) -> int:
        """The number of nonzeros."""
        return int(self.values.size)

    @property
    def nbytes(self) -> int:
        """The bytes of indices and values, or of the permutation."""
        if self.permutation is not None:
            return self.permutation.nbytes
        return sum(column.nbytes for column in self.indices) + self.values.nbytes


class Threads:
    """Run the kernel on equal runs of nonzeros side by side.

    Each thread is an inter-shard partition (AMPED, section 3.1.2). A row that begins in an earlier thread's run is
    carried: its sum is added to the output when all are done, so that no two threads write one row.
    """

    def __init__(self, count: int) -> None:
        self.count = count
        self._pool = ThreadPoolExecutor(count, "amped-mttkrp") if count > 1 else None

    def mttkrp(self, shard: HostShard, factors: Sequence[NDArray[np.floating]], out: NDArray[np.floating]) -> None:
        """See `Backend.mttkrp`."""
        parts = max(1, min(self.count, shard.nnz // SMALLEST))
        bounds = [shard.nnz * t // parts for t in range(parts + 1)]
        rows, order = shard.indices[0], shard.permutation

        def row(at: int) -> int:
            return int(rows[at if order is None else order[at]])

        carried = [row(b) == row(b - 1) if b else shard.continues for b in bounds[:-1]]
        carries = np.zeros((parts, 1, out.shape[1]))
        ahead, pieces = (0,) if shard.ahead else None, lanes_of(factors[0])

        def work(t: int) -> None:
            columns, inputs, run = tuple(shard.indices), tuple(factors), (bounds[t], bounds[t + 1])
            where = columns, shard.values, inputs, out, shard.row_begin, *run, carried[t], carries[t]
            segmented(*where, order, ahead, *pieces)

        if parts == 1 or self._pool is None:
            for t in range(parts):
                work(t)
        else:
            list(self._pool.map(work, range(parts)))
        for t in range(parts):
            if carried[t]:
                out[row(bounds[t]) - shard.row_begin] += carries[t, 0]


def lanes_of(factor: NDArray[np.floating]) -> tuple[tuple[int, ...], tuple[int, ...] | None]:
    """Return what of a row is computed together, and what is left, as `segmented` takes them."""
    lanes = factor.shape[1] * factor.itemsize // LANE
    most = min(lanes, MOST_LANES)
    return (0,) * most, (0,) * (lanes % most) or None
