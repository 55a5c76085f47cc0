"""MTTKRP of one shard on the cores of a rank."""

from __future__ import annotations

from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from .segmented import segmented

KERNELS = ("segmented",)
SMALLEST = 4096  # nonzeros a thread; below this a second thread costs more than it saves


@dataclass(frozen=True)
class HostShard:
    """Nonzeros sorted by output row.

    Attributes
    ----------
    indices : sequence of (nnz,) int32 arrays
        The output index, then the input modes' indices in ascending order of modes.
    values : (nnz,) array
    row_begin : int
        The output index that is row 0 of the output.
    continues : bool
        The first row already has a sum, to be added to.
    """

    indices: Sequence[NDArray[np.int32]]
    values: NDArray[Any]
    row_begin: int
    continues: bool

    @property
    def nnz(self) -> int:
        """The number of nonzeros."""
        return int(self.values.size)

    @property
    def nbytes(self) -> int:
        """The bytes of indices and values."""
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
        rows = shard.indices[0]
        carried = [bool(b and rows[b] == rows[b - 1]) if b else shard.continues for b in bounds[:-1]]
        carries = np.zeros((parts, out.shape[1]))

        def work(t: int) -> None:
            segmented(
                tuple(shard.indices),
                shard.values,
                tuple(factors),
                out,
                shard.row_begin,
                bounds[t],
                bounds[t + 1],
                carried[t],
                carries[t],
            )

        if parts == 1 or self._pool is None:
            for t in range(parts):
                work(t)
        else:
            list(self._pool.map(work, range(parts)))
        for t in range(parts):
            if carried[t]:
                out[rows[bounds[t]] - shard.row_begin] += carries[t]
