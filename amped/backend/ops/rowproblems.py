"""The row problems of CP-APR: PDNR and PQNR solve each row of a mode for itself, from the shards of MTTKRP kernels.

A row b >= 0 minimises ``sum b - sum x log <b, pi>`` over its nonzeros x, pi being the product of their input factor
rows: the negative log-likelihood of the row (Hansen, Plantenga, Kolda 2015). The input modes' factor matrices have
columns of 1-norm 1, so that the first term is what the model's values add up to. The gradient is 1 - Phi.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, Literal, NamedTuple, Protocol

from ..device import Array
from ..registry import Op
from .mttkrp import Kernel, Share

RowMethod = Literal["pdnr", "pqnr"]


class RowLimits(NamedTuple):
    """When a row is done: after so many `inner` iterations, or when its KKT violation is below `tolerance`.

    The violation of a row is ``max |min(b, 1 - phi)|``. `floor` is the least that a value is divided by.
    """

    inner: int = 10
    tolerance: float = 1e-4
    floor: float = 1e-10


KKT, ITERATIONS, FAILED = range(3)
"""What is noted of rows that are solved, in float64: the largest violation of a row before its first update; inner
iterations of all rows together; steps that found no decrease, so that a multiplicative step was made."""


class RowBytes(NamedTuple):
    """Device memory that solving the rows of a share takes."""

    kept: int  # what `RowProblemsProvider.make` returns for shards of so many nonzeros
    running: int  # scratch memory that the others are given


class Shared(Protocol):
    """Rows whose nonzeros are in several shards, or on several ranks, on their way to be solved: all in step.

    Attributes
    ----------
    rows : (count, R) float64 device array
        The rows of B: the same on all ranks.
    sums, changes : (count, ...) float64 device arrays
        What the nonzeros add up to: they are cleared, added to by each shard, and summed over the ranks.
    seen : (3,) float64 device array
        See `KKT`.
    """

    rows: Array
    sums: Array
    changes: Array
    seen: Array

    def begin(self) -> None:
        """Begin anew, with other `rows`; nothing is seen so far."""

    def left(self) -> int:
        """Wait; return how many rows are not solved yet."""


class RowProblemsProvider(Protocol):
    """One way to solve row problems on a device: a provider of the operation.

    All of a row's nonzeros are in one shard, mostly: `run` solves such rows. Others are solved in step, by passes over
    the shards: pass 0 raises rows whose model is below the floor, each later one is an inner iteration::

        for number in range(1 + limits.inner):
            add_sums (each shard); sum over ranks; step; add_changes (each shard); sum over ranks; advance

    Attributes
    ----------
    method : str
    codes : int
        What its compiled code takes of host memory, as so many kernels do; see `Device.code_bytes`.
    """

    method: RowMethod
    codes: int

    def suits(self, kernel: Kernel, share: Share) -> bool:
        """Tell whether it solves such rows from that kernel's shards."""

    def bytes(self, kernel: Kernel, share: Share, nnz: int) -> RowBytes:
        """Return the device memory that shards of `nnz` nonzeros take, at most."""

    def shared_bytes(self, rank: int) -> int:
        """Return the device memory that `share_rows` takes for a row."""

    def make(self, shard: Any, share: Share, whole: slice | None = None) -> Any:
        """Return where the rows of a shard are, and in which order they are solved: made once for a shard.

        It reads the shard on the host, as `Shard.unloaded` returns it, or where it stays; not from a slot alone. Of
        rows without nonzeros only those in `whole`, if it is given, are noted: `run` is asked for no others.
        """

    def run(
        self,
        made: Any,
        shard: Any,
        factors: Sequence[Array],
        own: Array,
        rank: int,
        limits: RowLimits,
        seen: Array,
        whole: slice | None = None,
        scratch: Array = None,
    ) -> None:
        """Queue the solution of rows of a shard, in place.

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
        seen : (3,) float64 array
            What is seen of these rows is added; see `KKT`.
        whole : slice, optional
            Rows of `own` to be solved: all of their nonzeros are in this shard, or they have none, and become zero.
            Others are left alone, as another rank or shard has a part of them. All if not given.
        scratch : (bytes,) uint8 array
        """

    def share_rows(self, count: int, rank: int) -> Shared:
        """Return room for so many rows that are solved in step."""

    def add_sums(
        self,
        made: Any,
        shard: Any,
        factors: Sequence[Array],
        places: Sequence[tuple[int, int]],
        shared: Any,
        limits: RowLimits,
        scratch: Array = None,
    ) -> None:
        """Queue the addition of a shard's part of Phi, and of what else a step needs, to ``shared.sums``.

        `places` names the shard's shared rows: the place in `shared`, and the row of the share. Rows that are solved
        need not be added to.
        """

    def step(self, shared: Any, limits: RowLimits, number: int) -> None:
        """Queue the decision where each row goes, in pass `number`; rows that are solved stay."""

    def add_changes(
        self,
        made: Any,
        shard: Any,
        factors: Sequence[Array],
        places: Sequence[tuple[int, int]],
        shared: Any,
        limits: RowLimits,
        scratch: Array = None,
    ) -> None:
        """Queue the addition of what the objective changes by, for each length, to ``shared.changes``."""

    def advance(self, shared: Any, limits: RowLimits, number: int) -> None:
        """Queue the step of pass `number`, of the length that decreases the objective enough."""


ROWPROBLEMS = Op[RowProblemsProvider]("rowproblems")
"""A provider for each method."""
