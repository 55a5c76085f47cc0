"""Passes of L-BFGS-B over vectors in a GPU's memory, against those in host memory."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from amped.backend.choose import choose
from amped.backend.ops.lbfgs import LBFGS, LbfgsVectors, NewtonStep, Point, PointChange
from amped.methods.host_vectors import HostVectors
from amped.parallel.mpi import world

pytestmark = pytest.mark.gpu


@pytest.fixture(scope="module")
def backend() -> Any:
    return choose("cuda", world())


def lower_bounds(length: int, bounds: str) -> np.ndarray:
    """Return bounds: none, the same one of all entries, or of some of them."""
    share = {"none": 0.0, "one": 1.0, "some": 0.5}[bounds]
    return np.where(np.random.default_rng(1).random(length) < share, 0.0, -np.inf)


def passes(vectors: LbfgsVectors, arrays: list[Any], rows: int) -> list[Any]:
    """Return the results of all passes, and what they write."""
    x, new, gradient, changed, step, longer = (each.copy() for each in arrays[:6])
    recent, point = arrays[6][:rows].copy(), Point(x, 0.0, gradient)
    further, newton = Point(new, 0.0, changed), NewtonStep(0.4, 1.7, np.linspace(-1, 1, rows), recent)
    found: list[Any] = [vectors.dot(gradient, step), vectors.largest(point), vectors.square(point)]
    found += [vectors.changes(point, further, step), vectors.moved(x, 0.3, step)]
    found += [vectors.products(further, (0.4, 0.8), recent, None), vectors.free_products(further, 0.4, recent, 1.7)]
    written = vectors.products(further, (0.4,), recent, PointChange(rows - 2, point, further))
    found += [written[:-2], written[-2, 2:], written[-1], recent]
    found += [*vectors.steepest(point, 0.2, step), step, *vectors.minimum(point, newton, longer), longer]
    return found


@pytest.mark.parametrize("rows", [2, 6, 10])
@pytest.mark.parametrize("bounds", ["none", "one", "some"])
@pytest.mark.parametrize("length", [0, 1, 255, 256, 200_003])
def test_passes(backend: Any, length: int, bounds: str, rows: int) -> None:
    """Of no entry, of fewer than a thread block, and of more than all threads; the same bits each time."""
    rng, lower = np.random.default_rng(length), lower_bounds(length, bounds)
    points = np.maximum(rng.standard_normal((2, length)), lower)
    arrays = [*points, *rng.standard_normal((4, length)), rng.standard_normal((10, length))]
    host, gpu = HostVectors(lower), LBFGS.require(backend).make(lower)
    assert gpu.bounded == host.bounded == (bounds != "none" and np.isfinite(lower).any())
    want = passes(host, arrays, rows)
    runs = [passes(gpu, [*map(backend.to_device, arrays)], rows) for _ in range(2)]
    first, again = ([each.get() if hasattr(each, "get") else each for each in run] for run in runs)
    for one, other, repeated in zip(want, first, again, strict=True):
        np.testing.assert_allclose(other, one, rtol=1e-11, atol=1e-10)
        np.testing.assert_array_equal(other, repeated)


def test_numbers_that_are_not_finite(backend: Any) -> None:
    x, gradient = np.ones(1000), np.ones(1000)
    gradient[700] = np.nan
    vectors = LBFGS.require(backend).make(np.zeros(1000))
    point = Point(backend.to_device(x), 0.0, backend.to_device(gradient))
    step = backend.to_device(x)
    assert np.isnan([vectors.largest(point), vectors.square(point), vectors.steepest(point, 1.0, step)[0]]).all()
    assert np.isnan(backend.to_host(vectors.moved(point.x, 1.0, point.gradient))).sum() == 1
