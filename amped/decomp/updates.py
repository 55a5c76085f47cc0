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
    noisy: bool  # whether the product of Gram matrices was worse conditioned than it may be, on any rank


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
        # The Gram matrix, dots, whether it is noisy, and a row for each rank's largest numbers: one sum over the ranks
        # combines them all.
        self._totals = device.zeros((self._rank + 2 + comm.size, self._rank), np.float64)
        self._largest = self._totals[self._rank + 2 + comm.rank]
        # What is smaller is lost where rows are rounded.
        self._cutoff = max(self._rank * np.finfo(np.float64).eps, float(np.finfo(dtype).eps) ** 2)

    def rows(self, mode: int, grams: Sequence[Matrix], scales: Matrix, divisor: Vector, limit: float = np.inf) -> Solve:
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
        limit : float
            The largest condition number of the product of Gram matrices that is not `Totals.noisy`.
        """
        totals, rank, device = self._totals, self._rank, self._operator.machine.device
        totals.fill(0)
        sums = Sums(totals[:rank], self._largest, totals[rank] if mode == self._operator.order - 1 else None)

        @cache
        def inverse() -> Array:  # made when rows are there to be solved: a device computes meanwhile
            others = [m for m in range(len(grams)) if m != mode]
            product, condition = pseudo_inverse(np.prod([grams[m] for m in others], axis=0), self._cutoff)
            if condition > limit:
                totals[rank + 1] = 1.0
            product *= np.prod(scales[others], axis=0)[:, None]
            return device.to_device(np.ascontiguousarray(product / divisor))

        def solve(source: Array, target: Array) -> None:
            with self._operator.span("solve", mode):
                self._solver.run(self._made, source, inverse(), target, sums)

        return solve

    def totals(self, mode: int) -> Totals:
        """Return what was added up since `rows`. Collective."""
        totals, rank = np.array(self._operator.reduce(self._totals, "sum", mode)), self._rank
        return Totals(totals[:rank], totals[rank], totals[rank + 2 :].max(axis=0), bool(totals[rank + 1].any()))


def pseudo_inverse(gram: Matrix, cutoff: float) -> tuple[Matrix, float]:
    """Return the Moore-Penrose inverse of a symmetric positive semidefinite matrix, and its condition number.

    It solves rank-deficient least squares with the smallest norm, so that nothing becomes NaN. Eigenvalues below
    `cutoff` times the largest count as 0.
    """
    if not np.all(np.isfinite(gram)):
        raise DivergedError("the Gram matrices of the other modes are not finite")
    values, vectors = np.linalg.eigh(gram)  # ascending
    kept = values > cutoff * values[-1]
    values, vectors = values[kept], vectors[:, kept]
    return (vectors / values) @ vectors.T, values[-1] / values[0] if values.size else 1.0
