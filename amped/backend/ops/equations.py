"""The equations operation: the normal equations of CP-ALS, and the solution of factor rows by them.

Rows of a factor matrix are stored before the norms of their columns are known, divided so that the largest number of a
stored column is about 1. The factor by which a stored column must be multiplied is its *scale*; the *norm* that was
removed from it is stored separately. All state is in double precision.

Equations belong to a batch of runs, usually a single one. Several runs share the factor matrices; each has its own
columns. The state of a run that raises a flag no longer changes until it is taken out; other runs are not affected.
"""

from __future__ import annotations

from typing import NamedTuple, Protocol

import numpy as np
from numpy.typing import NDArray

from partitioner.array_types import FloatDType

from ..device import Array, Device
from ..registry import Op

SINGULAR, NOISY, RANGE, NOT_FINITE, NEAR = (1 << k for k in range(5))
"""Flags: the inverse is inaccurate; equations are too ill-conditioned for single precision; the magnitudes of stored
columns are out of range; a number is not finite; the fit is too near 1 for single precision."""

ROUNDING = 2.0**-22  # relative error of the inner product of a component: a few roundings in single precision
SINGLE = 2.0**-24  # relative error of a row of an MTTKRP; sums of many products have less
ACCURACY = 1e-6  # permitted error of a fit
NEARBY = 0.75  # once a fit exceeds it, all fits use double precision, so that tolerances compare fits of equal accuracy
CONDITION = 1e11  # largest condition number (Frobenius) of a matrix that is inverted by elimination
CUTOFF = 1 / CONDITION  # eigenvalues below this fraction of the largest count as 0; see `inverse.pseudo_inverse`


class Terms(NamedTuple):
    """Parameters of the equations of a decomposition."""

    order: int
    rank: int
    parts: int  # number of process ranks
    part: int  # this process rank
    norm: float  # of the tensor
    most: float  # limit of the largest magnitude of a stored column; see `limits.far`
    gains: bool  # whether an MTTKRP in double precision is more accurate than a plain one

    @property
    def noise(self) -> float:
        """Largest condition number for single precision if the relative residual is 1; proportional to the residual.

        An MTTKRP with relative error ``e`` gives a least-squares solution whose model differs from the exact one by up
        to ``e * sqrt(condition)`` times the tensor's norm. This error is orthogonal to the residual, so squares add:
        the larger the residual, the less the fit changes.
        """
        return 2 * ACCURACY / SINGLE**2 if self.gains else np.inf


class ConstraintBounds(NamedTuple):
    """Constraints in the form that equations take."""

    ridge: tuple[float, ...]  # per mode, added to the diagonal of the other modes' Gram product
    nonnegative: tuple[int, ...]  # modes
    last: int  # the mode that is solved last in an iteration
    sweeps: int = 0  # over the columns of a non-negative factor matrix, per solve
    constrained: bool = True  # if True, columns have unit 2-norm whenever the next mode is solved

    @classmethod
    def none(cls, order: int) -> ConstraintBounds:
        """Return the bounds of a tensor of this order without constraints."""
        return cls((0.0,) * order, (), order - 1, constrained=False)


class EquationsCase(NamedTuple):
    """The case for which equations are created."""

    terms: Terms  # for several runs, `rank` is the largest one
    dtype: FloatDType  # of factor matrices
    rows: tuple[int, ...]  # number of rows that are solved per mode
    bounds: ConstraintBounds
    places: int = 1  # maximum number of runs

    @property
    def nonnegative_rows(self) -> int:
        """The rows of the longest non-negative mode."""
        return max((self.rows[mode] for mode in self.bounds.nonnegative), default=0)


class EquationsStatus(NamedTuple):
    """The state of a run as the host reads it."""

    flags: int
    iterations: int
    fit: float  # of the last iteration; NaN before the first
    norms: NDArray[np.float64]  # (N, R), removed from the columns of factor matrices
    scales: NDArray[np.float64]  # (N, R), factors by which stored columns must be multiplied
    squares: float = 0.0  # sum of the squared norms of the components, if equations are constrained


class RunStart(NamedTuple):
    """The state from which a run continues."""

    status: EquationsStatus
    best: float  # best fit so far
    grams: NDArray[np.float64]  # (N, R, R), of the stored columns
    weights: NDArray[np.float64] | None = None  # (R,) norms of the components; None before any solve


class RunStopped(NamedTuple):
    """The state from which another method continues."""

    status: EquationsStatus
    mode: int  # the mode to solve next
    weights: NDArray[np.float64]  # (R,)


class Equations(Protocol):
    """The equations of a batch of runs.

    All methods except `put`, `take`, `invert` and `status` queue work. The order for each mode is `prepare`, `solve`, a
    sum of `totals` over the ranks, and `finish`; after the last mode follows `fit`.

    Attributes
    ----------
    totals : (places, R + 2 + ranks, R) device array
        The Gram matrix of the stored rows, the inner products of its columns and the MTTKRP's, whether equations are
        `NOISY`, and one row per rank with its columns' largest magnitudes. One sum over the ranks combines all of them.
    dots : (places, blocks, R) device array
        Partial inner products in double precision, to be summed over the ranks.
    memory : (bytes,) uint8 device array, or None
        All state that changes between iterations; None if the host takes part, so that work cannot be queued ahead.
    reported : (bytes,) uint8 device array, or None
        The status that `report` writes and the host reads after an iteration; None if `memory` is None.
    allocates : bool
        Whether `solve` allocates memory and so cannot be captured.
    """

    totals: Array
    dots: Array
    memory: Array | None
    reported: Array | None
    allocates: bool

    def put(self, place: int, columns: slice, start: RunStart) -> None:
        """Start a run in a place, with these columns."""

    def take(self, place: int) -> RunStopped:
        """Wait for queued work, free a place, and return the state of its run."""

    def prepare(self, mode: int, double: bool = False) -> None:
        """Compute the inverses and clear `totals`. For an MTTKRP in double precision equations are never `NOISY`."""

    def invert(self, mode: int, double: bool = False) -> None:
        """Compute the pseudo-inverse of a single run that is `SINGULAR`, and whether its equations are `NOISY`."""

    def solve(self, mode: int, source: Array, target: Array, again: bool = False) -> None:
        """Solve rows from those of an MTTKRP and add to `totals`, possibly on the side stream.

        Both arrays are (rows, columns of all runs). `again`: after `widen`, only for runs out of `RANGE`.
        """

    def widen(self, mode: int) -> None:
        """Change the divisors of columns of runs that are out of `RANGE`, and clear their `totals`.

        The `totals` of the other runs are kept on one rank only, so that they can be summed over the ranks again.
        """

    def finish(self, mode: int, again: bool = False) -> None:
        """Remove the norms from the columns; `again`: after `widen`, without checking `RANGE`."""

    def measure(self, norm: float) -> None:
        """Set the tensor's norm, which may be NaN before the first fit; only fits depend on it."""

    def multiply(self, source: Array, target: Array) -> None:
        """Write the inner products of the columns of an MTTKRP in double precision and the stored matrix to `dots`."""

    def fit(self, exact: bool = False) -> None:
        """Compute the fit from `totals`; `exact`: from `dots`, for runs whose fit is `NEAR` 1."""

    def report(self) -> None:
        """Queue the update of `reported`."""

    def status(self) -> list[EquationsStatus]:
        """Wait for queued work; return the status of each place. This clears a single run's flags except `NEAR`."""

    def read(self, memory: NDArray[np.uint8]) -> list[EquationsStatus]:
        """Return the status of each place from a copy of `reported`; for several runs without norms and scales."""

    def snapshot(self, source: Array, target: Array) -> None:
        """Queue a copy of device memory, skipped if a single run has raised a flag."""


class EquationsProvider(Protocol):
    """A provider of equations on a device.

    Attributes
    ----------
    batch_columns : int
        The largest number of columns of a run in a batch of several; 0 if only single runs are supported.
    """

    batch_columns: int

    def suits(self, rank: int) -> bool:
        """Return whether single runs of this rank are supported."""

    def prepare(self, rank: int, dtype: FloatDType, several: bool = False, nonnegative: bool = False) -> None:
        """Start compiling the code for a run of this rank; return immediately.

        For `several` runs of at most this rank it includes the code that solves rows, some of them `nonnegative`.
        """

    def bytes(self, order: int, rank: int, parts: int, places: int = 1, rows: int = 0) -> int:
        """Return the device memory of equations.

        For several runs it includes the memory for solving `rows` rows; for a single run see `RowSolvers`.
        """

    def make(self, case: EquationsCase) -> Equations:
        """Return equations without runs."""


EQUATIONS = Op[EquationsProvider]("equations")
"""The last provider supports all ranks."""


def equations_of(device: Device, rank: int) -> EquationsProvider:
    """Return the first provider that supports single runs of this rank."""
    return EQUATIONS.require(device, lambda provider: provider.suits(rank))


def batch_equations(device: Device) -> EquationsProvider | None:
    """Return the provider that supports several runs at once; None if the device has none."""
    return EQUATIONS.first(device, lambda provider: provider.batch_columns > 0)
