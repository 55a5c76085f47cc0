"""SpTTM on the null device, as on the CPU."""

from __future__ import annotations

from collections.abc import Sequence

from ...cpu.ops.ttm import CpuFibres, HostFibres
from ...device import Array
from ...ops.ttm import TTM, ProductForm, TtmBytes, TtmKernel
from ..device import NullDevice


class RecordedTtm(CpuFibres):
    """See `TtmKernel`: records its computations."""

    def __init__(self, device: NullDevice) -> None:
        super().__init__(device)
        self._used = device.used

    def bytes(self, form: ProductForm, nnz: int, fibres: int) -> TtmBytes:
        """See `TtmKernel`: as on a GPU, building needs as much memory as the shard."""
        usual = super().bytes(form, nnz, fibres)
        return usual._replace(making=usual.shard)

    def run(self, shard: HostFibres, matrix: Array, out: Array, scratch: Array = None) -> None:
        self._used.append((self.name, shard.nnz))
        super().run(shard, matrix, out, scratch)


@TTM.provider("null")
def providers(device: NullDevice) -> Sequence[TtmKernel]:
    """Return the kernels of the operation, the default first."""
    return [RecordedTtm(device)]
