"""Row systems of any loss on the CPU, from shards whose nonzeros are sorted by row."""

from __future__ import annotations

import math
from collections.abc import Sequence

import numpy as np

from ...device import NOTHING
from ...losses import Maps
from ...ops.mttkrp import Kernel, Offers, Operands, Share
from ...ops.row_systems import ROW_SYSTEMS, RowSystemsProvider, system_width
from ...ops.rowproblems import RowBytes
from ..device import CpuDevice
from ..kernels import row_systems
from ..kernels.sums import SumScratch, threads_worth
from ..rows.gram import block_of, width_of
from ..rows.threaded import addresses, place_of
from ..shard import HostShard
from ..simd.doubles import EIGHT
from ..simd.vectors import LINE
from ..threads import check
from .mttkrp import TURNS


def _block_shapes(width: int) -> list[tuple[int, ...]]:
    """Return the shapes of a thread's scratch; see `row_systems.add_systems`."""
    block = block_of(width)
    return [(block, width), (width,), (row_systems.FACTS, block + EIGHT)]


class HostSystems:
    """Adds blocks of nonzeros, in double precision. See `RowSystemsProvider`."""

    def __init__(self, device: CpuDevice) -> None:
        self._threads = device.threads

    def suits(self, kernel: Kernel, share: Share, maps: Maps) -> bool:
        """See `RowSystemsProvider`: the nonzeros of a row must be contiguous."""
        return Offers.ROWS in kernel.offers

    def prepare(self, kernel: Kernel, share: Share, rank: int, maps: Maps) -> None:
        """See `RowSystemsProvider`: Numba compiles in one thread, at the first call."""

    def bytes(self, kernel: Kernel, share: Share, rank: int, curved: bool, nnz: int) -> RowBytes:
        """See `RowSystemsProvider`: carries for each part, and a block of nonzeros for each thread."""
        width, threads = width_of(rank), self._threads.count
        numbers = threads * (TURNS * system_width(rank, curved) + sum(map(math.prod, _block_shapes(width))))
        return RowBytes(0, 8 * numbers + 4 * LINE if nnz else 0)

    def make(self, shard: HostShard, share: Share) -> None:
        """See `RowSystemsProvider`: shards include the positions of rows."""

    def run(
        self, rows: None, shard: HostShard, operands: Operands, rank: int, maps: Maps, new: slice = NOTHING
    ) -> None:
        """See `RowSystemsProvider`; computes synchronously."""
        factors, own, out, scratch = operands
        out[new] = 0
        if not shard.nnz:
            return
        buffers, shared, double = SumScratch(scratch), shard.parts.shared, np.dtype(np.float64)
        carries = buffers.take((shared.size, out.shape[1]), double)
        carries.fill(0)
        codes = [formula and row_systems.compiled(formula) for formula in maps.formulas.values()]
        functions = np.array([code.address if code else 0 for code in codes], np.int64), float(maps.lower)
        columns, matrices, stored = addresses(shard, factors)
        weights, modes = np.zeros(0, np.int64), len(factors) - maps.weighted
        if maps.weighted:
            weights = np.array([columns[-1], matrices[-1]], np.int64)
        width = width_of(rank)
        nonzeros = columns[: 1 + modes], matrices[:modes], (*stored, rank, width, block_of(width), 0)
        size = threads_worth(self._threads.count, shard, factors[0])
        blocks = [buffers.take((self._threads.count, *shape), double) for shape in _block_shapes(width)]
        blocks[1].fill(0)
        place = place_of(own, factors[0])
        assert {place[1], *(factor.shape[1] for factor in factors)} == {stored[2]}
        team = self._threads.team, min(size, shared.size), np.zeros(1, np.int64)
        args = tuple(shard.pieces), nonzeros, (place[0], shard.row_begin), weights, functions
        check(row_systems.add_systems(0, *team, *args, (shard.parts.bounds, shared), out, carries, tuple(blocks)))
        for row, carry in zip(shared.tolist(), carries, strict=True):  # in order, so that sums are repeatable
            if row >= 0:
                out[row - shard.row_begin] += carry


@ROW_SYSTEMS.provider("cpu")
def providers(device: CpuDevice) -> Sequence[RowSystemsProvider]:
    """Return the providers of the operation."""
    return [HostSystems(device)]
