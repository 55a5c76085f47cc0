"""TTMc without compiled code."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from ...device import NOTHING, Array
from ...ops.mttkrp import Kernel, Share
from ...ops.ttmc import TTMC, TtmcProvider, width
from ..device import PlainDevice
from .mttkrp import PlainShard, add_rows, inputs_of


class PlainTtmc:
    """See `TtmcProvider`; supports all tensors."""

    summed = 1  # sums are in double precision

    def suits(self, kernel: Kernel, share: Share) -> bool:
        return True

    def prepare(self, share: Share, ranks: Sequence[int]) -> None:
        """See `TtmcProvider`: nothing is compiled."""

    def bytes(self, share: Share, ranks: Sequence[int], nnz: int) -> int:
        """See `TtmcProvider`: NumPy allocates a row, and its product with another one, for each leaf of a tree."""
        return 8 * 2 * width(ranks) * nnz

    def run(
        self,
        shard: PlainShard,
        factors: Sequence[Array],
        ranks: Sequence[int],
        out: Array,
        new: slice = NOTHING,
        scratch: Array = None,
        double: bool = False,
    ) -> None:
        """See `TtmcProvider`: always in double precision."""
        exact = [factor[:, :rank].astype(np.float64, copy=False) for factor, rank in zip(factors, ranks, strict=True)]
        rows = shard.tree.ttmc(shard.mode, inputs_of(shard, exact))
        add_rows(rows, out[:, : rows.shape[1]], new)


@TTMC.provider("plain")
def providers(device: PlainDevice) -> Sequence[TtmcProvider]:
    """Return the providers of the operation."""
    return [PlainTtmc()]
