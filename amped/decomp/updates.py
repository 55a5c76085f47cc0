"""How the rows of a factor matrix follow from their MTTKRP and the Gram matrices of the other modes."""

from __future__ import annotations

from collections.abc import Sequence
from functools import cached_property
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from ..backend.base import Array
from ..backend.providers import solver
from ..backend.solve import Sums
from ..operators.base import Operator

Matrix = NDArray[np.float64]
Vector = NDArray[np.float64]


class DivergedError(ArithmeticError):
    """A result is no longer a number."""


class Totals(NamedTuple):
    """Gram matrix, inner products and column maxima of a factor matrix as it is stored, of all ranks' rows.

    Attributes
    ----------
    gram : (R, R) float64 array
    dots : (R,) float64 array
        Inner products of its columns with those of the MTTKRP; of the last mode only.
    largest : (R,) float64 array
        Magnitudes of its columns' largest numbers, before they were rounded.
    """

    gram: Matrix
    dots: Vector
    largest: Vector


class LeastSquares:
    """Solves rows by the pseudo-inverse of the product of the other modes' Gram matrices (Kolda and Bader 2009).

    Rows are rounded once, when they are stored, and the Gram matrix is made of what is stored: so factors in single
    precision follow the path of those in double precision. Norms come after, and are kept beside the matrix.

    Parameters
    ----------
    operator : Operator
    """

    def __init__(self, operator: Operator) -> None:
        self._operator, self._rank = operator, operator.ranks[0]
        device, comm, dtype = operator.machine.device, operator.machine.comm, operator.options.dtype
        rows = max(len(operator.owned(mode)) for mode in range(operator.order))
        self._solver = solver(device, self._rank, dtype)
        self._made = self._solver.make(rows, self._rank, dtype)
        # The Gram matrix, dots, and a row for each rank's largest numbers: one sum over the ranks combines them all.
        self._totals = device.zeros((self._rank + 1 + comm.size, self._rank), np.float64)
        self._largest = self._totals[self._rank + 1 + comm.rank]

    def rows(self, mode: int, grams: Sequence[Matrix], scales: Matrix, divisor: Vector) -> Rows:
        """Return what solves the rows of a mode.

        Parameters
        ----------
        mode : int
        grams : sequence of (R, R) arrays
            Of all factor matrices with their columns scaled.
        scales : (N, R) array
            What the columns of the stored factor matrices are to be multiplied with.
        divisor : (R,) array
            What the columns of the new one are divided by when they are stored.
        """
        self._totals.fill(0)
        return Rows(self, mode, (grams, scales, divisor))

    def solve(self, mode: int, inverse: Array, source: Array, target: Array) -> None:
        """Queue the solution of rows of the MTTKRP, (rows, R), into rows of the factor matrix."""
        totals, rank = self._totals, self._rank
        dots = totals[rank] if mode == self._operator.order - 1 else None
        with self._operator.span("solve", mode):
            self._solver.run(self._made, source, inverse, target, Sums(totals[:rank], self._largest, dots))

    def totals(self, mode: int) -> Totals:
        """Return what was added up since `rows`. Collective."""
        totals, rank = np.array(self._operator.reduce(self._totals, "sum", mode)), self._rank
        return Totals(totals[:rank], totals[rank], totals[rank + 1 :].max(axis=0))

    def to_device(self, inverse: Matrix) -> Array:
        """Return a small matrix in device memory."""
        return self._operator.machine.device.to_device(inverse)


class Rows:
    """Solves rows of one mode as their MTTKRP comes: what `Operator.mttkrp` calls."""

    def __init__(self, update: LeastSquares, mode: int, given: tuple[Sequence[Matrix], Matrix, Vector]) -> None:
        self._update, self._mode, self._given = update, mode, given

    @cached_property
    def _inverse(self) -> Any:
        """Made when rows are there to be solved: a device computes meanwhile."""
        grams, scales, divisor = self._given
        others = [m for m in range(len(grams)) if m != self._mode]
        inverse = pseudo_inverse(np.prod([grams[m] for m in others], axis=0))
        inverse *= np.prod(scales[others], axis=0)[:, None]
        return self._update.to_device(inverse / divisor)

    def __call__(self, source: Array, target: Array) -> None:
        """See `Solve`."""
        self._update.solve(self._mode, self._inverse, source, target)


def pseudo_inverse(gram: Matrix) -> Matrix:
    """Return the Moore-Penrose inverse of a symmetric positive semidefinite matrix.

    It solves rank-deficient least squares with the smallest norm, so that nothing becomes NaN.
    """
    if not np.all(np.isfinite(gram)):
        raise DivergedError("the Gram matrices of the other modes are not finite")
    cutoff = gram.shape[0] * np.finfo(np.float64).eps
    return np.asarray(np.linalg.pinv(gram, rcond=cutoff, hermitian=True), np.float64)
