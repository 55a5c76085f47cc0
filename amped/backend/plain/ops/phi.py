"""Phi and log-likelihoods without compiled code."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from ...device import NOTHING, Array
from ...ops.mttkrp import Kernel, Operands, Share
from ...ops.phi import PHI, HostPhi, PhiParams, PhiProvider
from ..device import PlainDevice
from .mttkrp import PlainShard, add_rows, inputs_of


class PlainPhi(HostPhi):
    """See `PhiProvider`; supports all tensors."""

    def bytes(self, kernel: Kernel, share: Share, nnz: int) -> int:
        return 0

    def run(self, shard: PlainShard, operands: Operands, params: PhiParams, new: slice = NOTHING) -> None:
        """See `PhiProvider`; computes synchronously."""
        if params.skip is None or not params.skip[0]:
            matrix, inputs = operands.own.astype(np.float64, copy=False), inputs_of(shard, operands.factors)
            add_rows(shard.tree.phi(shard.mode, inputs, matrix, params.floor), operands.out, new)

    def add_logs(self, shard: PlainShard, operands: Operands, params: PhiParams, total: Array) -> None:
        matrix, inputs = operands.own.astype(np.float64, copy=False), inputs_of(shard, operands.factors)
        total[0] += shard.tree.logs(shard.mode, inputs, matrix, params.floor)


@PHI.provider("plain")
def providers(device: PlainDevice) -> Sequence[PhiProvider]:
    """Return the providers of the operation."""
    return [PlainPhi()]
