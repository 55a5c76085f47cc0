"""Mapped MTTKRPs on the GPU: ``phi.cu`` with the formulas of a loss inserted."""

from __future__ import annotations

from collections.abc import Sequence
from functools import cache

import numpy as np

from partitioner.cuda.code import prepare

from ...device import NOTHING, Array
from ...losses import Maps
from ...ops.mapped import MAPPED, MappedProvider
from ...ops.mttkrp import Kernel, Offers, Operands, Share
from ..code.phi import SUMS, mapped_source, most_blocks, suits
from ..device import CudaDevice
from ..layout import PackedLayout, make_layout
from ..shard import CudaShard
from .mttkrp import scratch_bytes
from .phi import NOWHERE, PackedCall, PackedCode, add_sums, loaded, run_packed

DOUBLE = 8  # bytes


class CudaMapped:
    """See `MappedProvider`."""

    def __init__(self, device: CudaDevice) -> None:
        self._device, self._limits = device, device.limits

    def suits(self, kernel: Kernel, share: Share) -> bool:
        return Offers.PACKED in kernel.offers and suits(make_layout(kernel.name, share, self._limits))

    def prepare(self, kernel: Kernel, share: Share, maps: Maps, sums: bool) -> None:
        layout = make_layout(kernel.name, share, self._limits)
        prepare([SUMS, *(mapped_source(layout, maps, each) for each in {False, sums})])

    def bytes(self, kernel: Kernel, share: Share, nnz: int) -> int:
        layout = make_layout(kernel.name, share, self._limits)
        return self._parts_at(layout, nnz) + DOUBLE * most_blocks(layout, nnz, self._limits) if nnz else 0

    def _parts_at(self, layout: PackedLayout, nnz: int) -> int:
        """Return the position of the thread blocks' sums in scratch memory."""
        return -(-scratch_bytes(layout, nnz, self._limits) // DOUBLE) * DOUBLE

    def run(
        self, shard: CudaShard, operands: Operands, maps: Maps, total: Array | None = None, new: slice = NOTHING
    ) -> None:
        layout, place = shard.layout, NOWHERE
        if operands.scratch is None:
            nbytes = self._parts_at(layout, shard.nnz) + DOUBLE * most_blocks(layout, shard.nnz, self._limits)
            operands = operands._replace(scratch=self._device.empty((nbytes,), np.uint8))
        if total is not None:
            place = np.uint64(operands.scratch.data.ptr + self._parts_at(layout, shard.nnz))
        code = _compiled(layout, maps, total is not None, self._device.number)
        call = PackedCall(shard, operands.factors, operands.own, maps.lower, NOWHERE, code, place)
        blocks = run_packed(call, operands, self._limits, self._device.number, new)
        if total is not None and blocks:
            add_sums(place, blocks, total, self._device.number)


@cache
def _compiled(layout: PackedLayout, maps: Maps, sums: bool, device: int) -> PackedCode:
    source = mapped_source(layout, maps, sums)
    return loaded(source, "mapped", layout)


@MAPPED.provider("cuda")
def providers(device: CudaDevice) -> Sequence[MappedProvider]:
    """Return the providers of the operation."""
    return [CudaMapped(device)]
