"""The operation that keeps the small matrices of CP-ALS: Gram matrices, norms, and what solves rows of factor matrices.

Rows of a factor matrix are stored before the norms of their columns are known. So the largest number of a stored column
is about 1. What the column is to be multiplied with is its *scale*; its *norm* has been taken out of it besides. All is
in double precision.
"""

from __future__ import annotations

from typing import NamedTuple, Protocol

import numpy as np
from numpy.typing import NDArray

from ..device import Array, Device
from ..registry import Op
from .nonnegative import System
from .solve import Sums

SINGULAR, NOISY, RANGE, NOT_FINITE, NEAR = (1 << k for k in range(5))
"""Flags: the inverse is not accurate; equations are so ill-conditioned that single precision does not suffice; stored
columns are too long or short to be multiplied; a number is none; the fit is too near 1 for single precision."""

ROUNDING = 2.0**-22  # of the inner product of a component, relative: a few roundings of products in single precision
SINGLE = 2.0**-24  # the relative error of a row of an MTTKRP: sums of more products have less
ACCURACY = 1e-6  # of a fit
NEARBY = 0.75  # once a fit was above it, all are computed in double precision: a tolerance compares those of one kind
CONDITION = 1e11  # of a matrix that is inverted by elimination, at most; by its norm and that of its inverse
CUTOFF = 1 / CONDITION  # eigenvalues below so many times the largest count as 0: see `small.pseudo_inverse`


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
    """What equations are to know of constraints."""

    ridge: tuple[float, ...]  # for each mode what is added to the diagonal of the Gram matrix of the others
    nonnegative: tuple[int, ...]  # modes
    last: int  # the mode that is solved last in an iteration


class EquationsStatus(NamedTuple):
    """What the host is told."""

    flags: int
    iterations: int
    fit: float  # of the last iteration; NaN before the first
    norms: NDArray[np.float64]  # (N, R) taken out of the factor matrices' columns
    scales: NDArray[np.float64]  # (N, R) what stored columns are to be multiplied with
    squares: float = 0.0  # the squared norms of the components, added up; where equations are constrained


class Equations(Protocol):
    """The equations of one decomposition. What it computes is queued, in this order for each mode: `prepare`, rows are
    solved by `inverse`, `totals` are added up over the ranks, `finish`; after the last mode `fit`.

    Attributes
    ----------
    inverse : (R, R) device array
        What the rows of an MTTKRP are multiplied with to get those of the factor matrix.
    totals : (R + 2 + ranks, R) device array
        The Gram matrix of the stored rows, inner products of its columns with those of the MTTKRP, whether equations
        are `NOISY`, and a row for each rank's largest numbers: one sum over the ranks combines them all.
    dots : (blocks, R) device array
        Parts of inner products in double precision, to be added up over the ranks.
    memory : (bytes,) uint8 device array, or None
        All that changes from one iteration to the next; None where the host takes part, so that no work can be queued
        ahead of it.
    """

    inverse: Array
    totals: Array
    dots: Array
    memory: Array | None
    told_bytes: int

    def sums(self, mode: int) -> Sums:
        """Return where the solver of a mode's rows adds up."""

    def load(self, told: EquationsStatus, best: float) -> None:
        """Go on from what was told; the best fit so far is `best`. The Gram matrices are still to be held."""

    def hold(self, mode: int) -> None:
        """Keep the Gram matrix in `totals` for a mode, whose columns are stored with their scales."""

    def prepare(self, mode: int, double: bool = False) -> None:
        """Make `inverse`, and clear `totals`; of an MTTKRP in double precision nothing is `NOISY`."""

    def invert(self, mode: int, double: bool = False) -> None:
        """Make `inverse` anew where it is `SINGULAR`, the pseudo-inverse; find out whether equations are `NOISY`."""

    def widen(self) -> None:
        """Change what columns are divided by, where they are out of `RANGE`, and clear `totals`, to solve once more."""

    def finish(self, mode: int, again: bool = False) -> None:
        """Take the norms out of the columns; `again`: after `widen`, so that whatever is within `RANGE` is taken."""

    def measure(self, norm: float) -> None:
        """Take the tensor's norm, which only fits depend on: it may be NaN before the first one."""

    def multiply(self, source: Array, target: Array) -> None:
        """Write `dots`: of the columns of an MTTKRP in double precision with those of the stored matrix."""

    def fit(self, exact: bool = False) -> None:
        """Compute the fit, from `totals`; if it is `NEAR`, later from `dots`, which are `exact`."""

    def told(self) -> EquationsStatus:
        """Wait for what is queued, and return what it told; flags are cleared but for `NEAR`."""

    def read(self, memory: NDArray[np.uint8]) -> EquationsStatus:
        """Return what a copy of the first bytes of `memory` tells, as many as `told_bytes`."""

    def keep(self, source: Array, target: Array) -> None:
        """Queue a copy of device memory, unless a flag is set."""


class ConstrainedEquations(Equations, Protocol):
    """Equations whose solutions are constrained.

    Columns have unit 2-norm whenever the next mode is solved: so a ridge is the same for all modes, and all Gram
    matrices have ones on their diagonal, or zeros.

    Attributes
    ----------
    system : System
        What rows without negative numbers are to minimise; `prepare` makes it for the modes that have such.
    """

    system: System

    def start(self) -> None:
        """Take the norms out of all columns, once the Gram matrices are held."""

    def go_on(self, weights: NDArray[np.float64]) -> None:
        """Take these weights, of factor matrices whose norms were taken out before."""


class EquationsProvider(Protocol):
    """One way to keep equations on a device: a provider of the operation."""

    def suits(self, rank: int) -> bool:
        """Tell whether it keeps matrices of so many columns."""

    def prepare(self, rank: int, dtype: np.dtype[np.floating]) -> None:
        """Begin to compile what so many columns need, where that takes long, and return at once."""

    def bytes(self, order: int, rank: int, parts: int) -> int:
        """Return the device memory that they take."""

    def make(self, terms: Terms, dtype: np.dtype[np.floating]) -> Equations:
        """Return the equations of a decomposition whose factor matrices are stored as `dtype`."""

    def make_constrained(
        self, terms: Terms, dtype: np.dtype[np.floating], bounds: ConstraintBounds
    ) -> ConstrainedEquations:
        """Return those of one whose factor matrices are constrained."""


EQUATIONS = Op[EquationsProvider]("equations")
"""The last provider suits all."""


def equations_of(device: Device, rank: int) -> EquationsProvider:
    """Return the first provider that suits matrices of this many columns."""
    return EQUATIONS.require(device, lambda provider: provider.suits(rank))
