"""Row systems of any loss without compiled code."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from ...device import NOTHING
from ...losses import Maps
from ...ops.mttkrp import Kernel, Offers, Operands, Share
from ...ops.row_systems import ROW_SYSTEMS, RowSystemsProvider
from ...ops.rowproblems import RowBytes
from ...systems import triangle_size
from ..device import PlainDevice
from .mttkrp import PlainShard, add_rows, inputs_of

NUMBERS = 4  # per nonzero: the model's value, and a formula with its parts


class PlainSystems:
    """See `RowSystemsProvider`; without weights. Formulas may be NumPy functions."""

    def suits(self, kernel: Kernel, share: Share, maps: Maps) -> bool:
        return Offers.TREE in kernel.offers and not maps.weighted

    def prepare(self, kernel: Kernel, share: Share, rank: int, maps: Maps) -> None:
        """See `RowSystemsProvider`: nothing is compiled."""

    def bytes(self, kernel: Kernel, share: Share, rank: int, curved: bool, nnz: int) -> RowBytes:
        return RowBytes(0, 8 * (NUMBERS + (triangle_size(rank) if curved else 0)) * nnz)

    def make(self, shard: PlainShard, share: Share) -> None:
        """See `RowSystemsProvider`: the tree has the positions of rows."""

    def run(
        self, rows: None, shard: PlainShard, operands: Operands, rank: int, maps: Maps, new: slice = NOTHING
    ) -> None:
        """See `RowSystemsProvider`; computes synchronously."""
        own, inputs = operands.own.astype(np.float64, copy=False), inputs_of(shard, operands.factors)
        add_rows(shard.tree.row_systems(shard.mode, inputs, own, maps), operands.out, new)


@ROW_SYSTEMS.provider("plain")
def providers(device: PlainDevice) -> Sequence[RowSystemsProvider]:
    """Return the providers of the operation."""
    return [PlainSystems()]
