"""L-BFGS-B over vectors whose parts are on different ranks (Byrd, Lu, Nocedal and Zhu 1995).

A quadratic model of the objective has the Hessian ``theta I - W M W^T``, which follows from the recent steps and
changes of the gradient. Each step has three stages: an inexact Cauchy point on the projected path of steepest descent,
which decides which entries are at their bounds (as in TRON, Lin and More 1999, so that nothing is sorted); the minimum
of the model over the other entries; and a line search from the current point towards it. All inner products of a stage
are summed over the ranks at once.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from ..parallel.mpi import Comm

Vector = NDArray[np.float64]
Matrix = NDArray[np.float64]

PAIRS = 5
VECTORS = 4 * PAIRS + 8  # at most at a time, of the length of a rank's part
CURVED = 2e-16  # least curvature of a pair of changes, relative to the squared change of the gradient
DECREASE, SLOPE = 1e-4, 0.9  # sufficient decrease, and share of the slope that may remain (Wolfe conditions)
NOISE = 1e-16  # relative decrease of the objective that rounding hides
MOST_TRIALS = 25  # points of a line search
NEAR, FAR = 0.1, 0.5  # range of interpolated steps, as parts of the interval
CAUCHY, CAUCHY_FACTOR, CAUCHY_TRIALS = 0.1, 2.0, 12
FIRST_SCALE, FURTHEST, SAME_SCALE, MOST_SCALES = 10.0, 1e4, 0.2, 8  # of a search for the scale of a start


class Point(NamedTuple):
    """A point, this rank's part, with the objective and the gradient there."""

    x: Vector
    value: float
    gradient: Vector


class Direction(NamedTuple):
    """A step, the slope along it, and the largest multiple of the step within the bounds, at least 1."""

    step: Vector
    slope: float
    longest: float


class LineSearch(NamedTuple):
    """The result of a line search: a point with a lower objective, if one was found, and the number of evaluations."""

    point: Point | None
    evaluations: int


class _Model(NamedTuple):
    """The quadratic model: theta, W^T (2 pairs, n), and M."""

    theta: float
    vectors: Matrix
    middle: Matrix


class QuasiNewton:
    """The recent changes of L-BFGS-B. All methods are collective.

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
        self._model: _Model | None = None

    def dot(self, one: Vector, other: Vector) -> float:
        """Return the inner product over all ranks."""
        return float(self.summed(np.array([np.vdot(one, other)]))[0])

    def largest(self, vector: Vector) -> float:
        """Return the largest magnitude of an entry on any rank."""
        mine = float(np.abs(vector).max(initial=0.0))
        return max(self._comm.allgather(mine)) if self._comm.size > 1 else mine

    def summed(self, numbers: Vector) -> Vector:
        """Return the sum of an array over all ranks, in its place."""
        if self._comm.size > 1:
            self._comm.all_reduce(numbers, "sum")
        return numbers

    def projected_gradient(self, point: Point) -> Vector:
        """Return the gradient without the entries that may not change; it is zero at an optimum.

        Those are entries at their bound whose decrease would decrease the objective.
        """
        return np.where((point.x > self._lower) | (point.gradient < 0), point.gradient, 0.0)

    def search(self, point: Point, evaluate: Callable[[Vector], Point]) -> LineSearch:
        """Return a point with a sufficiently lower objective on the line along the direction."""
        step, slope, longest = self._direction(point)
        if not -slope > NOISE * abs(point.value):
            return LineSearch(None, 0)
        low, high, size = 0.0, math.inf, 1.0  # the ends of an interval with a minimum, and a trial point
        low_slope, best, least = slope, None, point.value
        for trial in range(1, MOST_TRIALS + 1):
            new = evaluate(np.maximum(point.x + size * step, self._lower))  # against rounding
            if not new.value <= point.value + DECREASE * size * slope:  # also if it is not finite
                high = size
                size = low + (high - low) * _interpolated(point.value, size * slope, new.value)
                continue
            if new.value < least:
                best, least = new, new.value
            new_slope = self.dot(new.gradient, step)
            if new_slope > -SLOPE * slope:  # too far: near a bound the gradient may be huge
                high = size
                size = low + (high - low) * min(1 - NEAR, max(FAR, low_slope / (low_slope - new_slope)))
            elif new_slope < SLOPE * slope and size < longest:
                low, low_slope = size, new_slope
                size = min(longest, 2 * size) if math.isinf(high) else (low + high) / 2
            else:
                return self._accept(point, new, trial)
        return LineSearch(None, MOST_TRIALS) if best is None else self._accept(point, best, MOST_TRIALS)

    def _direction(self, point: Point) -> Direction:
        """Return a direction of descent that leads to a point within the bounds."""
        if self._model is None:
            gradient = self.projected_gradient(point)
            size = math.sqrt(self.dot(gradient, gradient))
            target = np.maximum(point.x - gradient * min(1.0, 1 / (size or 1.0)), self._lower)
        else:
            target = self._minimum(point, self._cauchy(point, self._model), self._model)
        step = target - point.x
        slope = self.dot(point.gradient, step)
        if self._model is not None and not slope < 0:
            self.forget()
            return self._direction(point)
        return Direction(step, slope, self._longest(point, step))

    def _cauchy(self, point: Point, model: _Model) -> Vector:
        """Return a point on the projected path of steepest descent at which the model has decreased sufficiently."""

        def at(size: float) -> tuple[Vector, float, float]:
            step = np.maximum(point.x - size * point.gradient, self._lower) - point.x
            products = self.summed(np.append(model.vectors @ step, [np.vdot(step, step), point.gradient @ step]))
            inner, square, slope = products[:-2], products[-2], float(products[-1])
            return step, slope + (model.theta * square - inner @ model.middle @ inner) / 2, slope

        size = 1 / model.theta
        step, decrease, slope = at(size)
        if decrease <= CAUCHY * slope:  # further along the path, as long as the model decreases
            for _ in range(CAUCHY_TRIALS):
                further, more, slope = at(size * CAUCHY_FACTOR)
                if not more < decrease:
                    break
                step, decrease, size = further, more, size * CAUCHY_FACTOR
            return point.x + step
        for _ in range(CAUCHY_TRIALS):
            size /= CAUCHY_FACTOR
            step, decrease, slope = at(size)
            if decrease <= CAUCHY * slope:
                break
        return point.x + step

    def _minimum(self, point: Point, cauchy: Vector, model: _Model) -> Vector:
        """Return the minimum of the model over the entries inside the bounds at the Cauchy point, projected."""
        free, step = cauchy > self._lower, cauchy - point.x
        inner = self.summed(model.vectors @ step)
        gradient = (point.gradient + model.theta * step - (model.middle @ inner) @ model.vectors) * free
        vectors = model.vectors * free
        products = self.summed(np.column_stack([vectors @ vectors.T, vectors @ gradient]))
        grams, right = products[:, :-1], products[:, -1]
        # The inverse of theta I - W M W^T, by the formula of Sherman, Morrison and Woodbury.
        system = np.eye(len(grams)) - model.middle @ grams / model.theta
        weights = np.linalg.solve(system, model.middle @ right) / model.theta**2
        change = -(gradient / model.theta + weights @ vectors)
        return np.maximum(cauchy + change, self._lower)

    def _longest(self, point: Point, step: Vector) -> float:
        """Return the largest multiple of a step that stays within the bounds."""
        down = (step < 0) & np.isfinite(self._lower)
        mine = float(((self._lower - point.x)[down] / step[down]).min(initial=math.inf))
        return min(self._comm.allgather(mine)) if self._comm.size > 1 else mine

    def _accept(self, point: Point, new: Point, trials: int) -> LineSearch:
        """Store the change from a point to another one if the gradient's change has positive curvature."""
        step, change = new.x - point.x, new.gradient - point.gradient
        curvature, size = self.summed(np.array([np.vdot(step, change), np.vdot(change, change)]))
        if curvature > CURVED * size:
            self._steps, self._changes = [*self._steps, step][-PAIRS:], [*self._changes, change][-PAIRS:]
            self._model = self._built(size / curvature)
        return LineSearch(new, trials)

    def _built(self, theta: float) -> _Model:
        """Return the model of the recent changes, in the compact form of Byrd, Nocedal and Schnabel (1994)."""
        steps, changes = np.array(self._steps), np.array(self._changes)
        products = self.summed(steps @ np.concatenate([steps, changes]).T)
        squares, mixed = np.hsplit(products, 2)
        lower = np.tril(mixed, -1)
        inverse = np.block([[-np.diag(np.diag(mixed)), lower.T], [lower, theta * squares]])
        return _Model(theta, np.concatenate([changes, theta * steps]), np.linalg.inv(inverse))


def _interpolated(value: float, slope: float, new: float) -> float:
    """Return the minimum of a parabola through a value, its slope and another value, as part of the interval."""
    excess = new - value - slope
    if not (math.isfinite(excess) and excess > 0):
        return NEAR
    return min(FAR, max(NEAR, -slope / (2 * excess)))


def scaled(start: Point, evaluate: Callable[[float], Point], slope_of: Callable[[Point], float]) -> Point:
    """Return a point at about the best scale.

    Parameters
    ----------
    start : Point
        At scale 1.
    evaluate : callable
        Returns the point at a scale.
    slope_of : callable
        Returns the derivative of the objective in the logarithm of the scale at a point. For a Poisson loss it is a
        linear function of the scale, so that one step of the secant method finds its root.
    """
    point, scale, slope = start, 1.0, slope_of(start)
    guess = 1 / FIRST_SCALE if slope > 0 else FIRST_SCALE
    for _ in range(MOST_SCALES if slope else 0):
        new = evaluate(guess)
        left = slope_of(new)
        if not math.isfinite(new.value + left):
            break
        root = guess if left == slope else scale + (guess - scale) * slope / (slope - left)
        point, scale, slope = new, guess, left
        guess = min(FURTHEST * scale, max(scale / FURTHEST, root))
        if abs(math.log(guess / scale)) < SAME_SCALE:
            break
    return point
