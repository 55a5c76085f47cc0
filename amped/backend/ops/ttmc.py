"""The ttmc operation: a tensor times the factor matrices of all modes but one, from the shards of MTTKRP kernels.

Row `i` of TTMc is the sum, over the nonzeros of row `i`, of the value times the Kronecker product of its input factor
rows, with the last input mode's columns varying fastest. Kronecker products of single nonzeros are never stored.
Nonzeros are sorted by their input indices, so the nonzeros of a fibre, which differ in the last index only, are first
summed as multiples of rows of the last factor matrix. Each sum is multiplied once by the row of the preceding mode, and
so on: each run of equal indices is an inner node of a tree. If a device multiplies matrices faster than it traverses a
tree, rows are computed as matrix products.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any, Protocol

from ..device import NOTHING, Array
from ..registry import Op
from .mttkrp import Kernel, Share


def width(ranks: Sequence[int]) -> int:
    """Return the number of columns of TTMc: the product of the input modes' ranks."""
    return math.prod(ranks)


class TtmcProvider(Protocol):
    """A method to compute TTMc on a device: a provider of the operation.

    Attributes
    ----------
    summed : int
        Number of nonzeros of the longest sum in the factors' precision, unless `run` is `double`.
    """

    summed: int

    def suits(self, kernel: Kernel, share: Share) -> bool:
        """Return whether it supports such nonzeros in that kernel's shards."""

    def prepare(self, share: Share, ranks: Sequence[int]) -> None:
        """Start compiling for input factor matrices of these ranks; return immediately."""

    def bytes(self, share: Share, ranks: Sequence[int], nnz: int) -> int:
        """Return the bytes of scratch memory that `run` needs."""

    def run(
        self,
        shard: Any,
        factors: Sequence[Array],
        ranks: Sequence[int],
        out: Array,
        new: slice = NOTHING,
        scratch: Array = None,
        double: bool = False,
    ) -> None:
        """Queue the addition of a shard's TTMc to `out`, without allocating memory or waiting.

        Results are bitwise reproducible.

        Parameters
        ----------
        shard : Shard
        factors : sequence of (I_m, stride) arrays
            The input modes' factor matrices, in ascending order of modes; padding columns are zero.
        ranks : sequence of int
            Their numbers of columns without padding.
        out : (rows, width) float64 array
            The output rows of the share.
        new : slice
            Uninitialised rows of `out`, which are set to the shard's sums or zeros.
        scratch : (bytes,) uint8 array
        double : bool
            Compute products and sums in double precision, whatever the precision of factors and values.
        """


TTMC = Op[TtmcProvider]("ttmc")
