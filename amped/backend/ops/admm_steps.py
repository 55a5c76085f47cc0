"""The ADMM-steps operation: what ADMM computes beside the proximal operators of a mode, in few launches on a device."""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple, Protocol

from ..device import Array
from ..registry import Op


class EntryTerms(NamedTuple):
    """A proximal operator that takes each entry by itself, and then shortens columns.

    Attributes
    ----------
    low, high : float
        Bounds.
    l1 : float
        What is subtracted from magnitudes first.
    ball : bool
        Whether columns are shortened to a 2-norm of at most 1.
    """

    low: float
    high: float
    l1: float
    ball: bool


class AdmmStart(NamedTuple):
    """What the iterations of a mode with K proximal operators begin with; device arrays in double precision.

    Attributes
    ----------
    rows : (I, R) array
        The rows so far.
    scaled : (K, I, R) array
        The scaled duals; overwritten.
    unmoved : (I, R) array
        The solution for zeros.
    inverse : (R, R) array
        By which rows are multiplied for the solution beyond that.
    first : EntryTerms or None
        The first operator, if it is one of entries.
    """

    rows: Array
    scaled: Array
    unmoved: Array
    inverse: Array
    first: EntryTerms | None


class AdmmSteps(Protocol):
    """Iterations of a mode.

    Attributes
    ----------
    copies, scaled : (K, I, R) array
        The results of the operators, and the scaled duals.
    """

    copies: Array
    scaled: Array

    def advance(self) -> Array:
        """Return the arguments of the operators, (K, I, R): the solution for ``sum(copies + scaled)`` less `scaled`."""

    def settle(self, results: Sequence[Array], tested: bool) -> Array:
        """Take the results of the operators, (I, R) each, and update `copies` and `scaled`.

        None stands for the first operator, if it is one of entries; others are C-contiguous. If `tested`, the result is
        a (K, 4) array of sums of squares: of the change of the dual, of the result, of its change, and of the dual.
        """


class AdmmStepsProvider(Protocol):
    """A provider of the operation."""

    def suits(self, rank: int, operators: int) -> bool:
        """Return whether `rank` columns and this number of operators are supported."""

    def begin(self, start: AdmmStart) -> AdmmSteps:
        """Return the iterations."""


ADMM_STEPS = Op[AdmmStepsProvider]("admm_steps")
"""Only GPUs have a provider, for some ranks."""
