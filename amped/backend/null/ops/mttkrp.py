"""Two MTTKRP kernels of the null device that differ only in name and order of nonzeros."""

from __future__ import annotations

from collections.abc import Sequence

from ...cpu.ops.mttkrp import Segmented
from ...cpu.shard import HostShard
from ...device import NOTHING, Array
from ...ops.mttkrp import MTTKRP, Kernel, KernelBytes, Offers, Share
from ..device import NullDevice


class RecordedKernel(Segmented):
    """See `Kernel`: records its computations."""

    def __init__(self, name: str, device: NullDevice) -> None:
        super().__init__(device)
        self.name, self._used = name, device.used
        self.offers = self.offers if name == "slow" else Offers.ROWS

    def bytes(self, share: Share, nnz: int) -> KernelBytes:
        """See `Kernel`: as on a GPU, building needs as much memory as the shard, and scratch grows with nonzeros."""
        usual = super().bytes(share, nnz)
        return usual._replace(making=usual.shard, running=usual.running + -(-nnz // 64) * share.stride * 8)

    def run(
        self,
        shard: HostShard,
        factors: Sequence[Array],
        out: Array,
        new: slice = NOTHING,
        scratch: Array = None,
        double: bool = False,
    ) -> None:
        self._used.append((self.name, shard.nnz))
        super().run(shard, factors, out, new, scratch, double)


@MTTKRP.provider("null")
def providers(device: NullDevice) -> Sequence[Kernel]:
    """Return the kernels of the operation."""
    return [RecordedKernel("slow", device), RecordedKernel("fast", device)]
