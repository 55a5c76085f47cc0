"""Starts from short runs on a core: exact tensors are solved, and their cost is limited."""

from __future__ import annotations

import numpy as np
import pytest

from amped.methods import short_runs
from amped.methods.short_runs import best_start, suits

Matrix = np.ndarray


def collinear(shape: tuple[int, ...], rank: int, cosine: float) -> Matrix:
    """Return a tensor whose components have this cosine in each mode."""
    rng = np.random.default_rng(3)
    mixed = np.linalg.cholesky(np.full((rank, rank), cosine) + (1 - cosine) * np.eye(rank)).T
    return whole([np.linalg.qr(rng.normal(size=(length, rank)))[0] @ mixed for length in shape])


def whole(factors: list[Matrix]) -> Matrix:
    letters = "abcdef"[: len(factors)]
    return np.einsum(",".join(f"{each}r" for each in letters) + "->" + letters, *factors)


@pytest.mark.parametrize("shape", [(6, 5, 4), (5, 4, 6, 3), (5, 4, 4, 4, 3)])
@pytest.mark.parametrize("scale", [1e-200, 1.0, 1e200])
def test_collinear_components_are_found(shape: tuple[int, ...], scale: float) -> None:
    array = collinear(shape, 3, 0.95)
    start = best_start(scale * array, 3, 0)
    assert start is not None
    assert start.fit > 1 - 1e-6
    model = whole([*start.factors[:-1], start.factors[-1] / scale])
    assert np.linalg.norm(model - array) < 1e-5 * np.linalg.norm(array)


def test_the_fit_is_that_of_the_whole_array() -> None:
    """Noise outside the core counts; random starts serve ranks above the lengths, and matrices."""
    rng = np.random.default_rng(1)
    for shape, rank in (((9, 8, 7), 2), ((4, 3, 3), 5), ((7, 6), 2)):
        array = rng.normal(size=shape)
        start = best_start(array, rank, 0)
        assert start is not None
        distance = np.linalg.norm(array - whole(start.factors)) / np.linalg.norm(array)
        assert start.fit == pytest.approx(1 - distance, abs=1e-6)


def test_more_runs_are_no_worse(monkeypatch: pytest.MonkeyPatch) -> None:
    array, fits = np.random.default_rng(2).normal(size=(6, 6, 6)), dict[int, float]()
    for runs in (1, 10):
        monkeypatch.setattr(short_runs, "RUNS", runs)
        start = best_start(array, 4, 0)
        assert start is not None
        fits[runs] = start.fit
    assert fits[10] > fits[1]


def test_zeros_have_no_start() -> None:
    assert best_start(np.zeros((3, 3, 3)), 2, 0) is None


def test_singular_slices_leave_random_runs() -> None:
    """The closed form needs invertible mixtures of slices; here all have rank 1."""
    array = whole([np.ones((4, 1)), np.ones((4, 1)), np.ones((4, 1))])
    start = best_start(array, 2, 0)
    assert start is not None
    assert start.fit > 1 - 1e-5


@pytest.mark.parametrize(
    ("shape", "nnz", "rank", "expected"),
    [
        ((5, 6, 7), 210, 2, True),
        ((40, 30, 20), 3000, 5, True),
        ((300, 300, 300), 27_000_000, 5, False),  # too many elements
        ((60, 60, 60), 500, 60, False),  # the core is the tensor, of few nonzeros
        ((5,), 5, 2, False),
        ((0, 3, 3), 0, 2, False),
    ],
)
def test_suits(shape: tuple[int, ...], nnz: int, rank: int, expected: bool) -> None:
    assert suits(shape, nnz, rank) is expected
