"""The TTMc operation: a tensor times the factor matrices of all modes but one, from the shards of MTTKRP kernels.

Row `i` of TTMc is the sum over the nonzeros of row `i` of the value times the Kronecker product of its input factor
rows, the last input mode's columns fastest. No Kronecker product is written for a nonzero. Nonzeros come with their
input indices ascending, so those that share all indices but the last, a fibre, can be summed as rows of the last factor
matrix first. That sum is multiplied with the row of the mode before once, and so on: the inner node of a tree for each
run of equal indices. Where a device multiplies matrices faster than it walks a tree, a row is a product of matrices.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any, Protocol

from ..device import NOTHING, Array
from ..registry import Op
from .mttkrp import Kernel, Share


def width(ranks: Sequence[int]) -> int:
    """Return the columns of TTMc where the input modes' factor matrices have so many."""
    return math.prod(ranks)


class TtmcProvider(Protocol):
    """One way to compute TTMc on a device: a provider of the operation.

    Attributes
    ----------
    summed : int
        Nonzeros of the longest sum that is rounded to the factors' precision, unless `run` gets `double`.
    """

    summed: int

    def suits(self, kernel: Kernel, share: Share) -> bool:
        """Tell whether it computes such nonzeros from that kernel's shards."""

    def prepare(self, share: Share, ranks: Sequence[int]) -> None:
        """Begin to compile for input factor matrices of so many columns, and return at once."""

    def bytes(self, share: Share, ranks: Sequence[int], nnz: int) -> int:
        """Return the bytes of scratch memory that `run` is given, at most."""

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
        """Queue the addition of a shard's TTMc to `out`; allocate nothing, wait for nothing.

        Results are bitwise equal every time.

        Parameters
        ----------
        shard : Shard
        factors : sequence of (I_m, stride) arrays
            The input modes' factor matrices, ascending; columns from the rank on are zero.
        ranks : sequence of int
            Their columns that count.
        out : (rows, width) float64 array
            Of the share.
        new : slice
            Rows of `out` that hold nothing yet: they get the shard's sums, or zeros.
        scratch : (bytes,) uint8 array
        double : bool
            Compute products and sums in double precision, whatever the precision of factors and values.
        """


TTMC = Op[TtmcProvider]("ttmc")
