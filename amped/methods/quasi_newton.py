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

from ..parallel.mpi import Comm
from .recent_changes import (
    CURVED,
    HOST,
    PAIRS,
    Matrix,
    Passes,
    Point,
    QuadraticModel,
    RecentChanges,
    Vector,
    VectorPlace,
)

VECTORS, MORE_ON_GPU = 2 * PAIRS + 11, 9
"""Vectors at a time at most, of the length of a rank's part; and on a GPU a gradient, and temporary ones of a block."""
DECREASE, SLOPE = 1e-4, 0.9  # sufficient decrease, and share of the slope that may remain (Wolfe conditions)
NOISE = 1e-16  # relative decrease of the objective that rounding hides
MOST_TRIALS = 25  # points of a line search
NEAR, FAR = 0.1, 0.5  # range of interpolated steps, as parts of the interval
CAUCHY, CAUCHY_FACTOR, CAUCHY_TRIALS = 0.1, 2.0, 12
FIRST_SCALE, FURTHEST, SAME_SCALE, MOST_SCALES = 10.0, 1e4, 0.2, 8  # of a search for the scale of a start


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
    lower : (n,) array
        Lower bound of each entry of this rank's part; may be minus infinity.
        In host memory.
    place : VectorPlace
        Of all other vectors.
    """

    def __init__(self, comm: Comm, lower: Vector, place: VectorPlace = HOST) -> None:
        self._comm, self._passes, self._xp = comm, Passes(comm, lower.size, place), place.xp
        xp, same = place.xp, bool(lower.size) and bool((lower == lower[0]).all())
        # Passes need not read equal bounds from memory.
        self._lower = xp.broadcast_to(xp.asarray(lower[:1]), lower.shape) if same else xp.asarray(lower)
        self._step = xp.empty(lower.size)
        self._recent, self._size = RecentChanges(lower.size, xp), 1.0
        bounded = bool(np.isfinite(lower).any())
        self._bounded = any(comm.allgather(bounded)) if comm.size > 1 else bounded
        self.dot, self.summed = self._passes.dot, self._passes.summed

    def forget(self) -> None:
        """Discard the recent changes."""
        self._recent.forget()

    def largest(self, point: Point) -> float:
        """Return the largest magnitude of an entry of the gradient that may change, on any rank; zero at an optimum.

        Entries at their bound whose decrease would decrease the objective may not change.
        """

        def largest(b: slice) -> float:
            return float(abs(self._projected_gradient(point, b)).max())  # no block is empty

        mine = max(self._passes.each(largest), default=0.0)
        return max(self._comm.allgather(mine)) if self._comm.size > 1 else mine

    def _projected_gradient(self, point: Point, b: slice) -> Vector:
        """Return a block of the gradient, in which entries that may not change are zero; see `largest`."""
        gradient = point.gradient[b]
        free: Vector = self._xp.where((point.x[b] > self._lower[b]) | (gradient < 0), gradient, 0.0)
        return free

    def search(self, point: Point, evaluate: Callable[[Vector], Point]) -> LineSearch:
        """Return a point with a sufficiently lower objective on the line along the direction; it is evaluated last."""
        step, slope, longest = self._direction(point)
        if not -slope > NOISE * abs(point.value):
            return LineSearch(None, 0)
        low, high, size = 0.0, math.inf, 1.0  # the ends of an interval with a minimum, and a trial point
        low_slope, best, least = slope, None, point.value
        for trial in range(1, MOST_TRIALS + 1):
            new = evaluate(self._at(point.x, size, step))
            if not new.value <= point.value + DECREASE * size * slope:  # also if it is not finite
                high = size
                size = low + (high - low) * _interpolated(point.value, size * slope, new.value)
                continue
            new_slope, square = self._changes(point, new, step)
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

    def _changes(self, point: Point, new: Point, step: Vector) -> tuple[float, float]:
        """Return the slope along a step at a new point, and the squared change of the gradient."""

        def products(b: slice) -> Vector:
            change = new.gradient[b] - point.gradient[b]
            return self._passes.products((new.gradient[b], step[b]), (change, change))

        slope, square = self._passes.total(products, (2,)).tolist()
        return slope, square

    def _accept(self, point: Point, found: _Accepted, trials: int) -> LineSearch:
        """Store the change from a point to another one if the gradient's change has positive curvature."""
        if found.curvature > CURVED * found.square:
            self._recent.add(point, found.point)
            self._size = found.curvature / found.square
        return LineSearch(found.point, trials)

    def _at(self, x: Vector, size: float, step: Vector) -> Vector:
        """Return ``x + size * step``, within the bounds in spite of rounding."""
        xp, result = self._xp, self._xp.empty_like(x)

        def move(b: slice) -> None:
            xp.multiply(step[b], size, out=result[b])
            result[b] += x[b]
            xp.maximum(result[b], self._lower[b], out=result[b])

        self._passes.each(move)
        return result  # type: ignore[no-any-return]

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

        def square(b: slice) -> Vector:
            gradient = self._projected_gradient(point, b)
            return self._passes.products((gradient, gradient))

        size = math.sqrt(self._passes.total(square, (1,))[0])
        factor = min(1.0, 1 / (size or 1.0))
        return self._towards(point, lambda b: point.x[b] - factor * self._projected_gradient(point, b))

    def _towards(self, point: Point, target: Callable[[slice], Vector]) -> Direction:
        """Return the direction to the projection of a point, of which `target` returns blocks.

        It is valid until the next call.
        """
        step, xp = self._step, self._xp

        def block(b: slice) -> tuple[float, float]:
            own, x, lower = step[b], point.x[b], self._lower[b]
            xp.subtract(xp.maximum(target(b), lower), x, out=own)
            slope, longest = float(xp.vdot(point.gradient[b], own)), math.inf
            if self._bounded:
                with np.errstate(divide="ignore", invalid="ignore"):
                    longest = float(xp.where(own < 0, (lower - x) / own, math.inf).min())
            return slope, longest

        parts = self._passes.each(block)
        slope = self.summed(np.array([sum(part[0] for part in parts)], np.float64))  # also without entries
        longest = min((part[1] for part in parts), default=math.inf)
        if self._comm.size > 1:
            longest = min(self._comm.allgather(longest))
        return Direction(step, float(slope[0]), longest)

    def _path_step(self, point: Point, size: float, b: slice) -> Vector:
        """Return a block of the step to a point of the path; see `_Path`."""
        result = point.gradient[b] * -size
        result += point.x[b]
        self._xp.maximum(result, self._lower[b], out=result)
        result -= point.x[b]
        return result

    def _on_path(self, point: Point, *sizes: float) -> list[_Path]:
        """Return points of the path, after adding a new pair of changes; none if that leaves no changes."""
        recent, xp = self._recent, self._xp
        new = recent.coming

        def products(b: slice) -> Matrix:
            every, right = recent.block(b), xp.empty((new + len(sizes), b.stop - b.start))
            right[:new] = recent.new(b)
            for step, size in zip(right[new:], sizes, strict=True):
                step[...] = self._path_step(point, size, b)
            result = xp.zeros((recent.rows + 2, len(right)))
            result[:-2] = every @ right.T
            result[-2, new:] = self._passes.products(*((step, step) for step in right[new:]))
            result[-1] = right @ point.gradient[b]
            return result  # type: ignore[no-any-return]

        found = self._passes.total(products, (recent.rows + 2, new + len(sizes)))
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
        weights = self._xp.asarray(solved / theta**2 - shares / theta)

        def target(b: slice) -> Vector:
            start = self._path_step(point, cauchy.size, b) + point.x[b]
            change = point.gradient[b] / theta + weights @ vectors[:, b]
            return self._xp.where(start > self._lower[b], point.x[b] - change, start)  # type: ignore[no-any-return]

        return self._towards(point, target)

    def _free_products(self, point: Point, cauchy: _Path, model: QuadraticModel) -> tuple[Matrix, Vector]:
        """Return ``W^T W`` and ``W^T (gradient + theta s)``, s being the step, of entries inside the bounds there."""
        if not self._bounded:
            return model.grams, (model.theta - 1 / cauchy.size) * cauchy.inner

        def products(b: slice) -> Matrix:
            step, some = self._path_step(point, cauchy.size, b), model.vectors[:, b]
            free = step + point.x[b] > self._lower[b]
            whole = self._xp is np and free.all()  # which CuPy would compile for seconds
            chosen = some if whole else some * free
            step *= model.theta
            step += point.gradient[b]
            return self._xp.column_stack([chosen @ some.T, chosen @ step])  # type: ignore[no-any-return]

        found = self._passes.total(products, (len(model.vectors), len(model.vectors) + 1))
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
