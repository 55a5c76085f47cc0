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

from ..backend.ops.lbfgs import PAIRS, LbfgsVectors, Matrix, NewtonStep, Point, Reach, Vector
from ..parallel.mpi import Comm
from .recent_changes import CURVED, QuadraticModel, RecentChanges

VECTORS, MORE_ON_GPU = 2 * PAIRS + 12, 5
"""Vectors at a time at most, of the length of a rank's part; and on a GPU a gradient, and those of a ridge."""
DECREASE, SLOPE = 1e-4, 0.9  # sufficient decrease, and share of the slope that may remain (Wolfe conditions)
GAIN, SHORT = 1e-6, 0.01  # least relative decrease that the first step aims at, and its relative length at most
NOISE = 1e-16  # relative decrease of the objective that rounding hides
MOST_TRIALS = 25  # points of a line search
NEAR, FAR = 0.1, 0.5  # range of interpolated steps, as parts of the interval
CAUCHY, CAUCHY_FACTOR, CAUCHY_TRIALS = 0.1, 2.0, 12
FIRST_SCALE, FURTHEST, SAME_SCALE, MOST_SCALES = 10.0, 1e4, 0.2, 8  # of a search for the scale of a start
SHARE = 0.1  # of the objective of zeros: by about this much that of a `matched` scale differs from it


class Direction(NamedTuple):
    """A step, the slope along it, and the largest multiple of the step within the bounds, at least 1."""

    step: Vector
    slope: float
    longest: float


class LineSearch(NamedTuple):
    """The result of a line search: a point with a lower objective, if one was found, and the number of evaluations."""

    point: Point | None
    evaluations: int


class _Path(NamedTuple):
    """A point of the projected path of steepest descent, ``x - size * gradient``, and the model there.

    Attributes
    ----------
    size : float
    inner : (rows,) array
        ``W^T s``, s being the step to the point; see `QuadraticModel`.
    decrease, slope : float
        The change of the model, and its linear part.
    """

    size: float
    inner: Vector
    decrease: float
    slope: float


class _Accepted(NamedTuple):
    """A point of a line search, the curvature of the step to it, and the squared change of the gradient."""

    point: Point
    curvature: float
    square: float


class QuasiNewton:
    """Steps of L-BFGS-B. All methods are collective.

    Parameters
    ----------
    comm : Comm
    vectors : LbfgsVectors
        With the lower bounds of this rank's part.
    """

    def __init__(self, comm: Comm, vectors: LbfgsVectors) -> None:
        self._comm, self._vectors, self._step = comm, vectors, vectors.empty()
        self._recent, self._size = RecentChanges(vectors), 0.0  # the size of steps by the last curvature
        self._bounded = any(comm.allgather(vectors.bounded)) if comm.size > 1 else vectors.bounded

    def forget(self) -> None:
        """Discard the recent changes."""
        self._recent.forget()

    def summed(self, numbers: Vector) -> Vector:
        """Return the sum of an array over all ranks, in its place."""
        if self._comm.size > 1:
            self._comm.all_reduce(numbers, "sum")
        return numbers

    def dot(self, one: Vector, other: Vector) -> float:
        """Return the inner product over all ranks."""
        return self._sum(self._vectors.dot(one, other))

    def _sum(self, number: float) -> float:
        return float(self.summed(np.array([number], np.float64))[0])

    def largest(self, point: Point) -> float:
        """Return the largest magnitude of an entry of the gradient that may change, on any rank; zero at an optimum.

        Entries at their bound whose decrease would decrease the objective may not change.
        """
        mine = self._vectors.largest(point)
        return max(self._comm.allgather(mine)) if self._comm.size > 1 else mine

    def search(self, point: Point, evaluate: Callable[[Vector], Point]) -> LineSearch:
        """Return a point with a sufficiently lower objective on the line along the direction; it is evaluated last."""
        step, slope, longest = self._direction(point)
        if not -slope > NOISE * abs(point.value):
            return LineSearch(None, 0)
        low, high, size = 0.0, math.inf, 1.0  # the ends of an interval with a minimum, and a trial point
        low_slope, best, least = slope, None, point.value
        for trial in range(1, MOST_TRIALS + 1):
            new = evaluate(self._vectors.moved(point.x, size, step))
            if not new.value <= point.value + DECREASE * size * slope:  # also if it is not finite
                high = size
                size = low + (high - low) * _interpolated(point.value, size * slope, new.value)
                continue
            new_slope, square = self.summed(self._vectors.changes(point, new, step)).tolist()
            found = _Accepted(new, size * (new_slope - slope), square)
            if new.value < least:
                best, least = found, new.value
            if new_slope > -SLOPE * slope:  # too far: near a bound the gradient may be huge
                high = size
                size = low + (high - low) * min(1 - NEAR, max(FAR, low_slope / (low_slope - new_slope)))
            elif new_slope < SLOPE * slope and size < longest:
                low, low_slope = size, new_slope
                size = min(longest, 2 * size) if math.isinf(high) else (low + high) / 2
            else:
                return self._accept(point, found, trial)
        if best is None:
            return LineSearch(None, MOST_TRIALS)
        evaluate(best.point.x)  # again, because the caller holds the last trial
        return self._accept(point, best, MOST_TRIALS + 1)

    def _accept(self, point: Point, found: _Accepted, trials: int) -> LineSearch:
        """Store the change from a point to another one if the gradient's change has positive curvature."""
        if found.curvature > CURVED * found.square:
            self._recent.add(point, found.point)
            self._size = found.curvature / found.square
        return LineSearch(found.point, trials)

    def _direction(self, point: Point) -> Direction:
        """Return a direction of descent that leads to a point within the bounds."""
        if self._recent.exist:
            paths = self._on_path(point, self._size, CAUCHY_FACTOR * self._size)
            if (model := self._recent.model) is not None:
                direction = self._minimum(point, self._cauchy(point, *paths), model)
                if direction.slope < 0:
                    return direction
            self.forget()
        return self._steepest(point)

    def _steepest(self, point: Point) -> Direction:
        """Return the direction of the projected gradient."""
        length = math.sqrt(self._sum(self._vectors.square(point))) or 1.0
        factor = min(1.0, 1 / length)
        if not self._size:  # the elements may have any unit
            most = SHORT * math.sqrt(self.dot(point.x, point.x)) / length
            factor = max(factor, min(most, GAIN * abs(point.value) / length**2))
        return self._towards(self._vectors.steepest(point, factor, self._step))

    def _towards(self, mine: Reach) -> Direction:
        """Return the direction of the step that was set; it is valid until the next call."""
        longest = min(self._comm.allgather(mine.longest)) if self._comm.size > 1 else mine.longest
        return Direction(self._step, self._sum(mine.slope), longest)

    def _on_path(self, point: Point, *sizes: float) -> list[_Path]:
        """Return points of the path, after adding a new pair of changes; none if that leaves no changes."""
        recent = self._recent
        new = 0 if recent.coming is None else 2
        found = self.summed(self._vectors.products(point, sizes, recent.vectors, recent.coming))
        recent.complete(found[:-2, :new])
        model = recent.model
        if model is None:
            return []
        return [_path_of(model, size, each) for size, each in zip(sizes, found.T[new:], strict=True)]

    def _cauchy(self, point: Point, found: _Path, further: _Path) -> _Path:
        """Return a point of the path at which the model has decreased sufficiently; the first two are known."""
        if found.decrease <= CAUCHY * found.slope:  # further along the path, as long as the model decreases
            for _ in range(CAUCHY_TRIALS):
                if not further.decrease < found.decrease:
                    break
                found = further
                (further,) = self._on_path(point, found.size * CAUCHY_FACTOR)
            return found
        for _ in range(CAUCHY_TRIALS):
            (found,) = self._on_path(point, found.size / CAUCHY_FACTOR)
            if found.decrease <= CAUCHY * found.slope:
                break
        return found

    def _minimum(self, point: Point, cauchy: _Path, model: QuadraticModel) -> Direction:
        """Return the direction to the minimum of the model over the entries inside the bounds at the Cauchy point.

        With g the gradient of the model there, this is the Cauchy point less ``H g``, H being the inverse of the
        Hessian by the formula of Sherman, Morrison and Woodbury.
        """
        theta, vectors, shares = model.theta, model.vectors, model.middle @ cauchy.inner
        grams, right = self._free_products(point, cauchy, model)
        system = np.eye(len(grams)) - model.middle @ grams / theta
        solved = np.linalg.solve(system, model.middle @ (right - grams @ shares))
        newton = NewtonStep(cauchy.size, theta, solved / theta**2 - shares / theta, vectors)
        return self._towards(self._vectors.minimum(point, newton, self._step))

    def _free_products(self, point: Point, cauchy: _Path, model: QuadraticModel) -> tuple[Matrix, Vector]:
        """Return ``W^T W`` and ``W^T (gradient + theta s)``, s being the step, of entries inside the bounds there."""
        if not self._bounded:
            return model.grams, (model.theta - 1 / cauchy.size) * cauchy.inner
        found = self.summed(self._vectors.free_products(point, cauchy.size, model.vectors, model.theta))
        return found[:, :-1], found[:, -1]


def _path_of(model: QuadraticModel, size: float, products: Vector) -> _Path:
    """Return a point of the path from the products of its step: with W, itself, and the gradient."""
    inner, square, slope = products[:-2], float(products[-2]), float(products[-1])
    return _Path(size, inner, slope + (model.theta * square - float(inner @ model.middle @ inner)) / 2, slope)


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


def matched(start: Point, evaluate: Callable[[float], Point]) -> Point:
    """Return a point at a scale where the model is about as large as the elements, for models of any sign.

    Its objective is lower than that of a model of zeros, or slightly higher if the elements have both signs and no
    scale is good. For least squares the norm of the model is then 0.03 to 2 times that of the elements, whatever their
    unit. The best scale may be near zero, a saddle point. See `scaled` for the parameters.
    """
    zeros, point, scale, low, high = evaluate(0.0).value, start, 1.0, 0.0, math.inf
    for _ in range(MOST_SCALES if math.isfinite(zeros) and zeros > 0 else 0):
        excess = point.value / zeros - 1
        if -2 * excess >= SHARE or SHARE / 2 <= excess <= 2 * SHARE:
            break
        if excess < SHARE:  # the model is too small
            low, factor = scale, 0.5 / max(abs(excess), 0.5 / FURTHEST)
        else:  # too large, also if the objective is not finite
            high, factor = scale, max(1 / FURTHEST, math.sqrt(SHARE / excess)) if excess > 0 else 1 / FURTHEST
        scale = math.sqrt(low * high) if low and math.isfinite(high) else scale * factor
        point = evaluate(scale)
    return point
