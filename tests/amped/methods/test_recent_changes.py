"""The model of recent changes, compared with updates of a whole matrix, and passes over blocks in host memory."""

from __future__ import annotations

import numpy as np
import pytest

from amped.backend.ops.lbfgs import PAIRS, Point
from amped.methods import host_vectors
from amped.methods.host_vectors import HostVectors
from amped.methods.recent_changes import RecentChanges

LENGTH = 23
UNBOUNDED = np.full(LENGTH, -np.inf)


def updated(changes: list[tuple[np.ndarray, np.ndarray]]) -> np.ndarray:
    """Return the Hessian after BFGS updates by steps and changes of the gradient."""
    step, change = changes[-1]
    result = change @ change / (step @ change) * np.eye(LENGTH)
    for step, change in changes:
        product = result @ step
        result += np.outer(change, change) / (step @ change) - np.outer(product, product) / (step @ product)
    return result


def added(recent: RecentChanges, point: Point, new: Point) -> None:
    """Add a change in a pass over blocks."""
    recent.add(point, new)
    found = HostVectors(UNBOUNDED, 2).products(point, (1.0,), recent.vectors, recent.coming)
    recent.complete(found[:-2, :2])


@pytest.mark.parametrize("count", [1, 3, PAIRS + 3])
def test_the_model_is_that_of_updates_of_a_matrix(monkeypatch: pytest.MonkeyPatch, count: int) -> None:
    """Also if a change without curvature is among them, which is discarded."""
    monkeypatch.setattr(host_vectors, "BLOCK", 4)
    rng, recent, changes = np.random.default_rng(0), RecentChanges(HostVectors(UNBOUNDED)), []
    hessian = np.diag(rng.random(LENGTH) + 0.5)
    x = rng.random(LENGTH)
    for number in range(count):
        step = rng.random(LENGTH) - 0.5
        if number == 2:
            added(recent, Point(x, 0.0, x), Point(x + step, 0.0, x - step))
        added(recent, Point(x, 0.0, hessian @ x), Point(x + step, 0.0, hessian @ (x + step)))
        changes.append((step, hessian @ step))
        x = x + step
    kept = PAIRS if count > PAIRS else count
    model = recent.model
    assert model is not None
    found = model.theta * np.eye(LENGTH) - model.vectors.T @ model.middle @ model.vectors
    np.testing.assert_allclose(found, updated(changes[-kept:]), rtol=1e-9, atol=1e-9)
    np.testing.assert_allclose(model.grams, model.vectors @ model.vectors.T, rtol=1e-12)


def test_nothing_is_left_if_the_only_change_has_no_curvature() -> None:
    recent, x = RecentChanges(HostVectors(UNBOUNDED)), np.ones(LENGTH)
    added(recent, Point(x, 0.0, x), Point(2 * x, 0.0, 0 * x))
    assert recent.model is None
    assert not recent.exist


def test_threads_and_blocks_change_nothing_but_rounding(monkeypatch: pytest.MonkeyPatch) -> None:
    one, other = np.random.default_rng(1).random((2, LENGTH))
    monkeypatch.setattr(host_vectors, "BLOCK", 3)
    totals = {threads: HostVectors(UNBOUNDED, threads).dot(one, other) for threads in (1, 2, 5, 40)}
    assert len({*totals.values()}) == 1, "sums are added in the order of blocks"
    assert totals[1] == pytest.approx(one @ other, rel=1e-14)


def test_a_rank_without_entries() -> None:
    vectors, none = HostVectors(np.empty(0), threads=4), np.empty(0)
    point = Point(none, 0.0, none)
    assert vectors.dot(none, none) == vectors.largest(point) == vectors.square(point) == 0
    reach = vectors.steepest(point, 1.0, none)
    assert reach == (0, np.inf)
    assert isinstance(reach.slope, float)  # ranks sum numbers of one type
    np.testing.assert_array_equal(vectors.products(point, (1.0, 2.0), np.empty((4, 0)), None), np.zeros((6, 2)))


def test_numbers_that_are_not_finite(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(host_vectors, "BLOCK", 4)
    gradient = np.ones(LENGTH)
    gradient[17] = np.nan
    vectors, point = HostVectors(np.zeros(LENGTH)), Point(np.ones(LENGTH), 0.0, gradient)
    assert np.isnan(
        [vectors.largest(point), vectors.square(point), vectors.steepest(point, 1.0, np.ones(LENGTH))[0]]
    ).all()
    assert np.isnan(vectors.moved(point.x, 1.0, gradient)).sum() == 1
