"""How a CPU computes Phi: from the shards of all its MTTKRP kernels, in the same parts and order."""

from __future__ import annotations

from collections.abc import Sequence

from ...device import NOTHING, Array
from ...ops.mttkrp import Kernel, Share
from ...ops.phi import PHI, Groups, HostPhi, PhiProvider
from ..device import CpuDevice
from ..kernels.sums import Model, add_logs, add_sums
from ..layout import PIECE
from ..shard import HostShard
from ..simd.vectors import LINE
from .mttkrp import TURNS


class Divided(HostPhi):
    """MTTKRP of values divided by the model's; suits all. See `PhiProvider`."""

    def __init__(self, device: CpuDevice) -> None:
        self._threads = device.threads

    def bytes(self, kernel: Kernel, share: Share, nnz: int) -> int:
        """See `PhiProvider`: the MTTKRP's, and the quotients of a piece, or a sum, for each part."""
        parts = self._threads.count * TURNS
        return kernel.bytes(share, nnz).running + (parts * PIECE * share.dtype.itemsize + LINE if nnz else 0)

    def run(
        self,
        shard: HostShard,
        factors: Sequence[Array],
        own: Array,
        floor: float,
        out: Array,
        new: slice = NOTHING,
        scratch: Array = None,
        skip: Array = None,
        groups: Groups | None = None,
    ) -> None:
        """See `PhiProvider`: work is done when it is queued."""
        if skip is not None and skip[0]:
            return
        if shard.nnz:
            add_sums(self._threads, shard, factors, out, new, scratch, model=Model(own, float(floor)))
        else:
            out[new] = 0

    def add_logs(
        self,
        shard: HostShard,
        factors: Sequence[Array],
        own: Array,
        floor: float,
        total: Array,
        scratch: Array = None,
        groups: Groups | None = None,
    ) -> None:
        if shard.nnz:
            add_logs(self._threads, shard, factors, Model(own, float(floor)), total, scratch)


@PHI.provider("cpu")
def providers(device: CpuDevice) -> Sequence[PhiProvider]:
    """Return the providers of the operation."""
    return [Divided(device)]
