"""The row systems operation: objective, gradient and second derivatives of any loss in one factor matrix.

Row i of the output has, over the row's nonzeros x, with the model's values m and the product v of the other modes'
factor rows:

- the mapped MTTKRP, the sum of ``weight(x, m) v``: the gradient, or, with other formulas, Phi or a residual's MTTKRP;
- the row system, the sum of ``curve(x, m) v v^T``, if there is such a formula: second derivatives, so that one solve
  per row is a Newton step;
- the sum of ``value(x, m)``: the row's part of the objective.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, Protocol

from ..device import NOTHING, Array
from ..losses import Maps
from ..registry import Op
from .mttkrp import Kernel, Share
from .rowproblems import RowBytes


def system_width(rank: int, curved: bool) -> int:
    """Return the columns of the output: R of the gradient, R * R of second derivatives, if any, and the objective."""
    return rank + (rank * rank if curved else 0) + 1


class RowSystemsProvider(Protocol):
    """One way to compute row systems on a device: a provider of the operation. All sums are in double precision."""

    def suits(self, kernel: Kernel, share: Share, curved: bool) -> bool:
        """Tell whether it computes such nonzeros from that kernel's shards."""

    def prepare(self, kernel: Kernel, share: Share, rank: int, maps: Maps) -> None:
        """Begin to compile, and return at once."""

    def bytes(self, kernel: Kernel, share: Share, rank: int, curved: bool, nnz: int) -> RowBytes:
        """Return the device memory that shards of `nnz` nonzeros take, at most."""

    def make(self, shard: Any, share: Share) -> Any:
        """Return where the rows of a shard are: made once for a shard, in device memory or on the host."""

    def run(
        self,
        made: Any,
        shard: Any,
        factors: Sequence[Array],
        own: Array,
        rank: int,
        maps: Maps,
        out: Array,
        new: slice = NOTHING,
        scratch: Array = None,
    ) -> None:
        """Queue the addition of a shard's row systems to `out`.

        Parameters
        ----------
        made : object
            What `make` returned for this shard.
        shard : Shard
        factors : sequence of (I_m, stride) arrays
            The input modes' factor matrices, ascending.
        own : (rows, stride) array
            The output mode's matrix, of the same type: its rows of the share.
        rank : int
            Columns that count; others are zero.
        maps : Maps
        out : (rows, width) float64 array
            Of the share; see `system_width`. Of second derivatives all are set, not only one triangle.
        new : slice
            Rows of `out` that hold nothing yet: they get the shard's sums, or zeros.
        scratch : (bytes,) uint8 array
        """


ROW_SYSTEMS: Op[RowSystemsProvider] = Op("row_systems")
