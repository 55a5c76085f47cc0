"""ADMM for one mode (Huang, Sidiropoulos and Liavas, IEEE Trans. Signal Processing 64(19), 2016).

Minimises ``-<B, Z> + <Z G, Z> / 2 + penalties`` over the matrices Z that meet the constraints. G, the product of the
other modes' Gram matrices, is factorised once.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from .operators import Proximal

Matrix = NDArray[np.float64]

INNER = 10  # iterations; more only while the objective is above that of the start
ROUNDS = 3  # of inner iterations at most
RELATIVE = 1e-4  # residuals, as parts of the norms of the solution and the dual, at which they end
STEPS = 10  # of the proximal gradient, if ADMM has not reached the objective of the start


class RowEquations(NamedTuple):
    """The least-squares problem of rows: the rows of the MTTKRP, (rows, R), and the Gram product, (R, R)."""

    source: Matrix
    gram: Matrix


class Solution(NamedTuple):
    """The rows of a mode, their duals (see `solve`), and both parts of the objective."""

    rows: Matrix
    dual: Matrix
    data: float  # -<B, Z> + <Z G, Z> / 2
    penalty: float

    @property
    def value(self) -> float:
        """The objective."""
        return self.data + self.penalty


class ModeSolver:
    """Solves the rows of a mode.

    Parameters
    ----------
    proximal : Proximal
    rounded : callable
        Rounds rows to the precision in which they are stored.
    total : callable
        Sums numbers over the ranks that share the rows, in place.
    """

    def __init__(
        self, proximal: Proximal, rounded: Callable[[Matrix], Matrix], total: Callable[[Matrix], object]
    ) -> None:
        self._proximal, self._rounded, self._total = proximal, rounded, total

    def solve(self, equations: RowEquations, start: Matrix, dual: Matrix) -> Solution:
        """Return rows whose objective is at most that of `start`, which must meet the constraints.

        Parameters
        ----------
        equations : RowEquations
        start : (rows, R) array
        dual : (blocks, rows, R) array
            The dual variables of the proximal operators, not divided by rho.
        """
        before = self._measured(equations, start, dual)
        ridged = RowEquations(equations.source, equations.gram + self._proximal.terms.l2 * np.eye(len(equations.gram)))
        if not self._proximal.blocks:
            rows = ridged.source @ np.linalg.pinv(ridged.gram, hermitian=True)
            after = self._measured(equations, self._rounded(rows), dual)
            return after if after.value <= before.value else before
        rows = start
        for _ in range(ROUNDS):
            rows, dual = self._iterated(ridged, rows, dual)
            after = self._measured(equations, self._rounded(rows), dual)
            if after.value <= before.value:
                return after
        after = self._measured(equations, self._descended(ridged, start), dual)
        return after if after.value <= before.value else before._replace(dual=dual)

    def _measured(self, equations: RowEquations, rows: Matrix, dual: Matrix) -> Solution:
        data = np.vdot(rows @ equations.gram, rows) / 2 - np.vdot(equations.source, rows)
        sums = np.array([data, self._proximal.penalty(rows)])
        self._total(sums)
        return Solution(rows, dual, float(sums[0]), float(sums[1]))

    def _iterated(self, equations: RowEquations, rows: Matrix, dual: Matrix) -> tuple[Matrix, Matrix]:
        """Return rows and duals after `INNER` iterations of ADMM, or fewer if both residuals are small."""
        from scipy.linalg import cho_factor, cho_solve

        blocks, rank = self._proximal.blocks, len(equations.gram)
        rho = float(np.trace(equations.gram)) / rank or 1.0
        factor = cho_factor(equations.gram + len(blocks) * rho * np.eye(rank))
        copies, scaled = np.stack([rows] * len(blocks)), dual / rho
        for _ in range(INNER):
            right = equations.source + rho * (copies + scaled).sum(axis=0)
            free = cho_solve(factor, right.T).T
            sums = np.zeros((2, 2))
            for number, block in enumerate(blocks):
                new = block(free - scaled[number], 1 / rho)
                difference, change = new - free, new - copies[number]
                scaled[number] += difference
                copies[number] = new
                sums += [[_square(difference), _square(new)], [_square(change), _square(scaled[number])]]
            self._total(sums)
            if (sums[:, 0] <= RELATIVE**2 * sums[:, 1]).all():
                break
        return np.ascontiguousarray(copies[0]), rho * scaled

    def _descended(self, equations: RowEquations, rows: Matrix) -> Matrix:
        """Return rows after some steps of the proximal gradient, which never increase the objective."""
        proximal = self._proximal
        step = 1 / (np.linalg.norm(equations.gram, 2) + proximal.curvature or 1.0)
        for _ in range(STEPS):
            gradient = rows @ equations.gram - equations.source + proximal.gradient(rows)
            rows = self._rounded(proximal.primary(rows - step * gradient, float(step)))
        return rows


def _square(matrix: Matrix) -> float:
    return float(np.vdot(matrix, matrix))
