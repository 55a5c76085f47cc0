"""PDNR and PQNR of CP-APR for many rows at once, each step by NumPy operations on all of them.

The algorithms are those of `backend.cpu.rows`, which has the references and explains the differences from the paper.
"""

from __future__ import annotations

from collections.abc import Sequence
from itertools import pairwise
from typing import Any

import numpy as np
from numpy.typing import NDArray

from ..ops.rowproblems import FAILED, ITERATIONS, KKT, RowLimits, RowMethod
from ..row_constants import (
    ACTIVE,
    ARMIJO,
    BELOW,
    COUNTS,
    CURVED,
    DAMPING,
    GOOD,
    LEAST_CURVED,
    LEAST_NEWTON_PIVOT,
    LENGTHS,
    LESS_DAMPING,
    MORE_DAMPING,
    MOVING,
    NO_LESS,
    PAIRS,
    POOR,
    RAISED,
    SOLVED,
    WAITING,
)
from .index_tree import Matrix

Vector = NDArray[np.float64]


def sums_width(method: RowMethod, rank: int) -> int:
    """Return the sums over the nonzeros of a row: Phi, `BELOW`, `COUNTS` and, for PDNR, second derivatives."""
    return rank + CURVED + (rank * rank if method == "pdnr" else 0)


class RowNonzeros:
    """The nonzeros of some rows, with the product of the other modes' factor rows for each of them.

    Parameters
    ----------
    values : (nnz,) array
    pi : (nnz, R) array
    starts : (rows + 1,) array
        The first nonzero of each row, and the end. No row is empty.
    floor : float
        Lower bound of the model's values.
    """

    def __init__(self, values: Vector, pi: Matrix, starts: NDArray[np.int64], floor: float) -> None:
        self._values, self._pi, self._starts, self._floor = values, pi, starts, floor
        self._row = np.repeat(np.arange(starts.size - 1), np.diff(starts))

    def restricted(self, rows: NDArray[np.bool_]) -> RowNonzeros:
        """Return the nonzeros of some of the rows."""
        chosen = rows[self._row]
        starts = np.append(0, np.cumsum(np.diff(self._starts)[rows]))
        return RowNonzeros(self._values[chosen], self._pi[chosen], starts, self._floor)

    def _distances(self, b: Matrix) -> tuple[Vector, Vector]:
        """Return how far the model is below the floor, and the inverse of the model where it is not."""
        model = np.einsum("pr,pr->p", b[self._row], self._pi)
        above = np.maximum(model, self._floor)
        return model - above, 1 / above

    def sums(self, b: Matrix, curved: bool) -> Matrix:
        """Return the sums of each row at `b`; see `sums_width`."""
        lack, inverse = self._distances(b)
        weights = self._values * inverse
        sums = [
            np.add.reduceat(weights[:, None] * self._pi, self._starts[:-1], axis=0),
            np.add.reduceat(lack * self._values, self._starts[:-1])[:, None],
            np.add.reduceat(self._values, self._starts[:-1])[:, None],
        ]
        if curved:
            weighted, bounds = self._pi * (weights * inverse)[:, None], self._starts.tolist()
            parts = (slice(*bound) for bound in pairwise(bounds))
            sums.append(np.stack([(weighted[part].T @ self._pi[part]).reshape(-1) for part in parts]))
        return np.concatenate(sums, axis=1)

    def changes(self, b: Matrix, steps: Matrix, lengths: int) -> Matrix:
        """Return the change of each row's sum of logarithms for steps of length 1, 1/2, 1/4, ..., (rows, lengths).

        Below the floor the logarithm is continued linearly. The change is infinite if the model falls below the floor
        at a nonzero where it was above.
        """
        lack, inverse = self._distances(b)
        moved, below, starts = np.einsum("pr,pr->p", steps[self._row], self._pi), lack < 0, self._starts[:-1]
        result = np.empty((starts.size, lengths))
        for k in range(lengths):
            to = 0.5**k * moved + lack
            linear = np.where(below, np.minimum(to, 0.0) - lack, 0.0)
            ratio = np.where(below, np.maximum(to, 0.0), to) * inverse
            gains = self._values * (linear * inverse + np.log1p(np.maximum(ratio, -1 + 1e-15)))
            least = np.minimum.reduceat(ratio + 1 - self._floor * inverse, starts)
            result[:, k] = np.where(least >= NO_LESS, -np.add.reduceat(gains, starts), np.inf)
        return result


class RowBatch:
    """Rows that are solved in step. See `Shared`."""

    def __init__(self, method: RowMethod, count: int, rank: int) -> None:
        self.curved, self.rows = method == "pdnr", np.zeros((count, rank))
        self.sums, self.changes = np.zeros((count, sums_width(method, rank))), np.zeros((count, LENGTHS))
        self.seen, self.state = np.zeros(3), np.full(count, WAITING)
        self.steps, self._downhill = np.zeros((count, rank)), np.zeros(count)
        self._model: NewtonModel | QuasiNewtonModel = (NewtonModel if self.curved else QuasiNewtonModel)(count, rank)
        self.begins = False

    def begin(self) -> None:
        """See `Shared`."""
        self.state.fill(WAITING)
        self.seen.fill(0)
        self._model = type(self._model)(*self.rows.shape)
        self.begins = True

    def left(self) -> int:
        """See `Shared`."""
        return int(np.count_nonzero(self.state != SOLVED))

    def step(self, limits: RowLimits, number: int) -> None:
        """Compute the steps of unsolved rows from the sums; in pass 0 decide which rows are raised."""
        unsolved = np.flatnonzero(self.state != SOLVED)
        b, phi = self.rows[unsolved], self.sums[unsolved, : self.rows.shape[1]]
        projected = np.minimum(b, 1 - phi)
        violation = np.abs(projected).max(axis=1, initial=0.0)
        solved = violation < limits.tolerance
        if number == 0:
            self._decide_raises(unsolved, solved, violation)
            return
        self.state[unsolved] = np.where(solved, SOLVED, MOVING)
        moving, near = unsolved[~solved], np.minimum(ACTIVE, np.linalg.norm(projected, axis=1))[~solved]
        self.seen[ITERATIONS] += moving.size
        b, phi = b[~solved], phi[~solved]
        self.steps[moving] = steps = self._model.steps(moving, b, phi, near, self.sums[moving])
        self._downhill[moving] = ((1 - phi) * steps).sum(axis=1)

    def _decide_raises(self, rows: NDArray[np.intp], solved: NDArray[np.bool_], violation: Vector) -> None:
        """Record the violations; raise rows whose model is below the floor if this decreases the objective."""
        self.begins, rank = False, self.rows.shape[1]
        self.seen[KKT] = max(self.seen[KKT], float(violation.max(initial=0.0)))
        self.state[rows] = np.where(solved, SOLVED, WAITING)
        below = rows[self.sums[rows, rank + BELOW] < 0]
        self.state[below] = MOVING
        self.steps[below] = RAISED * self.sums[below, rank + COUNTS, None] / rank

    @property
    def undecided(self) -> NDArray[np.bool_]:
        """The moving rows for which the whole step does not decrease the objective enough, according to `changes`."""
        moves = (self.state == MOVING) & (self._downhill < 0)
        whole: NDArray[np.bool_] = self.changes[:, 0] + self.steps.sum(axis=1) <= ARMIJO * self._downhill
        undecided: NDArray[np.bool_] = moves & ~whole
        return undecided

    def advance(self, number: int) -> None:
        """Take the longest steps that decrease the objective enough, or multiplicative steps."""
        moving = np.flatnonzero(self.state == MOVING)
        steps, changes = self.steps[moving], self.changes[moving]
        if number == 0:
            self.rows[moving] += np.where(steps.sum(axis=1, keepdims=True) + changes[:, :1] < 0, steps, 0.0)
            return
        downhill, lengths = self._downhill[moving], 0.5 ** np.arange(LENGTHS)
        objectives = changes + lengths * steps.sum(axis=1, keepdims=True)
        enough = (objectives <= ARMIJO * lengths * downhill[:, None]) & (downhill < 0)[:, None]
        length = np.where(enough.any(axis=1), lengths[enough.argmax(axis=1)], 0.0)
        self._model.learn(moving, np.where(downhill < 0, objectives[:, 0], np.inf))
        self.seen[FAILED] += np.count_nonzero(length == 0)
        b, phi = self.rows[moving], self.sums[moving, : self.rows.shape[1]]
        taken = np.maximum(b + length[:, None] * steps, 0.0)
        self.rows[moving] = np.where(length[:, None] > 0, taken, b * phi)


class NewtonModel:
    """Damped Newton steps within the bounds; see `backend.cpu.rows.newton`."""

    def __init__(self, count: int, rank: int) -> None:
        self._damping, self._predicted = np.full(count, DAMPING), np.zeros(count)

    def steps(self, rows: NDArray[np.intp], b: Matrix, phi: Matrix, near: Vector, sums: Matrix) -> Matrix:
        """Return the steps of some rows."""
        rank = b.shape[1]
        slope, hessian = 1 - phi, sums[:, rank + CURVED :].reshape(-1, rank, rank)
        free, steps = (b > near[:, None]) | (phi > 1), -b
        left = np.flatnonzero(free.any(axis=1))
        while left.size:
            fixed = np.where(free[left], 0.0, steps[left])
            right = -slope[left] - np.einsum("irs,is->ir", hessian[left], fixed)
            solution = _damped_solution(hessian[left], free[left], self._damping[rows[left]], right)
            with np.errstate(invalid="ignore"):
                out = free[left] & ~((b[left] + solution >= 0) & np.isfinite(solution))
            free[left] &= ~out
            steps[left] = np.where(free[left], solution, -b[left])
            left = left[out.any(axis=1) & free[left].any(axis=1)]
        curved = np.einsum("ir,irs,is->i", steps, hessian, steps, optimize=True) / 2
        self._predicted[rows] = (slope * steps).sum(axis=1) + curved
        return steps

    def learn(self, rows: NDArray[np.intp], first: Vector) -> None:
        """Update the damping from the change of the objective by the whole step."""
        predicted = self._predicted[rows]
        ratio = np.where(predicted < 0, first / np.where(predicted < 0, predicted, -1.0), 0.0)
        self._damping[rows] *= np.where(ratio < POOR, MORE_DAMPING, np.where(ratio > GOOD, LESS_DAMPING, 1.0))


def _damped_solution(hessian: Matrix, free: NDArray[np.bool_], damping: Vector, right: Matrix) -> Matrix:
    """Solve the damped systems of the free components by Cholesky decompositions; others are zero."""
    rank = free.shape[1]
    lower = np.where(free[:, :, None] & free[:, None, :], hessian, 0.0)
    solution = np.where(free, right, 0.0)
    with np.errstate(over="ignore", invalid="ignore", divide="ignore"):
        for r in range(rank):
            known, entry = lower[:, r, :r], lower[:, r, r].copy()
            least = LEAST_NEWTON_PIVOT * entry
            entry *= 1 + damping
            pivot = np.sqrt(np.maximum(entry - np.einsum("is,is->i", known, known), least))
            # A free component whose Pi is zero goes far below zero, and so to its bound.
            pivot = np.where(free[:, r], np.where(least > 0, pivot, 1e-150), 1.0)
            lower[:, r, r] = pivot
            lower[:, r + 1 :, r] -= np.einsum("iks,is->ik", lower[:, r + 1 :, :r], known)
            lower[:, r + 1 :, r] /= pivot[:, None]
            solution[:, r] = (solution[:, r] - np.einsum("is,is->i", known, solution[:, :r])) / pivot
        for r in range(rank - 1, -1, -1):
            solution[:, r] -= np.einsum("is,is->i", lower[:, r + 1 :, r], solution[:, r + 1 :])
            solution[:, r] /= lower[:, r, r]
    return solution


class QuasiNewtonModel:
    """L-BFGS steps of three pairs within the bounds; see `backend.cpu.rows.quasi_newton`."""

    def __init__(self, count: int, rank: int) -> None:
        self._points = 0  # at which unsolved rows have been
        self._old, self._last = np.zeros((2, count, rank))
        self._steps, self._gradients = np.zeros((2, PAIRS, count, rank))

    def steps(self, rows: NDArray[np.intp], b: Matrix, phi: Matrix, near: Vector, sums: Matrix) -> Matrix:
        """Return the steps of some rows."""
        if self._points:
            newest = (self._points - 1) % PAIRS
            self._steps[newest, rows] = b - self._old[rows]
            self._gradients[newest, rows] = self._last[rows] - phi
            result = self._bounded(rows, b, phi, near)
        else:
            result = b * (phi - 1)
        self._points += 1
        self._old[rows], self._last[rows] = b, phi
        return result

    def learn(self, rows: NDArray[np.intp], first: Vector) -> None:
        """Do nothing: the pairs contain all information."""

    def _bounded(self, rows: NDArray[np.intp], b: Matrix, phi: Matrix, near: Vector) -> Matrix:
        free, result, left = (b > near[:, None]) | (phi > 1), -b, np.arange(rows.size)
        while left.size:
            steps = self._multiply(rows[left], phi[left] - 1, free[left])
            out = free[left] & ~(b[left] + steps >= 0)
            free[left] &= ~out
            result[left] = np.where(free[left], steps, -b[left])
            left = left[out.any(axis=1)]
        return result

    def _multiply(self, rows: NDArray[np.intp], steps: Matrix, free: NDArray[np.bool_]) -> Matrix:
        """Multiply the free components by the approximate inverse Hessians (two-loop recursion)."""

        def dot(one: Matrix, other: Matrix) -> Matrix:
            product: Matrix = (one * other * free).sum(axis=1, keepdims=True)
            return product

        scale, used = np.zeros((rows.size, 1)), list[Sequence[Any]]()
        for n in range(min(self._points, PAIRS)):
            k = (self._points - 1 - n) % PAIRS
            s, y = self._steps[k, rows], self._gradients[k, rows]
            curved, length = dot(s, y), dot(y, y)
            usable = curved > LEAST_CURVED * np.sqrt(length * dot(s, s))
            curved = np.where(usable, curved, 1.0)
            scale = np.where(usable & (scale == 0), curved / np.where(usable, length, 1.0), scale)
            part = np.where(usable, dot(s, steps) / curved, 0.0)
            steps = steps - part * y
            used.append((s, y, usable, curved, part))
        steps = steps * np.where(scale > 0, scale, 1.0)
        for s, y, usable, curved, part in reversed(used):
            steps = steps + np.where(usable, part - dot(y, steps) / curved, 0.0) * s
        return steps
