"""Row systems of any loss on the CPU, from shards whose nonzeros are sorted by row."""

from __future__ import annotations

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
from ..shard import HostShard, constant
from ..simd.vectors import LINE
from ..threads import check
from .mttkrp import TURNS


class HostSystems:
    """Adds nonzero by nonzero, in double precision. See `RowSystemsProvider`."""

    def __init__(self, device: CpuDevice) -> None:
        self._threads = device.threads

    def suits(self, kernel: Kernel, share: Share, maps: Maps) -> bool:
        """See `RowSystemsProvider`: the nonzeros of a row must be contiguous."""
        return Offers.ROWS in kernel.offers

    def prepare(self, kernel: Kernel, share: Share, rank: int, maps: Maps) -> None:
        """See `RowSystemsProvider`: Numba compiles in one thread, at the first call."""

    def bytes(self, kernel: Kernel, share: Share, rank: int, curved: bool, nnz: int) -> RowBytes:
        """See `RowSystemsProvider`: carries and a product of factor rows for each part."""
        parts = self._threads.count * TURNS
        return RowBytes(0, parts * 8 * (system_width(rank, curved) + rank) + 2 * LINE if nnz else 0)

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
        carries, products = (buffers.take((shared.size, width), double) for width in (out.shape[1], rank))
        carries.fill(0)
        codes = [formula and row_systems.compiled(formula) for formula in maps.formulas.values()]
        addresses = np.array([code.address if code else 0 for code in codes], np.int64)
        nonzeros = *shard.pieces, tuple(map(constant, shard.indices)), constant(shard.values)
        inputs, size = tuple(map(constant, factors)), threads_worth(self._threads.count, shard, factors[0])
        args = nonzeros, inputs, constant(own), shard.row_begin, (addresses, float(maps.lower), int(maps.weighted))
        team = self._threads.team, min(size, shared.size), np.zeros(1, np.int64)
        check(
            row_systems.add_systems(0, *team, *args, (shard.parts.bounds, shared), out, carries, products, shard.ahead)
        )
        for row, carry in zip(shared.tolist(), carries, strict=True):  # in order, so that sums are repeatable
            if row >= 0:
                out[row - shard.row_begin] += carry


@ROW_SYSTEMS.provider("cpu")
def providers(device: CpuDevice) -> Sequence[RowSystemsProvider]:
    """Return the providers of the operation."""
    return [HostSystems(device)]
