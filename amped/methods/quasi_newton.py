"""Steps of bounded L-BFGS over vectors whose parts are on different ranks.

The two-loop recursion (Liu and Nocedal 1989) is computed from the inner products of all stored vectors, which need one
sum over the ranks (Chen, Wang and Zhou, Large-scale L-BFGS using MapReduce, 2014). Entries at a bound whose gradient
points out of the domain are fixed during a step, and trial points are projected on the domain (Bertsekas, Projected
Newton methods for optimization problems with simple constraints, 1982).
"""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from ..parallel.mpi import Comm

Vector = NDArray[np.float64]

PAIRS = 5
CURVED = 1e-10  # least relative curvature of a pair of changes
DECREASE, SLOPE = 1e-4, 0.9  # sufficient decrease, and share of the slope that may remain (Wolfe conditions)
NOISE = 1e-16  # relative decrease of the objective that rounding hides
MOST_TRIALS = 25  # points of a line search
NEAR, FAR = 0.1, 0.5  # range of interpolated steps, as parts of the interval


class Point(NamedTuple):
    """A point, this rank's part, with the objective and the gradient there."""

    x: Vector
    value: float
    gradient: Vector


class LineSearch(NamedTuple):
    """The result of a line search: a point with a lower objective, if one was found, and the number of evaluations."""

    point: Point | None
    evaluations: int


class QuasiNewton:
    """The recent changes of a bounded L-BFGS. All methods are collective.

    Parameters
    ----------
    comm : Comm
    lower : (n,) array
        Lower bound of each entry of this rank's part; may be minus infinity.
    """

    def __init__(self, comm: Comm, lower: Vector) -> None:
        self._comm, self._lower = comm, lower
        self.forget()

    def forget(self) -> None:
        """Discard the recent changes."""
        self._steps, self._changes = list[Vector](), list[Vector]()

    def dot(self, one: Vector, other: Vector) -> float:
        """Return the inner product over all ranks."""
        return float(self._summed(np.array([np.vdot(one, other)]))[0])

    def largest(self, vector: Vector) -> float:
        """Return the largest magnitude of an entry on any rank."""
        mine = float(np.abs(vector).max(initial=0.0))
        return max(self._comm.allgather(mine)) if self._comm.size > 1 else mine

    def _summed(self, numbers: Vector) -> Vector:
        if self._comm.size > 1:
            self._comm.all_reduce(numbers, "sum")
        return numbers

    def free(self, point: Point) -> NDArray[np.bool_]:
        """Return which entries may change: not those at their bound whose decrease would decrease the objective."""
        return (point.x > self._lower) | (point.gradient < 0)

    def projected_gradient(self, point: Point) -> Vector:
        """Return the gradient without the entries that may not change; it is zero at an optimum."""
        return np.where(self.free(point), point.gradient, 0.0)

    def direction(self, point: Point) -> tuple[Vector, float]:
        """Return a direction of descent and the slope along it."""
        free = self.free(point)
        basis = np.array([*self._steps, *self._changes, point.gradient]) * free
        products = self._summed(basis @ basis.T)
        weights = _two_loops(products, len(self._steps))
        slope = float(products[-1] @ weights)
        if self._steps and not slope < 0:  # curvature of other free entries: start again
            self.forget()
            return self.direction(point)
        return weights @ basis, slope

    def search(self, point: Point, evaluate: Callable[[Vector], Point]) -> LineSearch:
        """Return a point with a sufficiently lower objective on the projected path of the direction."""
        direction, slope = self.direction(point)
        if not -slope > NOISE * abs(point.value):
            return LineSearch(None, 0)
        low, high, size = 0.0, math.inf, 1.0 if self._steps else min(1.0, 1 / math.sqrt(-slope))
        best: Point | None = None
        for trial in range(1, MOST_TRIALS + 1):
            new = evaluate(np.maximum(point.x + size * direction, self._lower))
            moved = new.x - point.x
            inside = moved * (new.x > self._lower)  # a longer step does not move entries at their bound
            terms = (point.gradient, moved), (point.gradient, inside), (new.gradient, inside)
            least, before, left = self._summed(np.array([np.vdot(*pair) for pair in terms]))
            if not new.value <= point.value + DECREASE * least:  # also if it is not finite
                high = size
                size = low + (high - low) * _interpolated(point.value, least, new.value)
            elif left < SLOPE * before:
                best, low = new, size
                size = 2 * size if math.isinf(high) else (low + high) / 2
            else:
                return self._accept(point, new, trial)
        return LineSearch(None, MOST_TRIALS) if best is None else self._accept(point, best, MOST_TRIALS)

    def _accept(self, point: Point, new: Point, trials: int) -> LineSearch:
        """Store the change from a point to another one if the gradient's change has positive curvature."""
        step, change = new.x - point.x, new.gradient - point.gradient
        curvature, size = self._summed(np.array([np.vdot(step, change), np.vdot(change, change)]))
        if curvature > CURVED * size:
            self._steps, self._changes = [*self._steps, step][-PAIRS:], [*self._changes, change][-PAIRS:]
        return LineSearch(new, trials)


def _two_loops(products: Vector, pairs: int) -> Vector:
    """Return the direction as weights of the steps, the changes and the gradient, from their inner products."""
    weights, taken = np.zeros(2 * pairs + 1), dict[int, float]()
    weights[-1] = -1.0
    valid = [pair for pair in range(pairs) if products[pair, pairs + pair] > 0]  # of the entries that may change
    for pair in reversed(valid):
        taken[pair] = products[pair] @ weights / products[pair, pairs + pair]
        weights[pairs + pair] -= taken[pair]
    if valid:
        last = pairs + valid[-1]
        weights *= products[valid[-1], last] / products[last, last]
    for pair in valid:
        weights[pair] += taken[pair] - products[pairs + pair] @ weights / products[pair, pairs + pair]
    return weights


def _interpolated(value: float, slope: float, new: float) -> float:
    """Return the minimum of a parabola through a value, its slope and another value, as part of the interval."""
    excess = new - value - slope
    if not (math.isfinite(excess) and excess > 0):
        return NEAR
    return min(FAR, max(NEAR, -slope / (2 * excess)))
