"""Phi and log-likelihoods without compiled code."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from ...device import NOTHING, Array
from ...ops.mttkrp import Kernel, Share
from ...ops.phi import PHI, Groups, HostPhi, PhiProvider
from ..device import PlainDevice
from .mttkrp import PlainShard, inputs_of, put


class PlainPhi(HostPhi):
    """See `PhiProvider`; suits all."""

    def bytes(self, kernel: Kernel, share: Share, nnz: int) -> int:
        return 0

    def run(
        self,
        shard: PlainShard,
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
        if skip is None or not skip[0]:
            matrix = own.astype(np.float64, copy=False)
            put(shard.tree.phi(shard.mode, inputs_of(shard, factors), matrix, floor), out, new)

    def add_logs(
        self,
        shard: PlainShard,
        factors: Sequence[Array],
        own: Array,
        floor: float,
        total: Array,
        scratch: Array = None,
        groups: Groups | None = None,
    ) -> None:
        matrix = own.astype(np.float64, copy=False)
        total[0] += shard.tree.logs(shard.mode, inputs_of(shard, factors), matrix, floor)


@PHI.provider("plain")
def providers(device: PlainDevice) -> Sequence[PhiProvider]:
    """Return the providers of the operation."""
    return [PlainPhi()]
