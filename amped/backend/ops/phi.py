"""The Phi operation: what CP-APR computes from the shards of MTTKRP kernels.

Phi_n = [X_(n) / max(B Pi, floor)] Pi^T (Chi and Kolda 2012, Algorithm 3), Pi being the Khatri-Rao product of the other
modes' factor matrices: an MTTKRP whose values are divided by the model's. Pi is never stored.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, Protocol

from ..device import NOTHING, Array, Device
from ..registry import Op
from .mttkrp import Kernel, Share


class Phi(Protocol):
    """One way to compute Phi and log-likelihoods on a device: a provider of the operation."""

    def suits(self, kernel: Kernel, share: Share) -> bool:
        """Tell whether it computes such nonzeros from that kernel's shards."""

    def prepare(self, kernel: Kernel, share: Share) -> None:
        """Begin to compile, and return at once."""

    def bytes(self, kernel: Kernel, share: Share, nnz: int) -> int:
        """Return the bytes of scratch memory that `run` and `add_logs` are given, at most."""

    def run(
        self,
        shard: Any,
        factors: Sequence[Array],
        own: Array,
        floor: float,
        out: Array,
        new: slice = NOTHING,
        scratch: Array = None,
        skip: Array = None,
    ) -> None:
        """Queue the addition of a shard's Phi to `out`; allocate nothing, wait for nothing.

        Parameters
        ----------
        shard : Shard
        factors : sequence of (I_m, stride) arrays
            The input modes' factor matrices, ascending.
        own : (rows, stride) array
            The output mode's matrix B, of the same type: its rows of the share.
        floor : float
            The least that a value is divided by (`eps` of the Tensor Toolbox).
        out : (rows, stride) float64 array
            Of the share.
        new : slice
            Rows of `out` that hold nothing yet: they get the shard's sums, or zeros.
        scratch : (bytes,) uint8 array
        skip : (1,) int32 array, optional
            Nothing is computed, and `out` not written, if this is not 0 when the work's turn comes.
        """

    def add_logs(
        self, shard: Any, factors: Sequence[Array], own: Array, floor: float, total: Array, scratch: Array = None
    ) -> None:
        """Queue the addition of ``sum x log(max(m, floor))`` over a shard's nonzeros to `total`, (1,) float64.

        `m` is the model's value, as in `run`. Sums are in double precision, in the same order every time.
        """

    def copy(self, source: Array, target: Array, skip: Array = None) -> None:
        """Queue the copy of a row of sums, (stride,) float64; see `run` for `skip`."""


PHI = Op[Phi]("phi")


def phi_of(device: Device, kernel: Kernel, share: Share) -> Phi | None:
    """Return what computes the Phi of such nonzeros from a kernel's shards, if anything does."""
    return PHI.first(device, lambda provider: provider.suits(kernel, share))
