"""The fit that a Tucker decomposition reports is that of the model that it returns, in any precision."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from forms import exhaustive, in_turn

import amped
from amped.errors import InputError

MOST = 1e-6  # by which a fit may differ from the oracle's
METHODS = "hooi", "hosvd", "sthosvd"
TRIES = 8  # tensors of each test


def whole(model: amped.TuckerTensor) -> np.ndarray:
    """Return the dense tensor, in double precision, by an oracle."""
    found = model.core
    for mode, factor in enumerate(model.factors):
        found = np.moveaxis(np.tensordot(factor.astype(np.float64), found, (1, mode)), 0, mode)
    return found


def true_fit(array: np.ndarray, model: amped.TuckerTensor) -> float:
    wide = array.astype(np.float64)
    scale = np.abs(wide).max()
    return float(1 - np.linalg.norm(wide / scale - whole(model) / scale) / np.linalg.norm(wide / scale))


def low_ranked(rng: np.random.Generator, shape: tuple[int, ...], ranks: tuple[int, ...]) -> np.ndarray:
    """Return a tensor of multilinear rank `ranks`, with elements of about 1."""
    found = rng.standard_normal(ranks)
    for mode, (length, rank) in enumerate(zip(shape, ranks, strict=True)):
        found = np.moveaxis(np.tensordot(rng.standard_normal((length, rank)), found, (1, mode)), 0, mode)
    return np.asarray(found / np.sqrt(np.mean(found**2)))


def drawn(seed: int) -> tuple[np.ndarray, tuple[int, ...]]:
    """Return a small tensor, and ranks: a constant, of low rank, with noise from 1e-7 to 1, counts; at any scale."""
    rng = np.random.default_rng(seed)
    shape = tuple(int(n) for n in rng.integers(1, 12, 3))
    first, second = (int(rng.integers(1, min(3, n) + 1)) for n in shape[:2])
    ranks = (min(first, second * min(3, shape[2])), second, min(3, shape[2], first * second))
    ranks = (ranks[0], min(ranks[1], ranks[0] * ranks[2]), min(ranks[2], ranks[0] * ranks[1]))
    kind = seed % 4
    if kind == 0:
        array = np.full(shape, rng.choice([1.0, 0.1, 1 / 3]))
    elif kind == 3:
        array = rng.poisson(3.0, shape) + (rng.random(shape) < 0.5)
    else:
        array = low_ranked(rng, shape, ranks)
        array = array + (kind - 1) * 10.0 ** rng.integers(-7, 1) * rng.standard_normal(shape)
    return array * rng.choice([1.0, 1e-20, 1e20]), ranks


def given(array: np.ndarray, dense: bool, precision: str) -> tuple[Any, np.ndarray]:
    """Return a tensor in that precision, and the numbers that it holds."""
    held = array.astype(np.float32 if precision == "fp32" else np.float64)
    coordinates = np.argwhere(held)
    return (held if dense else amped.SparseTensor(coordinates, held[tuple(coordinates.T)], held.shape)), held


def check(model: amped.TuckerTensor, tensor: Any, held: np.ndarray) -> None:
    """Compare the last fit with the oracle's and the score; no fit may be less than the one before."""
    assert model.fits[-1] == pytest.approx(true_fit(held, model), abs=MOST)
    assert model.fits[-1] == pytest.approx(model.score(tensor), abs=MOST)
    assert all(np.diff(model.fits) > -MOST)


@pytest.mark.parametrize("dense", [False, True])
@pytest.mark.parametrize(("method", "precision"), in_turn(METHODS))
@pytest.mark.in_turn
def test_fits_are_true(device: str, method: str, precision: Any, dense: bool) -> None:
    for seed in range(2 * TRIES):
        array, ranks = drawn(seed)
        tensor, held = given(array, dense, precision)
        check(
            amped.tucker(tensor, ranks, method=method, max_iters=4, tol=0, precision=precision, device=device),
            tensor,
            held,
        )


@pytest.mark.parametrize("dense", [False, True])
@pytest.mark.parametrize(("precision", "least"), [("fp32", -5.9), exhaustive("fp64", -6.6)])
@pytest.mark.parametrize("method", METHODS)
def test_errors_are_at_most_what_was_asked_for(
    device: str, method: str, precision: Any, least: float, dense: bool
) -> None:
    for seed in range(TRIES):
        array, _ = drawn(seed)
        tensor, held = given(array, dense, precision)
        error = 10 ** np.random.default_rng(seed).uniform(least, -0.1)
        model = amped.tucker(tensor, error=error, method=method, max_iters=3, precision=precision, device=device)
        check(model, tensor, held)
        assert max(1 - model.fits[-1], 1 - true_fit(held, model)) <= error


def test_sums_of_many_equal_terms(device: str) -> None:
    """In single precision they are wrong in the third digit, and so were the factor matrices."""
    held = np.full((200_000, 3, 2), 0.7, np.float32)
    for how in ({"rank": (1, 1, 1), "max_iters": 3, "tol": 0}, {"error": 1e-4, "max_iters": 1}):
        model = amped.tucker(held, device=device, **how)  # type: ignore[arg-type]
        assert model.ranks == (1, 1, 1)
        assert model.fits[-1] > 1 - MOST
        assert model.score(held) == pytest.approx(model.fits[-1], abs=MOST)


@pytest.mark.parametrize(("precision", "least"), [("fp32", 1e-6), ("fp64", 2e-7)])
def test_an_error_that_numbers_cannot_hold_is_refused(precision: Any, least: float) -> None:
    array = np.random.default_rng(0).random((4, 3, 2))
    with pytest.raises(InputError, match=f"precision {precision} permits errors of at least {least:g}") as caught:
        amped.tucker(array, error=least / 2, precision=precision, device="cpu")
    assert ("fp64 permits 2e-07" in str(caught.value)) == (precision == "fp32")
    assert 1 - amped.tucker(array, error=least, precision=precision, device="cpu").fits[-1] <= least


@pytest.mark.parametrize("dense", [False, True])
def test_a_mode_may_have_more_columns_than_the_others_together(device: str, dense: bool) -> None:
    """Of spectra, each mode's number of columns is its own: HOOI drops those that count for nothing."""
    tensor, held = given(np.random.default_rng(0).standard_normal((30, 20)), dense, "fp64")
    first = amped.tucker(tensor, error=0.2, method="hosvd", precision="fp64", device=device)
    assert first.ranks[0] != first.ranks[1]
    model = amped.tucker(tensor, error=0.2, precision="fp64", device=device, max_iters=2)
    check(model, tensor, held)
    assert model.ranks[0] == model.ranks[1] <= min(first.ranks)
    assert 1 - model.fits[-1] <= 0.2
