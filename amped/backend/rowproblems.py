"""The row problems of CP-APR: PDNR and PQNR solve each row of a mode for itself, from the shards of MTTKRP kernels.

A row b >= 0 minimises ``sum b - sum x log <b, pi>`` over its nonzeros x, pi being the product of their input factor
rows: the negative log-likelihood of the row (Hansen, Plantenga, Kolda 2015). The input modes' factor matrices have
columns of 1-norm 1, so that the first term is what the model's values add up to. The gradient is 1 - Phi.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, Literal, NamedTuple, Protocol

from .base import Array
from .mttkrp import Kernel, Share

FAMILY = "rowproblems"

RowMethod = Literal["pdnr", "pqnr"]


class RowLimits(NamedTuple):
    """When a row is done: after so many `inner` iterations, or when its KKT violation is below `tolerance`.

    The violation of a row is ``max |min(b, 1 - phi)|``. `floor` is the least that a value is divided by.
    """

    inner: int = 10
    tolerance: float = 1e-4
    floor: float = 1e-10


class RowsSolved(NamedTuple):
    """What is known of some rows when they are solved."""

    kkt: float  # the largest violation of a row, before its first update
    iterations: int  # inner iterations of all rows together
    failed: int  # steps that found no decrease, so that a multiplicative step was made


class RowProblems(Protocol):
    """One way to solve row problems on a device: a provider of the family."""

    method: RowMethod

    def suits(self, kernel: Kernel, share: Share) -> bool:
        """Tell whether it solves such rows from that kernel's shards."""

    def bytes(self, kernel: Kernel, share: Share, nnz: int) -> int:
        """Return the bytes of scratch memory that `run` is given, at most."""

    def make(self, shard: Any, share: Share) -> Any:
        """Return where the rows of a shard are, and in which order they are solved: made once for a shard.

        It reads the shard on the host, as `Shard.unloaded` returns it, or where it stays; not from a slot alone.
        """

    def run(
        self,
        made: Any,
        shard: Any,
        factors: Sequence[Array],
        own: Array,
        rank: int,
        limits: RowLimits,
        whole: slice | None = None,
        scratch: Array = None,
    ) -> RowsSolved:
        """Solve the rows of a shard, in place, and wait for them.

        Results do not depend on the number of threads.

        Parameters
        ----------
        made : object
            What `make` returned for this shard.
        shard : Shard
        factors : sequence of (I_m, stride) arrays
            The input modes' factor matrices, ascending; their columns have 1-norm 1.
        own : (rows, stride) array
            The output mode's matrix B, of the same type: its rows of the share. All arithmetic is in double precision.
        rank : int
            The columns that are solved; others are left alone.
        limits : RowLimits
        whole : slice, optional
            Rows of `own` to be solved: all of their nonzeros are in this shard, or they have none, and become zero.
            Others are left alone, as another rank or shard has a part of them. All if not given.
        scratch : (bytes,) uint8 array
        """
