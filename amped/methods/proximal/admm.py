"""ADMM for one mode (Huang, Sidiropoulos and Liavas, IEEE Trans. Signal Processing 64(19), 2016).

Minimises ``-<B, Z> + sum_i <z_i G_i, z_i> / 2 + penalties`` over the matrices Z that meet the constraints. The matrices
G_i are factorised once.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, NamedTuple, Protocol

import numpy as np
from numpy.typing import NDArray

from ...backend.device import Array
from ...backend.ops.admm_steps import AdmmStart, EntryTerms
from .arrays import HOST, Arrays
from .coordinates import descended, suits
from .equations import RowEquations, RowGrams, SharedGram, Solve
from .operators import Block
from .terms import ModeTerms

INNER = 10  # iterations; more only while the objective is above that of the start
ROUNDS = 3  # of inner iterations at most
RELATIVE = 1e-4  # residuals, as parts of the norms of the solution and the dual, at which they end
AT_OPTIMUM = 1e-10  # excess over the objective of the start, relative to it, with which the start is kept at once
STEPS = 10  # of the proximal gradient, if ADMM has not reached the objective of the start
ON_DEVICE = 5  # inner iterations between tests of the residuals where the host must wait for a device


class Constrained(Protocol):
    """The constraints of the rows that a rank owns: a `Proximal`, or one that also knows the rows of other ranks."""

    terms: ModeTerms
    blocks: list[Block]
    fixed: Array  # elements that keep their values, or None

    def entries(self, step: Any) -> EntryTerms | None:
        """Return the first proximal operator if it is one of entries."""

    def hold(self, matrix: Array) -> None:
        """Take the values of fixed elements."""

    def penalty(self, matrix: Array) -> Any:
        """Return this rank's part of the penalty."""

    @property
    def curvature(self) -> float:
        """The largest second derivative of the penalty on differences."""

    def gradient(self, matrix: Array) -> Array | float:
        """Return the gradient of the penalty on differences."""

    def primary(self, matrix: Array, step: Any) -> Array:
        """Return the first proximal operator."""


class Storage(NamedTuple):
    """How rows are stored, and what the ranks that share a mode have in common.

    Attributes
    ----------
    arrays : Arrays
    rounded : callable
        Rounds rows to the precision in which they are stored.
    total : callable
        Sums numbers, which are on the device, over the ranks; returns them in host memory.
    """

    arrays: Arrays = HOST
    rounded: Callable[[Array], Array] = lambda rows: rows
    total: Callable[[Array], NDArray[np.float64]] = lambda numbers: numbers


class Solution(NamedTuple):
    """The rows of a mode, their duals (see `solve`), and both parts of the objective."""

    rows: Array
    dual: Array
    data: float  # -<B, Z> + sum <z_i G_i, z_i> / 2
    penalty: float

    @property
    def value(self) -> float:
        """The objective."""
        return self.data + self.penalty


class ModeSolver:
    """Solves the rows of a mode."""

    def __init__(self, constrained: Constrained, storage: Storage) -> None:
        self._constrained, self._storage = constrained, storage
        self._between = 1 if storage.arrays.on_host else ON_DEVICE
        self._by_coordinates = storage.arrays.on_host and suits(constrained.terms)

    def solve(self, equations: RowEquations, start: Array, dual: Array) -> Solution:
        """Return rows whose objective is at most that of `start`, which must meet the constraints.

        Parameters
        ----------
        equations : RowEquations
        start : (rows, R) array
        dual : (blocks, rows, R) array
            The dual variables of the proximal operators, not divided by rho.
        """
        constrained, rounded = self._constrained, self._storage.rounded
        constrained.hold(start)
        if self._by_coordinates and isinstance(equations, SharedGram):
            rows = rounded(descended(equations, constrained.terms, start, constrained.fixed))
            return Solution(rows, dual, *self._storage.total(self._measured(equations, rows)).tolist())
        if isinstance(equations, RowGrams) and constrained.terms.takes_zero_rows:
            start = self._without_elements(equations, start)
        at_start, ridged = self._measured(equations, start), equations.ridged(constrained.terms.l2)
        if not constrained.blocks:
            return self._better(equations, at_start, rounded(ridged.least_squares(start)), start, dual)
        if isinstance(equations, SharedGram) and constrained.terms.only_orthonormal:
            # The quadratic part of the objective is the same for all matrices with orthonormal columns.
            return self._better(equations, at_start, rounded(constrained.primary(equations.source, 1.0)), start, dual)
        rows, rho = start, self._rho(ridged)
        solve = ridged.shifted(len(constrained.blocks) * rho, rho)
        unmoved = solve(ridged.source / rho)
        for _ in range(ROUNDS):
            rows, dual = self._iterated(unmoved, solve, rho, rows, dual)
            found, excess = self._compared(equations, at_start, rounded(rows), start, dual)
            if found.rows is not start or excess <= AT_OPTIMUM * abs(found.value):
                return found
        return self._better(equations, at_start, self._descended(ridged, start), start, dual)

    def _without_elements(self, equations: RowGrams, start: Array) -> Array:
        """Return the start, in which rows without elements are those closest to zero that meet the constraints."""
        xp = self._storage.arrays.xp
        return xp.where(equations.traces > 0, start, self._constrained.primary(xp.zeros_like(start), 0.0))

    def _better(self, equations: RowEquations, at_start: Array, rows: Array, start: Array, dual: Array) -> Solution:
        """Return rows, or those of the start if its objective is lower; `at_start` are the parts of the latter."""
        return self._compared(equations, at_start, rows, start, dual)[0]

    def _compared(
        self, equations: RowEquations, at_start: Array, rows: Array, start: Array, dual: Array
    ) -> tuple[Solution, float]:
        """See `_better`; also return by how much the objective of `rows` exceeds that of the start."""
        both = self._storage.arrays.numbers([at_start, self._measured(equations, rows)])
        before, after = self._storage.total(both).tolist()
        excess = float(sum(after) - sum(before))
        return Solution(rows, dual, *after) if excess <= 0 else Solution(start, dual, *before), excess

    def _measured(self, equations: RowEquations, rows: Array) -> Array:
        """Return both parts of the objective, those of this rank's rows."""
        residual = equations.multiplied(rows)
        residual *= 0.5
        residual -= equations.source
        data = self._storage.arrays.dot(residual, rows)
        return self._storage.arrays.numbers([data, self._constrained.penalty(rows)])

    def _rho(self, equations: RowEquations) -> Any:
        """Return the penalty parameter; rows that constraints relate have the same, the mean of rows with elements."""
        if not (isinstance(equations, RowGrams) and self._constrained.terms.columnwise):
            return equations.sizes()
        filled = equations.traces > 0
        total = self._storage.total(self._storage.arrays.numbers([equations.sizes()[filled].sum(), filled.sum()]))
        return float(total[0] / total[1]) if total[1] else 1.0

    def _iterated(self, unmoved: Array, solve: Solve, rho: Any, rows: Array, dual: Array) -> tuple[Array, Array]:
        """Return rows and duals after `INNER` iterations of ADMM, or fewer if both residuals are small.

        `solve` is for rows times rho, and `unmoved` the solution without these.
        """
        blocks, arrays, step = self._constrained.blocks, self._storage.arrays, 1 / rho
        if self._in_few_launches(solve):
            start = AdmmStart(rows, dual / rho, unmoved, solve.inverse, self._constrained.entries(step))
            return self._launched(start, rho)
        copies, scaled = [rows] * len(blocks), [each / rho for each in dual]
        for number in range(1, INNER + 1):
            sums = list[Any]()
            free = solve(sum([*copies[1:], *scaled], copies[0]))
            free += unmoved
            for k, block in enumerate(blocks):
                moved = free - scaled[k]
                new = block(moved, step)
                after = new - moved
                if number % self._between == 0:
                    sums += map(arrays.square, (after - scaled[k], new, new - copies[k], after))
                scaled[k], copies[k] = after, new
            if sums and _small(self._storage.total(arrays.numbers(sums))):
                break
        return arrays.xp.ascontiguousarray(copies[0]), rho * arrays.xp.stack(scaled)

    def _in_few_launches(self, solve: Solve) -> bool:
        """Return whether a device computes what is beside the proximal operators."""
        steps = self._storage.arrays.steps
        if steps is None or solve.inverse is None:
            return False
        return steps.suits(len(solve.inverse), len(self._constrained.blocks))

    def _launched(self, start: AdmmStart, rho: float) -> tuple[Array, Array]:
        """See `_iterated`."""
        arrays, blocks = self._storage.arrays, self._constrained.blocks
        assert arrays.steps is not None
        steps = arrays.steps.begin(start)
        for number in range(1, INNER + 1):
            moved, results = steps.advance(), list[Array]()
            for k, block in enumerate(blocks):
                fused = start.first is not None and not k
                results.append(None if fused else arrays.xp.ascontiguousarray(block(moved[k], 1 / rho)))
            tested = number % self._between == 0
            sums = steps.settle(results, tested)
            if tested and _small(self._storage.total(sums)):
                break
        return steps.copies[0], rho * steps.scaled

    def _descended(self, equations: RowEquations, rows: Array) -> Array:
        """Return rows after some steps of the proximal gradient, which never increase the objective."""
        constrained, bounds = self._constrained, equations.bounds()
        if isinstance(equations, RowGrams) and constrained.terms.columnwise:
            bounds = float(self._storage.total(self._storage.arrays.numbers([bounds.max()]))[0])  # at least the maximum
        step = 1 / (bounds + constrained.curvature or 1.0) if isinstance(bounds, float) else 1 / bounds
        for _ in range(STEPS):
            gradient = equations.multiplied(rows) - equations.source + constrained.gradient(rows)
            rows = self._storage.rounded(constrained.primary(rows - step * gradient, step))
        return rows


def _small(sums: NDArray[np.float64]) -> bool:
    """Return whether both residuals are small; `sums`: four sums of squares per operator."""
    primal, size, change, length = sums.reshape(-1, 4).sum(axis=0).tolist()
    return bool(primal <= RELATIVE**2 * size and change <= RELATIVE**2 * length)
