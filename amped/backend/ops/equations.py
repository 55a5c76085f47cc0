"""The operation that keeps the normal equations of CP-ALS, and solves the rows of factor matrices by them.

Rows of a factor matrix are stored before the norms of their columns are known. So the largest number of a stored column
is about 1. What the column is to be multiplied by is its *scale*; its *norm* has been taken out of it as well. All is
in double precision.

Equations are those of a batch of runs, usually of one. The factor matrices are shared: each of several runs has columns
of its own. One that raises a flag is left as it is until it is taken out; for the others nothing changes.
"""

from __future__ import annotations

from typing import NamedTuple, Protocol

import numpy as np
from numpy.typing import NDArray

from ..device import Array, Device
from ..registry import Op

SINGULAR, NOISY, RANGE, NOT_FINITE, NEAR = (1 << k for k in range(5))
"""Flags: the inverse is not accurate; equations are so ill-conditioned that single precision does not suffice; stored
columns are too long or short to be multiplied; a number is none; the fit is too near 1 for single precision."""

ROUNDING = 2.0**-22  # of the inner product of a component, relative: a few roundings of products in single precision
SINGLE = 2.0**-24  # the relative error of a row of an MTTKRP: sums of more products have less
ACCURACY = 1e-6  # of a fit
NEARBY = 0.75  # once a fit was above it, all are computed in double precision: a tolerance compares those of one kind
CONDITION = 1e11  # of a matrix that is inverted by elimination, at most; by its norm and that of its inverse
CUTOFF = 1 / CONDITION  # eigenvalues below so many times the largest count as 0: see `inverse.pseudo_inverse`


class Terms(NamedTuple):
    """What the equations of one decomposition have in common."""

    order: int
    rank: int
    parts: int  # process ranks
    part: int  # this one
    norm: float  # of the tensor
    most: float  # how far from 1 the largest number of a stored column may be
    gains: bool  # whether an MTTKRP in double precision is better than a plain one

    @property
    def noise(self) -> float:
        """Up to which condition number single precision suffices, where model and tensor are their norm apart.

        An MTTKRP with a relative error ``e`` gives a least-squares solution whose model is up to
        ``e * sqrt(condition)`` times the tensor's norm away from the right one, at a right angle to the rest: that adds
        its square to the square of the distance. The farther they are apart, the less the fit changes.
        """
        return 2 * ACCURACY / SINGLE**2 if self.gains else np.inf


class ConstraintBounds(NamedTuple):
    """What the equations need to know of the constraints."""

    ridge: tuple[float, ...]  # for each mode what is added to the diagonal of the Gram matrix of the others
    nonnegative: tuple[int, ...]  # modes
    last: int  # the mode that is solved last in an iteration
    sweeps: int = 0  # over the columns of a non-negative factor matrix, each time that its mode is solved
    constrained: bool = True  # then columns have unit 2-norm whenever the next mode is solved

    @classmethod
    def none(cls, order: int) -> ConstraintBounds:
        """Return the bounds of a tensor of this order without constraints."""
        return cls((0.0,) * order, (), order - 1, constrained=False)


class Case(NamedTuple):
    """What equations are made for."""

    terms: Terms  # of several runs, `rank` is that of the one with the most columns
    dtype: np.dtype[np.floating]  # of factor matrices
    rows: tuple[int, ...]  # that are solved of each mode
    bounds: ConstraintBounds
    places: int = 1  # runs, at most

    @property
    def nonnegative_rows(self) -> int:
        """The rows of the longest non-negative mode."""
        return max((self.rows[mode] for mode in self.bounds.nonnegative), default=0)


class EquationsStatus(NamedTuple):
    """The state of a run as the host reads it."""

    flags: int
    iterations: int
    fit: float  # of the last iteration; NaN before the first
    norms: NDArray[np.float64]  # (N, R) taken out of the factor matrices' columns
    scales: NDArray[np.float64]  # (N, R) by which stored columns are to be multiplied
    squares: float = 0.0  # the sum of the squared norms of the components; where equations are constrained


class RunStart(NamedTuple):
    """The state from which a run continues."""

    status: EquationsStatus
    best: float  # fit so far
    grams: NDArray[np.float64]  # (N, R, R), of the columns as they are stored
    weights: NDArray[np.float64] | None = None  # (R,) norms of the components; None at a start


class RunStopped(NamedTuple):
    """The state from which another method continues."""

    status: EquationsStatus
    mode: int  # the one that is solved next
    weights: NDArray[np.float64]  # (R,)


class Equations(Protocol):
    """The equations of a batch of runs.

    All methods but `put`, `take`, `invert` and `status` queue work, in this order for each mode: `prepare`, `solve`,
    `totals` are added up over the ranks, `finish`; after the last mode `fit`.

    Attributes
    ----------
    totals : (places, R + 2 + ranks, R) device array
        The Gram matrix of the stored rows, inner products of its columns with those of the MTTKRP, whether equations
        are `NOISY`, and a row for each rank's largest numbers: one sum over the ranks combines them all.
    dots : (places, blocks, R) device array
        Parts of inner products in double precision, to be added up over the ranks.
    memory : (bytes,) uint8 device array, or None
        All that changes from one iteration to the next; None where the host takes part, so that no work can be queued
        ahead of it.
    reported : (bytes,) uint8 device array, or None
        What `report` writes, and the host reads after an iteration; None where `memory` is.
    allocates : bool
        Whether `solve` allocates memory, so that it cannot be captured.
    """

    totals: Array
    dots: Array
    memory: Array | None
    reported: Array | None
    allocates: bool

    def put(self, place: int, columns: slice, start: RunStart) -> None:
        """Begin to compute a run, which has these columns."""

    def take(self, place: int) -> RunStopped:
        """Wait for what is queued, free a place, and return the state of its run."""

    def prepare(self, mode: int, double: bool = False) -> None:
        """Make what rows are solved with, and clear `totals`; of an MTTKRP in double precision nothing is `NOISY`."""

    def invert(self, mode: int, double: bool = False) -> None:
        """Compute the pseudo-inverse where a single run is `SINGULAR`; find out whether its equations are `NOISY`."""

    def solve(self, mode: int, source: Array, target: Array, again: bool = False) -> None:
        """Solve rows from those of an MTTKRP, both (rows, columns of all runs), and add to `totals`, perhaps beside.

        `again`: after `widen`, of the runs out of `RANGE`.
        """

    def widen(self, mode: int) -> None:
        """Change what columns are divided by, of runs that are out of `RANGE`, and clear their `totals`.

        Of the other runs only one rank keeps its `totals`, so that they can be added up over the ranks again.
        """

    def finish(self, mode: int, again: bool = False) -> None:
        """Take the norms out of the columns; `again`: after `widen`, so that whatever is within `RANGE` is taken."""

    def measure(self, norm: float) -> None:
        """Take the tensor's norm, on which only fits depend: it may be NaN before the first one."""

    def multiply(self, source: Array, target: Array) -> None:
        """Write `dots`: of the columns of an MTTKRP in double precision with those of the stored matrix."""

    def fit(self, exact: bool = False) -> None:
        """Compute the fit from `totals`; `exact`: from `dots`, of runs whose fit is `NEAR` 1."""

    def report(self) -> None:
        """Queue the writing of `reported`."""

    def status(self) -> list[EquationsStatus]:
        """Wait for what is queued; return the state of each place. A single run's flags are cleared but for `NEAR`."""

    def read(self, memory: NDArray[np.uint8]) -> list[EquationsStatus]:
        """Return the state of each place from a copy of `reported`; of several runs without norms and scales."""

    def snapshot(self, source: Array, target: Array) -> None:
        """Queue a copy of device memory, unless a single run has set a flag."""


class EquationsProvider(Protocol):
    """One way to keep equations on a device: a provider of the operation.

    Attributes
    ----------
    several : int
        The most columns of a run of which it serves several; 0 if it serves single runs only.
    """

    batch_columns: int

    def suits(self, rank: int) -> bool:
        """Tell whether it keeps the matrices of a single run of so many columns."""

    def prepare(self, rank: int, dtype: np.dtype[np.floating]) -> None:
        """Begin to compile what a single run of so many columns needs, where that takes long, and return at once."""

    def bytes(self, order: int, rank: int, parts: int, places: int = 1, rows: int = 0) -> int:
        """Return the device memory that they take.

        That of several runs includes what solves so many rows; for a single run see `RowSolvers`.
        """

    def make(self, case: Case) -> Equations:
        """Return equations without runs."""


EQUATIONS = Op[EquationsProvider]("equations")
"""The last provider suits all."""


def equations_of(device: Device, rank: int) -> EquationsProvider:
    """Return the first provider that suits matrices of this many columns."""
    return EQUATIONS.require(device, lambda provider: provider.suits(rank))


def batch_equations(device: Device) -> EquationsProvider | None:
    """Return the provider that serves several runs at once, if the device has one."""
    return EQUATIONS.first(device, lambda provider: provider.batch_columns > 0)
