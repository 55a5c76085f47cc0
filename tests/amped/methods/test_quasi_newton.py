"""L-BFGS-B, compared with SciPy's, and the search for the scale of a start."""

from __future__ import annotations

import math
from collections.abc import Callable

import numpy as np
import pytest
from scipy.optimize import minimize

from amped.backend.ops.lbfgs import Point
from amped.methods.host_vectors import HostVectors
from amped.methods.quasi_newton import QuasiNewton, matched, scaled
from amped.parallel.mpi import world

LENGTH = 40


def rosenbrock(x: np.ndarray) -> Point:
    difference, gradient = x[1:] - x[:-1] ** 2, np.zeros_like(x)
    gradient[1:] += 200 * difference
    gradient[:-1] -= 400 * x[:-1] * difference + 2 * (1 - x[:-1])
    return Point(x, float(np.sum(100 * difference**2 + (1 - x[:-1]) ** 2)), gradient)


def counts(x: np.ndarray) -> Point:
    """A Poisson loss of a linear model with many zeros, whose gradient is huge near the bound."""
    design = np.random.default_rng(0).random((90, LENGTH)) ** 4
    data = np.random.default_rng(1).poisson(design @ np.where(np.arange(LENGTH) % 3, 0, 2.0))
    model = design @ x + 1e-10
    return Point(x, float(np.sum(model - data * np.log(model))), design.T @ (1 - data / model))


def minimum(function: Callable[[np.ndarray], Point], start: np.ndarray, lower: float) -> tuple[Point, int]:
    """Return the last point, and the number of evaluations."""
    method, point, evaluations = QuasiNewton(world(), HostVectors(np.full(start.size, lower))), function(start), 1
    for _ in range(1000):
        found = method.search(point, function)
        evaluations += found.evaluations
        if found.point is None:
            break
        assert found.point.value <= point.value
        assert found.point.x.min() >= lower
        point = found.point
        if method.largest(point) < 1e-7:
            break
    return point, evaluations


@pytest.mark.parametrize(
    ("function", "lower"), [(rosenbrock, -math.inf), (rosenbrock, 0.0), (rosenbrock, 1.2), (counts, 0.0)]
)
def test_the_optimum_is_that_of_scipy(function: Callable[[np.ndarray], Point], lower: float) -> None:
    start = np.maximum(np.full(LENGTH, 2.0 if math.isfinite(lower) else -1.2), lower)
    bounds = [(lower, None)] * LENGTH
    want = minimize(
        lambda x: function(x)[1:], start, jac=True, method="L-BFGS-B", bounds=bounds,
        options={"maxcor": 5, "maxiter": 1000, "maxfun": 9999, "ftol": 0, "gtol": 1e-7},
    )  # fmt: skip
    point, evaluations = minimum(function, start, lower)
    assert point.value == pytest.approx(want.fun, rel=1e-9, abs=1e-9)
    assert evaluations < 2 * want.nfev


def test_a_function_that_is_not_finite_everywhere() -> None:
    def barrier(x: np.ndarray) -> Point:
        with np.errstate(all="ignore"):
            return Point(x, float(np.sum(x - np.log(x))), 1 - 1 / x)

    point, _ = minimum(barrier, np.full(3, 5.0), -math.inf)
    np.testing.assert_allclose(point.x, 1, rtol=1e-5)


def test_nothing_is_done_at_an_optimum() -> None:
    method = QuasiNewton(world(), HostVectors(np.full(2, -math.inf)))
    assert method.search(Point(np.ones(2), 1.0, np.zeros(2)), rosenbrock) == (None, 0)


@pytest.mark.parametrize("best", [1e-6, 0.3, 1.0, 5.0, 1e5])
def test_the_scale_of_a_start(best: float) -> None:
    seen = []

    def evaluate(scale: float) -> Point:
        seen.append(scale)
        return Point(np.array([scale]), scale - best * math.log(scale), np.array([1 - best / scale]))

    point = scaled(evaluate(1.0), evaluate, lambda point: float(point.x[0] * point.gradient[0]))
    assert point.x[0] == pytest.approx(best, rel=0.2)
    assert len(seen) <= 5


@pytest.mark.parametrize("cosine", [-0.9, 0.0, 0.1, 0.9])
@pytest.mark.parametrize("size", [1e-9, 1e-3, 0.3, 1.0, 5.0, 1e10])
def test_a_start_as_large_as_the_elements(size: float, cosine: float) -> None:
    """By least squares of a line at an angle to the elements, whose distance is `size`."""
    seen = []

    def evaluate(scale: float) -> Point:
        seen.append(scale)
        return Point(np.array([scale]), size**2 + scale**2 - 2 * cosine * size * scale, np.zeros(1))

    point = matched(evaluate(1.0), evaluate)
    assert 0.03 * size < point.x[0] < 3 * size
    assert len(seen) <= 10


def test_the_size_of_zeros_stays() -> None:
    start = Point(np.ones(1), 1.0, np.ones(1))
    assert matched(start, lambda scale: Point(np.array([scale]), scale**2, np.ones(1))) is start
