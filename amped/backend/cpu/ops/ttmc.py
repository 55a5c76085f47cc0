"""TTMc on the CPU, from shards of the MTTKRP kernel `segmented`, in the same parts and order."""

from __future__ import annotations

import math
from collections.abc import Sequence
from itertools import accumulate

import numpy as np
from numpy.typing import NDArray

from ...device import NOTHING, Array
from ...ops.mttkrp import Kernel, Offers, Share
from ...ops.ttmc import TTMC, TtmcProvider, width
from ..device import CpuDevice
from ..kernels.sums import SumScratch, threads_worth
from ..kernels.ttmc import SUMMED, ttmc
from ..shard import HostShard, constant
from ..simd.vectors import LANE, LINE
from ..threads import check
from .mttkrp import TURNS

DOUBLE = np.dtype(np.float64)


class Nested:
    """Sums runs of equal indices, from the last input mode to the first. See `TtmcProvider`."""

    summed = SUMMED

    def __init__(self, device: CpuDevice) -> None:
        self._threads = device.threads

    def suits(self, kernel: Kernel, share: Share) -> bool:
        """See `TtmcProvider`: the nonzeros of a row must be sorted by input indices and read in one pass."""
        return Offers.SORTED in kernel.offers and share.gather == "full"

    def prepare(self, share: Share, ranks: Sequence[int]) -> None:
        """See `TtmcProvider`: Numba compiles in one thread, at the first call."""

    def bytes(self, share: Share, ranks: Sequence[int], nnz: int) -> int:
        """See `TtmcProvider`: a row for each part and a tree for each thread."""
        if not nnz:
            return 0
        item = share.dtype.itemsize
        rows = self._threads.count * TURNS * width(ranks) * 8
        padded = [*ranks[:-1], -(-ranks[-1] * item // LINE) * LINE // item]
        return rows + self._threads.count * (_nodes(padded) + LINE) * DOUBLE.itemsize + 2 * LINE

    def run(
        self,
        shard: HostShard,
        factors: Sequence[Array],
        ranks: Sequence[int],
        out: Array,
        new: slice = NOTHING,
        scratch: Array = None,
        double: bool = False,
    ) -> None:
        if not shard.nnz:
            out[new] = 0
            return
        buffers, parts, team = SumScratch(scratch), shard.parts, self._threads
        padded = [*ranks[:-1], factors[-1].shape[1]]
        carries = buffers.take((parts.shared.size, out.shape[1]), out.dtype)
        summed = DOUBLE if double else factors[0].dtype
        aligned = -(-_nodes(padded) * summed.itemsize // LINE) * LINE // summed.itemsize
        trees = buffers.take((team.count, aligned), summed)
        rows = new.start, new.stop
        if new.stop <= new.start:
            rows = int(parts.firsts[0]) - shard.row_begin, 0
        nonzeros = *shard.pieces, constant(shard.values)
        size = min(threads_worth(team.count, shard, factors[-1]), parts.shared.size)
        lane = 0.0 if summed != factors[0].dtype else 0  # see `vectors`
        lanes = (lane,) * (2 if factors[-1].strides[0] % (2 * LANE) == 0 else 1)
        like = constant(shard.indices[0]), constant(factors[0])
        args = like, _layout(shard, factors, ranks), out, shard.row_begin, rows, tuple(parts), carries, trees, lanes
        check(ttmc(0, team.team, size, np.zeros(1, np.int64), nonzeros, *args))


def _layout(shard: HostShard, factors: Sequence[Array], ranks: Sequence[int]) -> NDArray[np.int64]:
    """Return what `ttmc` reads of the input modes."""
    strides = [factor.shape[1] for factor in factors]
    padded = [*ranks[:-1], strides[-1]]
    sizes = [math.prod(padded[m:]) for m in range(len(padded))]
    columns, matrices = ([each.ctypes.data for each in arrays] for arrays in (shard.indices, factors))
    return np.array([columns, matrices, strides, ranks, sizes, [0, *accumulate(sizes[:-1])]], np.int64)


def _nodes(ranks: Sequence[int]) -> int:
    """Return the number of values in a tree."""
    return sum(math.prod(ranks[m:]) for m in range(len(ranks)))


@TTMC.provider("cpu")
def providers(device: CpuDevice) -> Sequence[TtmcProvider]:
    """Return the providers of the operation."""
    return [Nested(device)]
