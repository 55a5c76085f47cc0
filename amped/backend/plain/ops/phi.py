"""Phi and log-likelihoods without compiled code."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np

from ...device import NOTHING, Array
from ...ops.mttkrp import Kernel, Share
from ...ops.phi import PHI, Groups, PhiProvider
from ..device import PlainDevice
from .mttkrp import PlainShard, inputs_of, put


class PlainPhi:
    """See `PhiProvider`; suits all."""

    multi_model = False

    def suits(self, kernel: Kernel, share: Share) -> bool:
        return True

    def prepare(self, kernel: Kernel, share: Share) -> None:
        """See `PhiProvider`: nothing is compiled."""

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

    def copy(
        self,
        source: Array,
        target: Array,
        skip: Array = None,
        groups: Groups | None = None,
        dtype: np.dtype[Any] | None = None,
    ) -> None:
        if skip is None or not skip[0]:
            target[:] = source


@PHI.provider("plain")
def providers(device: PlainDevice) -> Sequence[PhiProvider]:
    """Return the providers of the operation."""
    return [PlainPhi()]
