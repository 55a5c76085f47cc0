"""The row systems operation: objective, gradient and second derivatives of any loss in one factor matrix.

Row i of the output contains sums over the row's nonzeros x, where m is the model's value and v the product of the other
modes' factor rows:

- the mapped MTTKRP, the sum of ``weight(x, m) v``: the gradient or, with other formulas, Phi or a residual's MTTKRP;
- the row system, the sum of ``curve(x, m) v v^T``, if there is a formula `curve`: second derivatives, so that one solve
  per row is a Newton step;
- the sum of ``value(x, m)``: the row's contribution to the objective.
"""

from __future__ import annotations

from typing import Any, Protocol

from ..device import NOTHING
from ..losses import Maps
from ..registry import Op
from .mttkrp import Kernel, Operands, Share
from .rowproblems import RowBytes


def system_width(rank: int, curved: bool) -> int:
    """Return the columns of the output: R for the gradient, R * R for second derivatives (if any), 1 for the value."""
    return rank + (rank * rank if curved else 0) + 1


class RowSystemsProvider(Protocol):
    """A method to compute row systems on a device: a provider of the operation. All sums are in double precision."""

    def suits(self, kernel: Kernel, share: Share, maps: Maps) -> bool:
        """Return whether it supports such nonzeros in that kernel's shards, and such formulas."""

    def prepare(self, kernel: Kernel, share: Share, rank: int, maps: Maps) -> None:
        """Start compiling; return immediately."""

    def bytes(self, kernel: Kernel, share: Share, rank: int, curved: bool, nnz: int) -> RowBytes:
        """Return an upper bound of the device memory for shards of `nnz` nonzeros."""

    def make(self, shard: Any, share: Share) -> Any:
        """Return the positions of the rows of a shard, in device or host memory, computed once per shard."""

    def run(self, rows: Any, shard: Any, operands: Operands, rank: int, maps: Maps, new: slice = NOTHING) -> None:
        """Queue the addition of a shard's row systems to the output.

        Parameters
        ----------
        rows : object
            The result of `make` for this shard.
        shard : Shard
        operands : Operands
            For the columns of the output see `system_width`. Both triangles of second derivatives are set.
        rank : int
            Number of columns without padding, which is zero.
        maps : Maps
        new : slice
            Uninitialised rows of the output, which are set to the shard's sums or zeros.
        """


ROW_SYSTEMS: Op[RowSystemsProvider] = Op("row_systems")
