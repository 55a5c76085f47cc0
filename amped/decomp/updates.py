"""How the rows of a factor matrix follow from their MTTKRP and the Gram matrices of the other modes."""

from __future__ import annotations

from collections.abc import Sequence
from functools import cache
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from ..backend.base import Array
from ..backend.providers import solver
from ..backend.solve import Sums
from ..operators.base import Operator, Solve

Matrix = NDArray[np.float64]
Vector = NDArray[np.float64]


class DivergedError(ArithmeticError):
    """A result is no longer a number."""


class Totals(NamedTuple):
    """What is added up of a factor matrix, over all ranks' rows."""

    gram: Matrix  # (R, R), as it is stored
    dots: Vector  # (R,) inner products of its columns with those of the MTTKRP; of the last mode only
    largest: Vector  # (R,) magnitudes of its columns' largest numbers, before they were rounded


class LeastSquares:
    """Solves rows by the pseudo-inverse of the product of the other modes' Gram matrices (Kolda and Bader 2009).

    Rows are rounded once, when they are stored, and the Gram matrix is made of what is stored: so factors in single
    precision follow the path of those in double precision. Norms come after, and are kept beside the matrix.
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

    def rows(self, mode: int, grams: Sequence[Matrix], scales: Matrix, divisor: Vector) -> Solve:
        """Return what solves the rows of a mode as their MTTKRP comes.

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
        totals, rank, device = self._totals, self._rank, self._operator.machine.device
        totals.fill(0)
        sums = Sums(totals[:rank], self._largest, totals[rank] if mode == self._operator.order - 1 else None)

        @cache
        def inverse() -> Array:  # made when rows are there to be solved: a device computes meanwhile
            others = [m for m in range(len(grams)) if m != mode]
            product = pseudo_inverse(np.prod([grams[m] for m in others], axis=0))
            product *= np.prod(scales[others], axis=0)[:, None]
            return device.to_device(np.ascontiguousarray(product / divisor))

        def solve(source: Array, target: Array) -> None:
            with self._operator.span("solve", mode):
                self._solver.run(self._made, source, inverse(), target, sums)

        return solve

    def totals(self, mode: int) -> Totals:
        """Return what was added up since `rows`. Collective."""
        totals, rank = np.array(self._operator.reduce(self._totals, "sum", mode)), self._rank
        return Totals(totals[:rank], totals[rank], totals[rank + 1 :].max(axis=0))


def pseudo_inverse(gram: Matrix) -> Matrix:
    """Return the Moore-Penrose inverse of a symmetric positive semidefinite matrix.

    It solves rank-deficient least squares with the smallest norm, so that nothing becomes NaN.
    """
    if not np.all(np.isfinite(gram)):
        raise DivergedError("the Gram matrices of the other modes are not finite")
    cutoff = gram.shape[0] * np.finfo(np.float64).eps
    return np.asarray(np.linalg.pinv(gram, rcond=cutoff, hermitian=True), np.float64)
