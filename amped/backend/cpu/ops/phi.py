"""Phi on the CPU, from the shards of all MTTKRP kernels, in the same parts and order."""

from __future__ import annotations

from collections.abc import Sequence

from ...device import NOTHING, Array
from ...ops.mttkrp import Kernel, Operands, Share
from ...ops.phi import PHI, HostPhi, PhiParams, PhiProvider
from ..device import CpuDevice
from ..kernels.sums import Model, add_logs, add_sums
from ..layout import PIECE
from ..shard import HostShard
from ..simd.vectors import LINE
from .mttkrp import TURNS


class Divided(HostPhi):
    """MTTKRP of values divided by the model's; supports all shards. See `PhiProvider`."""

    def __init__(self, device: CpuDevice) -> None:
        self._threads = device.threads

    def bytes(self, kernel: Kernel, share: Share, nnz: int) -> int:
        """See `PhiProvider`: the MTTKRP's scratch, and the quotients of a piece or a sum for each part."""
        parts = self._threads.count * TURNS
        return kernel.bytes(share, nnz).running + (parts * PIECE * share.dtype.itemsize + LINE if nnz else 0)

    def run(self, shard: HostShard, operands: Operands, params: PhiParams, new: slice = NOTHING) -> None:
        """See `PhiProvider`; computes synchronously."""
        if params.skip is not None and params.skip[0]:
            return
        factors, own, out, scratch = operands
        if shard.nnz:
            add_sums(self._threads, shard, factors, out, new, scratch, model=Model(own, float(params.floor)))
        else:
            out[new] = 0

    def add_logs(self, shard: HostShard, operands: Operands, params: PhiParams, total: Array) -> None:
        if shard.nnz:
            model = Model(operands.own, float(params.floor))
            add_logs(self._threads, shard, operands.factors, model, total, operands.scratch)


@PHI.provider("cpu")
def providers(device: CpuDevice) -> Sequence[PhiProvider]:
    """Return the providers of the operation."""
    return [Divided(device)]
