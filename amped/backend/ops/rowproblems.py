"""The rowproblems operation: methods that solve each row of a mode separately.

With "pdnr" and "pqnr" of CP-APR, a row b >= 0 minimises its negative log-likelihood ``sum b - sum x log <b, pi>`` over
its nonzeros x, where pi is the product of their input factor rows (Hansen, Plantenga, Kolda 2015). The input modes'
factor matrices have columns of 1-norm 1, so the first term is the sum of the model's values. The gradient is 1 - Phi.

With "als", a row b minimises ``sum (x - <b, pi>)**2 + ridge |b|**2`` over its nonzeros: elements that are not stored
are unknown, not zero.

With "gaps", the nonzeros are those that a row lacks: their part is subtracted from equations that all rows have in
common; see `GapRowsProvider`.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, Literal, NamedTuple, Protocol, TypeVar

import numpy as np
from numpy.typing import NDArray

from partitioner.array_types import FloatDType

from ..device import Array
from ..registry import Op
from .mttkrp import Kernel, Share

RowMethod = Literal["pdnr", "pqnr", "als", "gaps"]
L_contra = TypeVar("L_contra", contravariant=True)


class RowLimits(NamedTuple):
    """When a row is solved: after `inner` iterations, or when its KKT violation is below `tolerance`.

    The violation of a row is ``max |min(b, 1 - phi)|``. `floor` is the lower bound of divisors.
    """

    inner: int = 10
    tolerance: float = 1e-4
    floor: float = 1e-10

    @property
    def partial(self) -> bool:
        """Whether rows without nonzeros are left unchanged; see `RowTerms`."""
        return False


class CommonEquations(NamedTuple):
    """Equations of rows, from which those of a shard's nonzeros are subtracted: what remains is observed.

    Attributes
    ----------
    gram : (R, R) float64 array
        The matrix of all rows.
    rights : (rows, R) float64 array
        The right-hand side of each row of the share, which does not change.
    """

    gram: Array
    rights: Array


class RowTerms(NamedTuple):
    """The least-squares problems of a mode's rows.

    Attributes
    ----------
    ridge : float
    sweeps : int
        Sweeps over the components of non-negative rows (HALS), from the current row; 0 if rows are not constrained.
    measured : bool
        Whether squared residuals are summed.
    common : CommonEquations, optional
        Of "gaps". The sum of squared residuals lacks the squares of the values.
    partial : bool
        Whether rows without nonzeros in the shard are left unchanged; otherwise they become zero. Only devices with
        "gaps" support this.
    """

    ridge: float = 0.0
    sweeps: int = 0
    measured: bool = False
    common: CommonEquations | None = None
    partial: bool = False

    @property
    def inner(self) -> int:
        """The number of passes after the first, for rows that are solved in step."""
        return 0


KKT, ITERATIONS, FAILED = range(3)
"""Positions in the float64 statistics of solved rows, for "pdnr" and "pqnr": the largest violation of a row before its
first update; the inner iterations of all rows; the steps without a decrease, which a multiplicative step replaced."""


RESIDUAL, DEFICIENT, SIZE, LEAST_SQUARES = 1, 2, 3, 4
"""Positions for "als": the sum of squared residuals; the rows without a unique solution, which become the shortest; on
GPUs, the sum of squares of the solved rows. Then the number of statistics."""


class RowBytes(NamedTuple):
    """Device memory, in bytes, for solving the rows of a share."""

    kept: int  # the results of `RowProblemsProvider.make`
    running: int  # scratch memory of the other methods


class Shared(Protocol):
    """State of rows whose nonzeros are in several shards or on several ranks. They are solved in step.

    Attributes
    ----------
    rows : (count, R) float64 device array
        The rows of B: the same on all ranks.
    sums, changes : (count, ...) float64 device arrays
        Sums over nonzeros: cleared, incremented by each shard, and summed over the ranks. `changes` may be None: steps
        then need none.
    seen : (3,) float64 device array
        Statistics; see `KKT`, and `RESIDUAL` for "als", which has four.
    """

    rows: Array
    sums: Array
    changes: Array
    seen: Array

    def begin(self) -> None:
        """Start solving new `rows`; reset the statistics."""

    def left(self) -> int:
        """Wait for the device; return the number of unsolved rows."""


class HostSums:
    """The `Shared` state of least-squares problems in host memory; each row has `width` sums."""

    def __init__(self, count: int, rank: int, width: int) -> None:
        self.rows, self.sums = np.zeros((count, rank)), np.zeros((count, width))
        self.changes, self.seen = np.zeros((count, 1)), np.zeros(LEAST_SQUARES)

    def begin(self) -> None:
        self.seen.fill(0)

    def left(self) -> int:
        return len(self.rows)

    def add_residuals(self) -> None:
        """Add the sums of squared residuals to the statistics."""
        self.seen[RESIDUAL] += self.changes.sum()


def clear_empty(nonempty: Array, own: Array, seen: Array) -> None:
    """Set rows without nonzeros, those not in `nonempty`, to zero, and record their violation: their Phi is zero."""
    empty = np.ones(len(own), np.bool_)
    empty[nonempty] = False
    if empty.any():
        seen[KKT] = max(seen[KKT], min(float(own[empty].max()), 1.0))
        own[empty] = 0


class RowProblemsProvider(Protocol[L_contra]):
    """A method to solve row problems on a device: a provider of the operation.

    `run` solves rows whose nonzeros are in one shard, as is usual. Other rows are solved in step, by passes over the
    shards: pass 0 raises rows whose model is below the floor, and each later pass is an inner iteration::

        for number in range(1 + limits.inner):
            add_sums (each shard); sum over ranks; step; add_changes (each shard); sum over ranks; advance

    Attributes
    ----------
    method : str
    codes : int
        Host memory of its compiled code, in units of `Device.code_bytes`.
    """

    method: RowMethod
    codes: int

    def suits(self, kernel: Kernel, share: Share) -> bool:
        """Return whether it supports such nonzeros in that kernel's shards."""

    def prepare(self, kernel: Kernel, share: Share, rank: int) -> None:
        """Start compiling; return immediately."""

    def bytes(self, kernel: Kernel, share: Share, nnz: int) -> RowBytes:
        """Return an upper bound of the device memory for shards of `nnz` nonzeros."""

    def shared_bytes(self, rank: int) -> int:
        """Return the device memory that `share_rows` allocates per row."""

    def make(self, shard: Any, share: Share, whole: slice | None = None) -> Any:
        """Return the positions of the rows of a shard and the order in which to solve them, computed once per shard.

        The shard must be resident, or in host memory as returned by `Shard.unloaded`. If `whole` is given, `run` is
        only called for these rows, so other rows without nonzeros are omitted.
        """

    def run(
        self,
        made: Any,
        shard: Any,
        factors: Sequence[Array],
        own: Array,
        rank: int,
        limits: L_contra,
        seen: Array,
        whole: slice | None = None,
        scratch: Array = None,
    ) -> None:
        """Queue the solution of rows of a shard, in place.

        Results are independent of the number of threads.

        Parameters
        ----------
        made : object
            The result of `make` for this shard.
        shard : Shard
        factors : sequence of (I_m, stride) arrays
            The input modes' factor matrices, ascending; their columns have 1-norm 1.
        own : (rows, stride) array
            The share's rows of the output mode's matrix B, of the same type. All arithmetic is in double precision.
        rank : int
            Number of columns to solve; others are unchanged.
        limits : RowLimits or RowTerms
        seen : (3,) float64 array
            Incremented by the statistics of these rows; see `KKT`, and `RESIDUAL` for "als", which has four.
        whole : slice, optional
            Rows of `own` to solve, all by default. Their nonzeros are all in this shard; rows without nonzeros become
            zero. Other rows, which have nonzeros in other shards or on other ranks, are unchanged.
        scratch : (bytes,) uint8 array
        """

    def share_rows(self, count: int, rank: int) -> Shared:
        """Return the state of `count` rows that are solved in step."""

    def add_sums(
        self,
        made: Any,
        shard: Any,
        factors: Sequence[Array],
        places: Sequence[tuple[int, int]],
        shared: Any,
        limits: L_contra,
        scratch: Array = None,
    ) -> None:
        """Queue the addition of a shard's contribution to Phi and other sums of a step to ``shared.sums``.

        `places` are the shard's shared rows, as (position in `shared`, row of the share). Solved rows may be skipped.
        """

    def step(self, shared: Any, limits: L_contra, number: int) -> None:
        """Queue the computation of each row's step direction in pass `number`; solved rows do not change."""

    def add_changes(
        self,
        made: Any,
        shard: Any,
        factors: Sequence[Array],
        places: Sequence[tuple[int, int]],
        shared: Any,
        limits: L_contra,
        scratch: Array = None,
    ) -> None:
        """Queue the addition of the change of the objective, for each step length, to ``shared.changes``."""

    def advance(self, shared: Any, limits: L_contra, number: int) -> None:
        """Queue the step of pass `number`, with the largest step length that decreases the objective enough."""


class GapRowsProvider(RowProblemsProvider[RowTerms], Protocol):
    """A provider with method "gaps": only `run` is called, with `RowTerms.common` and `RowTerms.partial`."""

    def make_common(self, rows: NDArray[np.intp], rank: int, dtype: FloatDType) -> Any:
        """Return what `run_common` needs to solve rows that lack nothing, by their numbers."""

    def run_common(self, made: Any, own: Array, rank: int, limits: RowTerms, seen: Array) -> None:
        """Queue the solution of these rows of `own` from the common equations; see `run`."""

    def common_bytes(self, rows: int, rank: int) -> int:
        """Return the device memory of the result of `make_common` for `rows` rows."""


ROWPROBLEMS = Op[RowProblemsProvider[Any]]("rowproblems")
"""A provider for each method."""
