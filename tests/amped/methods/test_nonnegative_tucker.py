"""Non-negative Tucker decompositions, fixed factor matrices, and modes that stay uncompressed."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from tuckers import assert_orthonormal, dense_ttmc, relative_error, ttm, unfolded

import amped
from amped.errors import InputError
from amped.methods.extrapolation import QUIET
from amped.methods.nonnegative_core import solve_core, times

SHAPE, RANKS = (12, 9, 11), (3, 2, 4)


def planted(seed: int = 0, noise: float = 0.1) -> np.ndarray:
    """Return a tensor with a non-negative core and factor matrices, plus non-negative noise."""
    rng = np.random.default_rng(seed)
    factors = [rng.random((n, r)) for n, r in zip(SHAPE, RANKS, strict=True)]
    return np.einsum("abc,ia,jb,kc->ijk", rng.random(RANKS), *factors) + noise * rng.random(SHAPE)


def tensors(dense: bool) -> tuple[Any, np.ndarray]:
    """Return a tensor with zeros, dense or sparse, and the same as an array."""
    array = planted() * (np.random.default_rng(1).random(SHAPE) < 0.5)
    return array if dense else amped.SparseTensor(np.argwhere(array), array[array != 0], SHAPE), array


def start(seed: int = 5) -> list[np.ndarray]:
    rng = np.random.default_rng(seed)
    return [rng.random((n, r)) for n, r in zip(SHAPE, RANKS, strict=True)]


def test_the_core_is_the_non_negative_least_squares_solution() -> None:
    from scipy.optimize import nnls

    rng = np.random.default_rng(2)
    factors, wanted = [rng.random((n, r)) for n, r in zip((6, 5, 7), (2, 3, 2), strict=True)], rng.standard_normal(210)
    kron = np.kron(np.kron(factors[0], factors[1]), factors[2])
    solution = nnls(kron, wanted)[0]
    data = (kron.T @ wanted).reshape(2, 3, 2)
    found = solve_core(np.zeros((2, 3, 2)), data, [f.T @ f for f in factors], 5000)
    np.testing.assert_allclose(found.ravel(), solution, atol=1e-6)


def test_no_step_of_the_core_raises_the_objective() -> None:
    rng = np.random.default_rng(3)
    factors, core = [rng.random((20, r)) for r in (3, 4, 2)], rng.random((3, 4, 2))
    grams, data = [f.T @ f for f in factors], rng.standard_normal((3, 4, 2)) * 50

    def objective(point: np.ndarray) -> float:
        return float(np.vdot(point, times(point, grams)) / 2 - np.vdot(data, point))

    values = [objective(solve_core(core, data, grams, steps)) for steps in range(40)]
    assert np.diff(values).max() <= 1e-12 * abs(values[-1])
    assert values[-1] < values[0]


@pytest.mark.parametrize("precision", ["fp64", "fp32"])
@pytest.mark.parametrize("dense", [False, True])
def test_fits_never_fall(device: str, dense: bool, precision: Any) -> None:
    tensor, array = tensors(dense)
    model = amped.tucker(
        tensor, RANKS, nonnegative=True, init=start(), max_iters=40, tol=0, precision=precision, device=device
    )
    assert np.diff(model.fits).min() >= -(1e-12 if precision == "fp64" else 1e-6)
    assert min(model.core.min(), *(factor.min() for factor in model.host_factors)) >= 0
    for factor in model.host_factors:
        np.testing.assert_allclose(factor.sum(axis=0), 1, rtol=1e-5)
    assert 1 - relative_error(array, model) == pytest.approx(model.fits[-1], abs=1e-6)
    assert (model.run["method"], model.run["nonnegative"], model.run["norm"]) == ("hals", [0, 1, 2], 1)


def test_it_ends_at_a_stationary_point(device: str) -> None:
    """Where an entry is positive, the gradient is zero; elsewhere it is not negative."""
    tensor, array = tensors(True)
    model = amped.tucker(
        tensor, RANKS, nonnegative=True, init=start(), max_iters=300, tol=0, precision="fp64", device=device
    )
    factors, grams = model.host_factors, [f.T @ f for f in model.host_factors]
    for mode, factor in enumerate(factors):
        core = unfolded(model.core, mode)
        others = [np.eye(len(gram)) if m == mode else gram for m, gram in enumerate(grams)]
        gradient = factor @ (core @ unfolded(times(model.core, others), mode).T)
        gradient -= dense_ttmc(array, factors, mode) @ core.T
        scale = np.abs(dense_ttmc(array, factors, mode) @ core.T).max()
        assert np.abs(np.minimum(factor / factor.max(), gradient / scale)).max() < 1e-4


def test_plain_and_extrapolated_runs_end_at_the_same_fit() -> None:
    """Without extrapolation a run once ended after one iteration."""
    array = np.random.default_rng(0).random((8, 7, 6))
    runs = [amped.tucker(array, (2, 2, 2), nonnegative=True, accelerate=each, device="cpu") for each in (False, True)]
    assert all(run.converged and len(run.fits) > QUIET for run in runs)
    assert runs[0].fits[-1] == pytest.approx(runs[1].fits[-1], abs=1e-3)


def test_an_exact_tensor_is_found(device: str) -> None:
    array = planted(noise=0)
    fits = [
        amped.tucker(array, RANKS, nonnegative=True, seed=seed, max_iters=150, tol=0, device=device).fits[-1]
        for seed in range(2)
    ]
    assert max(fits) > 0.999


@pytest.mark.parametrize("nonnegative", [False, True])
@pytest.mark.parametrize("dense", [False, True])
@pytest.mark.parametrize("whole", [(0,), (1,), (2,), (0, 2)])
def test_modes_stay_uncompressed(device: str, whole: tuple[int, ...], dense: bool, nonnegative: bool) -> None:
    """The result is that of the identity as a fixed factor matrix."""
    tensor, array = tensors(dense)
    rank = tuple(None if mode in whole else RANKS[mode] for mode in range(3))
    how: dict[str, Any] = {"precision": "fp64", "device": device, "max_iters": 5, "tol": 0, "nonnegative": nonnegative}
    model = amped.tucker(tensor, rank, **how)
    for mode in whole:
        np.testing.assert_array_equal(model.host_factors[mode], np.eye(SHAPE[mode]))
    assert 1 - relative_error(array, model) == pytest.approx(model.fits[-1], abs=1e-10)
    assert model.run["uncompressed_modes"] == list(whole)
    drawn = start()
    same = [np.eye(SHAPE[m]) if m in whole else drawn[m] for m in range(3)]
    ranks = tuple(each.shape[1] for each in same)
    fixed = amped.tucker(tensor, ranks, init=same, fixed_modes=whole, **how)
    again = amped.tucker(tensor, rank, init=same, **how)
    np.testing.assert_allclose(again.fits, fixed.fits, atol=1e-12)


@pytest.mark.parametrize("method", ["hosvd", "sthosvd"])
@pytest.mark.parametrize("dense", [False, True])
def test_spectra_of_the_other_modes(dense: bool, method: str) -> None:
    tensor, array = tensors(dense)
    model = amped.tucker(tensor, (3, None, 4), method=method, precision="fp64", device="cpu")
    first = ttm(array, model.factors[2], 2) if dense and method == "sthosvd" else array
    basis = np.linalg.svd(unfolded(first, 0), full_matrices=False)[0][:, :3]
    np.testing.assert_allclose(model.factors[0] @ model.factors[0].T, basis @ basis.T, atol=1e-8)
    np.testing.assert_array_equal(model.factors[1], np.eye(9))


@pytest.mark.parametrize("dense", [False, True])
def test_fixed_matrices_of_any_columns(device: str, dense: bool) -> None:
    """They stay as they are; the others are those of the orthonormal basis of their columns."""
    tensor, array = tensors(dense)
    given = start()
    given[1] = np.random.default_rng(7).standard_normal((9, 2)) * [1, 50]
    how: dict[str, Any] = {"precision": "fp64", "device": device, "max_iters": 6, "tol": 0, "fixed_modes": (1,)}
    model = amped.tucker(tensor, RANKS, init=given, **how)
    np.testing.assert_array_equal(model.host_factors[1], given[1])
    assert 1 - relative_error(array, model) == pytest.approx(model.fits[-1], abs=1e-10)
    orthonormal = [given[0], np.linalg.qr(given[1])[0], given[2]]
    np.testing.assert_allclose(model.fits, amped.tucker(tensor, RANKS, init=orthonormal, **how).fits, atol=1e-10)
    assert np.diff(model.fits).min() >= -1e-12


def test_a_start_from_singular_vectors() -> None:
    """Their magnitudes replace them."""
    found = amped.tucker(planted(), RANKS, nonnegative=True, init="nvecs", device="cpu")
    assert all(factor.min() >= 0 for factor in found.factors)
    assert found.fits[-1] > 0.9


def test_fewer_columns_than_spectra_need() -> None:
    """HOOI with an error drops columns that HOSVD's ranks have to spare, and keeps the error."""
    array = planted(3)
    spectra = amped.tucker(array, error=0.02, method="hosvd", precision="fp64", device="cpu")
    model = amped.tucker(array, error=0.02, precision="fp64", device="cpu")
    assert relative_error(array, model) <= 0.02
    assert np.prod(model.ranks) < np.prod(spectra.ranks)
    assert model.run["rank"] == list(model.ranks)
    assert_orthonormal(model, 1e-12)


def test_new_rows_are_non_negative(device: str) -> None:
    array = planted()
    model = amped.tucker(array[:10], RANKS, nonnegative=True, precision="fp64", device=device)
    rows = model.transform(array[10:], 0, precision="fp64", device=device)
    assert rows.min() >= 0
    matrix = unfolded(np.einsum("abc,jb,kc->ajk", model.core, *model.host_factors[1:]), 0)
    from scipy.optimize import nnls

    for row, data in zip(rows, unfolded(array[10:], 0), strict=True):
        np.testing.assert_allclose(row, nnls(matrix.T, data)[0], atol=1e-6 * rows.max())


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ({"rank": (None, None, None)}, "no mode is left to solve"),
        ({"rank": (2, 2, 2), "fixed_modes": (1,)}, "the start is random"),
        ({"rank": (2, 2, 2), "fixed_modes": (3,)}, "there is no mode 3"),
        ({"rank": (2, None, 2), "fixed_modes": (1,), "init": [np.ones((12, 2))] * 3}, "stays uncompressed"),
        ({"rank": (2, 2, 2), "fixed_modes": (1,), "init": "nvecs"}, "the fixed matrices as init"),
        ({"rank": (2, 2, 2), "nonnegative": True, "method": "hosvd"}, "requires method 'hooi'"),
        ({"error": 0.1, "nonnegative": True}, "requires rank"),
        ({"rank": RANKS, "nonnegative": True, "init": [-each for each in start()]}, "negative entries"),
    ],
)
def test_wrong_arguments(arguments: dict[str, Any], message: str) -> None:
    with pytest.raises(InputError, match=message) as caught:
        amped.tucker(planted(), device="cpu", **arguments)
    assert "\n" not in str(caught.value)


def test_a_long_uncompressed_mode_is_refused() -> None:
    tensor = amped.SparseTensor([[0, 0, 0], [2000, 1, 1]], [1.0, 2.0], (2001, 2, 2))
    with pytest.raises(InputError, match=r"rank all,1,1: mode 0 has 2,001 indices; at most 1,024"):
        amped.tucker(tensor, (None, 1, 1), device="cpu")
