"""The mapped operation: an MTTKRP whose values are replaced by a formula of the value and the model's value there.

Row i of the output is the sum over its nonzeros x of ``weight(x, m) v``, where m is the model's value and v the product
of the other modes' factor rows: the gradient of a loss if `weight` is its first derivative. In contrast to row systems
(`row_systems`), formulas, products and short sums are in the precision of the factor matrices.
"""

from __future__ import annotations

from typing import Any, Protocol

from ..device import NOTHING, Array
from ..losses import Maps
from ..registry import Op
from .mttkrp import Kernel, Operands, Share


class MappedProvider(Protocol):
    """A method to compute mapped MTTKRPs on a device: a provider of the operation. Nonzeros that are 0 do not count."""

    def suits(self, kernel: Kernel, share: Share) -> bool:
        """Return whether it supports such nonzeros in that kernel's shards."""

    def prepare(self, kernel: Kernel, share: Share, maps: Maps, sums: bool) -> None:
        """Start compiling; return immediately. `sums`: also the code for `total`."""

    def bytes(self, kernel: Kernel, share: Share, nnz: int) -> int:
        """Return the bytes of scratch memory that `run` needs."""

    def run(self, shard: Any, operands: Operands, maps: Maps, total: Array | None = None, new: slice = NOTHING) -> None:
        """Queue the addition of a shard's mapped MTTKRP to the output.

        Parameters
        ----------
        shard : Shard
        operands : Operands
            `own` has rows of the mode's factor matrix.
        maps : Maps
        total : (1,) float64 device array, optional
            The sum of ``value(x, m)`` is added to it.
        new : slice
            Uninitialised rows of the output, which are set to the shard's sums or zeros.
        """


MAPPED = Op[MappedProvider]("mapped")
