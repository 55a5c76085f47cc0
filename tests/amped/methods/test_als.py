"""CP-ALS and the Python interface, on one process."""

from __future__ import annotations

from collections.abc import Sequence
from itertools import product, starmap
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from forms import exhaustive, in_turn
from oracle import (
    PRECISIONS,
    assert_rounding_only,
    coo_mttkrp,
    dense_als,
    dense_mttkrp,
    make_operator,
    random_factors,
    small_pieces,
)
from tensors import write_store

import amped
from amped.backend.normal_equations.inverse import pseudo_inverse
from amped.errors import InputError
from amped.methods.als import CpAls
from amped.methods.driver import StopRule, iterate
from amped.methods.updates import LeastSquares
from amped.parallel.mpi import Comm

SHAPES = [(9, 7), (6, 5, 7), (4, 6, 5, 3), (3, 4, 3, 4, 3), (3, 3, 4, 3, 3, 3)]


def sparse(dense: np.ndarray) -> amped.SparseTensor:
    return amped.SparseTensor(np.argwhere(dense), dense[dense != 0], dense.shape)


def random_dense(seed: int, shape: Sequence[int], density: float = 0.4) -> np.ndarray:
    rng = np.random.default_rng(seed)
    return np.where(rng.random(shape) < density, rng.standard_normal(shape) + 0.5, 0)


DENSE = random_dense(1, (12, 9, 10))
TENSOR = sparse(DENSE)


# The algorithm


@pytest.mark.parametrize(
    ("shape", "precision"),
    [
        case if case in ((SHAPES[0], "fp32"), (SHAPES[1], "fp32"), (SHAPES[1], "fp64")) else exhaustive(*case)
        for case in product(SHAPES, PRECISIONS)
    ],
)
def test_the_same_path_as_a_dense_oracle(device: str, shape: tuple[int, ...], precision: str) -> None:
    dense, start = random_dense(len(shape), shape), random_factors(0, shape, 3)
    model = amped.cp_als(sparse(dense), 3, init=start, tol=0, max_iters=6, device=device, precision=precision)
    full, fits = dense_als(dense, start, 6)
    accuracy = {"fp32": 1e-5, "fp64": 1e-10}[precision]
    np.testing.assert_allclose(model.fits, fits, rtol=0, atol=accuracy)
    np.testing.assert_allclose(model.full(), full, rtol=0, atol=100 * accuracy * abs(full).max())


@pytest.mark.parametrize(
    ("rank", "precision"), [(130, "fp64"), *starmap(exhaustive, [(130, "fp32"), (200, "fp32"), (200, "fp64")])]
)
def test_many_columns_take_the_same_path(device: str, rank: int, precision: str) -> None:
    dense, start = random_dense(4, (25, 24, 23)), random_factors(0, (25, 24, 23), rank)
    model = amped.cp_als(sparse(dense), rank, init=start, tol=0, max_iters=4, device=device, precision=precision)
    full, fits = dense_als(dense, start, 4)
    accuracy = {"fp32": 1e-5, "fp64": 1e-10}[precision]
    np.testing.assert_allclose(model.fits, fits, rtol=0, atol=accuracy)
    np.testing.assert_allclose(model.full(), full, rtol=0, atol=100 * accuracy * abs(full).max())


@pytest.mark.parametrize("precision", [exhaustive("fp32"), "fp64"])
def test_many_columns_that_depend_on_each_other(device: str, precision: str) -> None:
    """Of a matrix all is found, and its equations are singular."""
    dense = random_dense(4, (90, 80, 1))
    model = amped.cp_als(sparse(dense), 130, tol=0, max_iters=4, device=device, precision=precision)
    np.testing.assert_allclose(model.fits, 1, atol=2e-6)
    np.testing.assert_allclose(model.full(), dense, rtol=0, atol=1e-4)


@pytest.mark.parametrize(("rank", "precision"), in_turn([1, 4, 16]))
def test_the_model_is_arranged_and_its_fit_is_the_one_reported(device: str, precision: str, rank: int) -> None:
    model = amped.cp_als(TENSOR, rank, max_iters=20, device=device, precision=precision)
    assert (model.rank, model.shape) == (rank, DENSE.shape)
    assert np.all(np.diff(model.weights) <= 0)
    accuracy = {"fp32": 2e-6, "fp64": 1e-12}[precision]
    for factor in model.factors:
        assert factor.dtype == {"fp32": np.float32, "fp64": np.float64}[precision]
        np.testing.assert_allclose(np.linalg.norm(factor.astype(float), axis=0), 1, atol=accuracy)
    fit = 1 - np.linalg.norm(DENSE - model.full()) / np.linalg.norm(DENSE)
    assert model.fits[-1] == pytest.approx(fit, abs=10 * accuracy)


def test_columns_far_from_their_norms_are_solved_again(
    comm: Comm, device: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Norms grow by orders of magnitude in an iteration; products of columns must not overflow."""
    solved: list[int] = []
    finish = LeastSquares._finish
    monkeypatch.setattr(LeastSquares, "_finish", lambda self, *at: solved.append(at[0]) or finish(self, *at))
    rng = np.random.default_rng(0)
    shape = (4, 5, 6)
    dense = 1e9 * (1 + 1e-3 * rng.random(shape))
    tensor = amped.SparseTensor(np.argwhere(dense), dense[dense != 0], shape)
    start = [1 + 1e-4 * rng.random((n, 3)) for n in shape]
    operator = make_operator(tensor, start, comm, device=device, precision="fp32")
    for state in iterate(CpAls(operator), StopRule(8, 0)):
        scales = state.arrays["scales"]
        assert np.all((scales > 1 / 1024) & (scales < 1024))  # their product is below 2**20 at order 3
        assert state.series["fit"][-1] > 0.999
    assert len(solved) > 8 * operator.order, "some are solved again"


def test_what_is_no_number_is_no_fit(comm: Comm, device: str) -> None:
    operator = make_operator(TENSOR, random_factors(5, DENSE.shape, 3), comm, device=device)
    iterations = iterate(CpAls(operator), StopRule(5, 0))
    next(iterations)
    operator.work.factors[1][0, 0] = np.nan
    with pytest.raises(ArithmeticError, match="finite"):
        next(iterations)


def test_columns_are_normalised_as_kolda_and_bader_do(comm: Comm, device: str) -> None:
    operator = make_operator(TENSOR, random_factors(5, DENSE.shape, 3), comm, device=device, precision="fp64")
    method = CpAls(operator)
    for iteration, state in enumerate(iterate(method, StopRule(5, 0))):
        for mode in range(3):
            factor = method.factor(mode) * state.arrays["scales"][mode]
            if iteration == 0:
                np.testing.assert_allclose(np.linalg.norm(factor, axis=0), 1, atol=1e-12)
            else:
                assert np.all(abs(factor).max(axis=0) <= 1 + 1e-12)
        assert iteration == 0 or np.all(state.arrays["weights"] >= 1)


@pytest.mark.parametrize(
    ("rank", "precision"), [(2, "fp32"), (16, "fp64"), exhaustive(12, "fp64"), exhaustive(40, "fp32")]
)
def test_fits_never_fall(device: str, precision: str, rank: int) -> None:
    fits = amped.cp_als(TENSOR, rank, tol=0, max_iters=30, device=device, precision=precision).fits
    assert np.all(np.diff(fits) >= {"fp32": -1e-5, "fp64": -1e-11}[precision])
    assert fits[-1] <= 1


@pytest.mark.parametrize("precision", [exhaustive("fp32"), "fp64"])
def test_a_tensor_of_low_rank_is_found(device: str, precision: str) -> None:
    factors = [f + np.eye(*f.shape) for f in random_factors(4, (9, 8, 7), 2)]
    dense = np.einsum("ar,br,cr->abc", *factors)
    model = amped.cp_als(sparse(dense), 2, tol=0, max_iters=300, device=device, precision=precision)
    assert model.fits[-1] > 1 - {"fp32": 1e-3, "fp64": 1e-6}[precision]


def test_order_2_is_the_singular_value_decomposition(device: str) -> None:
    dense = random_dense(2, (20, 15)) + np.outer(np.arange(20), np.arange(15)) / 30
    singular = np.linalg.svd(dense, compute_uv=False)
    for rank in (1, 2):
        model = amped.cp_als(sparse(dense), rank, tol=0, max_iters=200, device=device, precision="fp64")
        assert model.fits[-1] == pytest.approx(1 - np.linalg.norm(singular[rank:]) / np.linalg.norm(singular), abs=1e-9)


def test_matrix_multiplication_has_no_rank_six(device: str) -> None:
    indices = [[2 * i + k, 2 * k + j, i + 2 * j] for i in (0, 1) for j in (0, 1) for k in (0, 1)]
    product = amped.SparseTensor(indices, np.ones(8))
    best = 1 - 1 / np.sqrt(8)
    fits = [amped.cp_als(product, 6, seed=s, tol=0, max_iters=100, device=device).fits[-1] for s in range(5)]
    assert max(fits) <= best + 1e-5


# Edges


@pytest.mark.parametrize("precision", ["fp32", exhaustive("fp64")])
@pytest.mark.parametrize("shape", [(2, 2, 2), (3, 1, 4), (1, 1, 5), exhaustive((1, 1)), exhaustive((5, 1))])
def test_more_components_than_rows(device: str, precision: str, shape: tuple[int, ...]) -> None:
    dense = random_dense(3, shape, density=1)
    model = amped.cp_als(sparse(dense), 7, tol=0, max_iters=10, device=device, precision=precision)
    assert all(np.all(np.isfinite(f)) for f in (model.weights, *model.factors))
    assert np.all(np.isfinite(model.fits))
    assert np.linalg.norm(dense - model.full()) <= 0.02 * np.linalg.norm(dense), "seven components are enough"


@pytest.mark.parametrize("precision", PRECISIONS)
def test_equal_components_stay_equal(device: str, precision: str) -> None:
    start = [np.repeat(f, 2, axis=1) for f in random_factors(5, DENSE.shape, 2)]
    model = amped.cp_als(TENSOR, 4, init=start, tol=0, max_iters=8, device=device, precision=precision)
    single = amped.cp_als(
        TENSOR, 2, init=[f[:, ::2] for f in start], tol=0, max_iters=8, device=device, precision="fp64"
    )
    np.testing.assert_allclose(model.fits, single.fits, atol={"fp32": 1e-4, "fp64": 1e-9}[precision])
    assert np.all(np.isfinite(model.full()))


def test_a_component_that_is_zero_from_the_start(device: str) -> None:
    start = random_factors(5, DENSE.shape, 3)
    for factor in start:
        factor[:, 1] = 0
    model = amped.cp_als(TENSOR, 3, init=start, tol=0, max_iters=5, device=device)
    other = amped.cp_als(TENSOR, 2, init=[f[:, ::2] for f in start], tol=0, max_iters=5, device=device)
    np.testing.assert_allclose(model.fits, other.fits, atol=1e-5)
    assert model.weights[2] * np.linalg.norm(model.factors[0][:, 2]) == 0


@pytest.mark.parametrize("precision", PRECISIONS)
def test_empty_rows_are_zero(device: str, precision: str) -> None:
    dense = DENSE.copy()
    dense[[0, 5, 11]] = dense[:, [3, 8]] = dense[:, :, [0, 9]] = 0
    longer = amped.SparseTensor(*(lambda t: (t.indices, t.values))(sparse(dense)), (12, 9, 5000))
    model = amped.cp_als(longer, 4, max_iters=7, device=device, precision=precision)
    for factor, axes in zip(model.factors, ((1, 2), (0, 2), (0, 1)), strict=True):
        used = np.flatnonzero(dense.any(axis=axes))
        empty = np.setdiff1d(np.arange(len(factor)), used)
        assert np.all(factor[empty] == 0)
        assert np.all(factor[used].any(axis=1))


def test_a_single_nonzero(device: str) -> None:
    model = amped.cp_als(amped.SparseTensor([[2, 0, 1]], [-3.0]), 1, device=device)
    assert model.fits[-1] == pytest.approx(1, abs=1e-6)
    assert model.full()[2, 0, 1] == pytest.approx(-3, rel=1e-6)
    assert np.count_nonzero(model.full()) == 1


@pytest.mark.parametrize(("scale", "precision"), [(1e-20, "fp32"), (1e20, "fp32"), (1e-60, "fp64"), (1e60, "fp64")])
def test_fits_do_not_depend_on_the_unit(device: str, scale: float, precision: str) -> None:
    scaled = amped.SparseTensor(TENSOR.indices, TENSOR.values * scale, DENSE.shape)
    options: dict[str, Any] = {"tol": 0, "max_iters": 8, "device": device, "precision": precision}
    fits = amped.cp_als(scaled, 3, **options).fits
    np.testing.assert_allclose(fits, amped.cp_als(TENSOR, 3, **options).fits, atol=1e-4)


def test_values_beyond_single_precision_are_refused_or_right() -> None:
    huge = amped.SparseTensor(TENSOR.indices, TENSOR.values * 1e300, DENSE.shape)
    try:
        fits = amped.cp_als(huge, 3, tol=0, max_iters=3, device="cpu", precision="fp32").fits
    except InputError:
        return
    np.testing.assert_allclose(fits, amped.cp_als(TENSOR, 3, tol=0, max_iters=3, device="cpu").fits, atol=1e-4)


@pytest.mark.parametrize("precision", ["fp32", exhaustive("fp64")])
def test_columns_that_become_equal_do_not_spoil_a_fit(precision: str, device: str) -> None:
    """Small eigenvalues of the Gram matrices are what rounding left of zero."""
    dense = np.ones((17, 24, 3))
    for tensor in (dense, amped.SparseTensor(np.argwhere(dense), dense[dense > 0], dense.shape)):
        for seed in range(12):
            model = amped.cp_als(tensor, 2, seed=seed, tol=0, max_iters=20, precision=precision, device=device)
            assert min(model.fits[2:]) > 1 - 1e-6, seed


def test_fits_do_not_fall_with_more_components_than_there_are(device: str) -> None:
    rng = np.random.default_rng(7)
    left, right = (rng.standard_normal((24, 3)) for _ in range(2))
    matrix = left @ right.T + 1e-6 * rng.standard_normal((24, 24))
    model = amped.cp_als(matrix, 8, tol=0, max_iters=50, precision="fp64", device=device)
    assert np.diff(model.fits).min() > -1e-8
    assert 1e-8 < 1 - model.fits[-1] < 1e-6, "noise of 1e-6"


@pytest.mark.parametrize("eigenvalues", [[3, 2, 1], [5, 1, 0], [1, 1e-3, 1e-25], [0, 0, 0], [1e-60, 1e-61, 0]])
def test_pseudo_inverse(eigenvalues: list[float]) -> None:
    basis = np.linalg.qr(np.random.default_rng(0).random((3, 3)))[0]
    gram = basis @ np.diag(eigenvalues) @ basis.T
    cutoff = 3 * np.finfo(float).eps * max(eigenvalues)
    expected = basis @ np.diag([1 / e if e > cutoff else 0.0 for e in eigenvalues]) @ basis.T
    np.testing.assert_allclose(
        pseudo_inverse(gram, 3 * np.finfo(float).eps)[0], expected, rtol=1e-8, atol=1e-9 * abs(expected).max()
    )


# When it stops


@pytest.mark.filterwarnings("ignore:the fit, .*, is below 10 times tol:UserWarning")
def test_tolerance_and_iterations(device: str) -> None:
    options: dict[str, Any] = {"device": device, "precision": "fp64", "deterministic": True}
    seen: list[tuple[int, float]] = []
    whole = amped.cp_als(TENSOR, 3, tol=0, max_iters=40, callback=lambda *at: seen.append(at), **options)
    assert len(whole.fits) == 40
    assert not whole.converged
    assert seen == list(enumerate(whole.fits, start=1))
    changes = np.abs(np.diff(whole.fits))
    for tol in (1e-2, 1e-3, 1e-4):
        stop = int(np.argmax(changes < tol)) + 2
        assert 2 <= stop < 40
        model = amped.cp_als(TENSOR, 3, tol=tol, max_iters=40, **options)
        assert model.fits == whole.fits[:stop]
        assert model.converged
        shorter = amped.cp_als(TENSOR, 3, tol=tol, max_iters=stop - 1, **options)
        assert shorter.fits == whole.fits[: stop - 1]
        assert not shorter.converged


def test_zero_tolerance_goes_on_where_nothing_changes(device: str) -> None:
    model = amped.cp_als(amped.SparseTensor([[0, 0, 0]], [2.0]), 1, tol=0, max_iters=12, device=device)
    assert len(model.fits) == 12
    assert not model.converged


def test_one_iteration(device: str) -> None:
    model = amped.cp_als(TENSOR, 3, max_iters=1, tol=1e9, device=device)
    assert len(model.fits) == 1
    assert not model.converged


# Reproducibility


@pytest.mark.parametrize("precision", PRECISIONS)
def test_the_same_seed_gives_the_same_bits(device: str, precision: str) -> None:
    def run(seed: int) -> amped.KruskalTensor:
        return amped.cp_als(
            TENSOR, 5, seed=seed, max_iters=6, tol=0, device=device, precision=precision, deterministic=True
        )

    first, again, other = run(1), run(1), run(2)
    assert first.fits == again.fits != other.fits
    for a, b in zip(first.factors, again.factors, strict=True):
        assert a.tobytes() == b.tobytes()


def test_placements_take_the_same_path(device: str) -> None:
    resident = amped.cp_als(TENSOR, 4, tol=0, max_iters=5, device=device, precision="fp64", placement="resident")
    with small_pieces(20):
        streamed = amped.cp_als(TENSOR, 4, tol=0, max_iters=5, device=device, precision="fp64", placement="stream")
    np.testing.assert_allclose(streamed.fits, resident.fits, atol=1e-12)


# The interface


@pytest.fixture(params=["tensor", "tns", "npz", "store"])
def given_tensor(request: pytest.FixtureRequest, tmp_path: Path) -> amped.SparseTensor | Path:
    """The same tensor in each of the ways in which it may be given."""
    path = tmp_path / f"tensor.{request.param}"
    if request.param == "tensor":
        return TENSOR
    if request.param == "tns":
        rows = zip(TENSOR.indices + 1, TENSOR.values, strict=True)
        path.write_text("".join(f"{' '.join(map(str, row))} {float(value)!r}\n" for row, value in rows))
    elif request.param == "npz":
        np.savez(path, indices=TENSOR.indices, values=TENSOR.values, shape=TENSOR.shape)
    else:
        write_store(TENSOR, path)
    return path


def test_cp_als_of_all_kinds_of_input(given_tensor: Any) -> None:
    options: dict[str, Any] = {"tol": 0, "max_iters": 4, "device": "cpu", "precision": "fp64", "deterministic": True}
    model = amped.cp_als(given_tensor, 3, **options)
    assert model.fits == amped.cp_als(TENSOR, 3, **options).fits
    nvecs = amped.cp_als(given_tensor, 3, init="nvecs", **options)
    np.testing.assert_allclose(nvecs.fits, amped.cp_als(TENSOR, 3, init="nvecs", **options).fits, atol=1e-12)


@pytest.mark.parametrize("precision", PRECISIONS)
def test_mttkrp_of_all_kinds_of_input(given_tensor: Any, precision: str) -> None:
    factors = random_factors(6, DENSE.shape, 5)
    positive = abs(DENSE)
    for mode in range(3):
        result = amped.mttkrp(given_tensor, factors, mode, device="cpu", precision="fp64")
        np.testing.assert_allclose(result, dense_mttkrp(DENSE, factors, mode), rtol=1e-10, atol=1e-10)
        result = amped.mttkrp(sparse(positive), factors, mode, device="cpu", precision=precision)
        assert result.dtype == {"fp32": np.float32, "fp64": np.float64}[precision]
        assert_rounding_only(result, dense_mttkrp(positive, factors, mode), precision)


def test_mttkrp_takes_unsorted_nonzeros_with_duplicates(device: str) -> None:
    rng = np.random.default_rng(8)
    columns, values = rng.integers(0, 6, (4, 500)), rng.random(500)
    factors = random_factors(8, (6, 6, 6, 6), 7)
    tensor = amped.SparseTensor(columns.T, values)
    assert tensor.duplicates > 0
    for mode in range(4):
        result = amped.mttkrp(tensor, [f.tolist() for f in factors], mode, device=device, precision="fp64")
        assert_rounding_only(result, coo_mttkrp(columns, values, factors, mode), "fp64")


@pytest.mark.parametrize(
    ("arguments", "cause"),
    [
        ({"rank": 0}, "rank 0"),
        ({"rank": -3}, "rank -3"),
        ({"rank": 1025}, "rank 1025"),
        ({"max_iters": 0}, "max_iters 0"),
        ({"tol": -1e-3}, "tol -0.001"),
        ({"tol": float("nan")}, "tol nan"),
        ({"seed": -1}, "seed -1"),
        ({"init": random_factors(0, (12, 9, 10), 4)}, "factor_0"),
        ({"init": random_factors(0, (12, 9), 3)}, "2 factor matrices"),
        ({"init": "no/such/start.npz"}, "no/such/start.npz: No such file"),
        ({"precision": "double"}, "precision 'double'"),
        ({"X": None}, "no tensor"),
        ({"X": "no/such/tensor.tns"}, "no/such/tensor.tns: [Nn]o such file"),
    ],
)
def test_wrong_arguments_of_cp_als(arguments: dict[str, Any], cause: str) -> None:
    with pytest.raises(InputError, match=cause):
        amped.cp_als(**{"X": TENSOR, "rank": 3, "device": "cpu", **arguments})


@pytest.mark.parametrize(
    ("factors", "mode", "cause"),
    [
        (random_factors(0, (12, 9, 10), 2), 3, "mode 3"),
        (random_factors(0, (12, 9, 10), 2), -1, "mode -1"),
        (random_factors(0, (12, 9), 2), 0, "2 factor matrices"),
        (random_factors(0, (12, 9, 11), 2), 0, "factor_2"),
        ([np.ones((12, 2)), np.ones((9, 3)), np.ones((10, 2))], 0, "factor_2"),
        ([np.ones((12, 3)), np.ones(9), np.ones((10, 3))], 0, "factor_1"),
        ([np.ones(12), np.ones(9), np.ones(10)], 0, "factor_1 is of shape"),
        ([], 0, "0 factor matrices"),
        ([np.ones((12, 2)), np.full((9, 2), np.inf), np.ones((10, 2))], 0, "not finite"),
    ],
)
def test_wrong_arguments_of_mttkrp(factors: Any, mode: int, cause: str) -> None:
    with pytest.raises(InputError, match=cause):
        amped.mttkrp(TENSOR, factors, mode, device="cpu")


def test_the_matrix_of_the_mode_is_not_looked_at() -> None:
    others = random_factors(0, (9, 10), 3)
    for ignored in (np.ones((12, 7)), np.full((12, 3), np.nan), np.ones(1), None):
        got = amped.mttkrp(TENSOR, [ignored, *others], 0, device="cpu", precision="fp64")
        assert np.array_equal(got, amped.mttkrp(TENSOR, [np.ones((12, 3)), *others], 0, device="cpu", precision="fp64"))


def test_the_factor_of_the_mode_itself_is_not_looked_at() -> None:
    factors: list[Any] = random_factors(0, (12, 9, 10), 2)
    whole = amped.mttkrp(TENSOR, factors, 1, device="cpu")
    factors[1] = None
    assert np.array_equal(amped.mttkrp(TENSOR, factors, 1, device="cpu"), whole)


def test_the_scale_of_a_component_that_vanishes_does_not(comm: Comm) -> None:
    """It fell by as much again in each mode, until it was 0 and the column no number."""
    tensor = amped.SparseTensor([[0, 0, 0], [1, 1, 1]], [1.0, 1e-40])
    operator = make_operator(tensor, [np.eye(2)] * 3, comm, device="cpu", precision="fp64")
    method = CpAls(operator)
    for _ in iterate(method, StopRule(4, 0)):
        assert method.state.arrays["scales"].min() > 0.1
    assert method.state.series["fit"][-1] == pytest.approx(1)
