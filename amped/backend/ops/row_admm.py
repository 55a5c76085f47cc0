"""The row_admm operation: ADMM of the rows of a factor matrix whose constraints do not relate them, on the device.

The device multiplies Gram matrices, inverts their product, solves each row with its own test of convergence, and sums
the new Gram matrix and the objective; the host waits for nothing. A row never increases its objective. See
`amped.methods.proximal.admm`.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple, Protocol

from partitioner.array_types import FloatDType

from ..device import Array
from ..registry import Op


class RowTerms(NamedTuple):
    """The constraints and penalties of the entries of a row.

    Attributes
    ----------
    low, high : float
        Bounds.
    l1, l2 : float
        Factors of the penalties ``|z|_1`` and ``|z|**2 / 2``.
    simplex : bool
        Whether entries are at least 0 and add up to 1.
    least_squares : bool
        Whether there are no constraints, and no penalty but `l2`.
    """

    low: float
    high: float
    l1: float
    l2: float
    simplex: bool
    least_squares: bool


class RowAdmmCase(NamedTuple):
    """The case for which a solver is created: rows to solve per mode at most, and the constraints of each mode."""

    rank: int
    dtype: FloatDType
    rows: int
    terms: Sequence[RowTerms]


class RowAdmm(Protocol):
    """Solves the rows of the modes of a run.

    Attributes
    ----------
    totals : (N, R * R + 2) float64 device array
        For each mode the Gram matrix of the factor matrix, ``-<b, z> + <z G, z> / 2`` summed over its rows, and the
        penalty. Those of other ranks' rows must be added before `prepare` of the next mode.
    """

    totals: Array

    def prepare(self, mode: int) -> None:
        """Queue what follows from the other modes' Gram matrices, and clear the totals of a mode."""

    def solve(self, mode: int, source: Array, target: Array, dual: Array, fixed: Array) -> None:
        """Queue the solution of some rows of a mode in place, from `target` and `dual`, and add to its totals.

        Parameters
        ----------
        mode : int
        source : (rows, R) float64 array
            Rows of the MTTKRP.
        target : (rows, R) array
            Rows of the factor matrix.
        dual : (rows, R) float64 array or None
            The dual variables, not divided by rho; None if the mode has no constraints.
        fixed : (rows, R) bool array or None
            Entries that keep their values.
        """


class RowAdmmProvider(Protocol):
    """A provider of the operation."""

    def suits(self, rank: int) -> bool:
        """Return whether rows of `rank` columns are supported."""

    def bytes(self, order: int, rank: int, rows: int) -> int:
        """Return the device memory that `make` allocates."""

    def make(self, case: RowAdmmCase) -> RowAdmm:
        """Return a solver."""


ROW_ADMM = Op[RowAdmmProvider]("row_admm")
"""Devices without a provider solve rows by array operations."""
