"""Constrained CP-ALS on one process: non-negative, with a ridge, with fixed modes."""

from __future__ import annotations

from collections.abc import Sequence
from itertools import product
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from constrained import dense_constrained_als, signed_tensor
from forms import exhaustive, in_turn
from oracle import PRECISIONS, load, make_operator, random_factors, small_pieces, true_fit

import amped
from amped.methods.als import CpAls
from amped.methods.constraints import ConstraintParams
from amped.methods.driver import MethodState, StopRule, iterate
from amped.parallel.mpi import Comm

SHAPES = [(9, 7), (6, 1, 7), (6, 5, 7), (4, 6, 5, 3), (3, 4, 3, 4, 3), (3, 3, 4, 3, 3, 3)]
ACCURACY = {"fp32": 2e-6, "fp64": 1e-11}
KINDS: dict[str, dict[str, Any]] = {
    "all": {"nonnegative": True},
    "one": {"nonnegative": (1,)},
    "ridge": {"ridge": 0.7},
    "ridges": {"ridge": (0.7, 0.0)},
    "both": {"nonnegative": (0,), "ridge": 0.3},
    "fixed": {"fixed_modes": (1,)},
    "all but one": {"nonnegative": True, "fixed_modes": (1,), "ridge": 0.2},
    "the first": {"nonnegative": True, "fixed_modes": (0,)},
}
DENSE, TENSOR = signed_tensor(1, (12, 9, 10))


def kind_of(name: str, order: int) -> tuple[dict[str, Any], dict[str, Any]]:
    """Return arguments of `cp_als`, and the oracle's."""
    how = dict(KINDS[name])
    if isinstance(how.get("ridge"), tuple):
        how["ridge"] = tuple(how["ridge"][mode % 2] for mode in range(order))
    found = ConstraintParams(**how).of(order)
    return how, {"nonnegative": found.nonnegative, "ridge": list(found.ridge), "fixed": found.fixed}


def states(
    tensor: amped.SparseTensor, start: Sequence[np.ndarray], comm: Comm, count: int, **how: Any
) -> list[MethodState]:
    """Return the states after iterations."""
    options = {name: how.pop(name) for name in ("device", "precision") if name in how}
    operator = make_operator(tensor, start, comm, **options)
    method = CpAls(operator, ConstraintParams(**how).of(operator.order))
    return [state.copy() for state in iterate(method, StopRule(count, 0))]


# The algorithm


@pytest.mark.parametrize(
    ("shape", "precision"),
    [
        case if case in ((SHAPES[0], "fp64"), (SHAPES[1], "fp32"), (SHAPES[2], "fp64")) else exhaustive(*case)
        for case in product(SHAPES, PRECISIONS)
    ],
)
@pytest.mark.parametrize("name", KINDS)
def test_the_same_path_as_a_dense_oracle(device: str, shape: tuple[int, ...], precision: str, name: str) -> None:
    if len(shape) == 2 and "fixed_modes" in KINDS[name]:
        pytest.skip("a single solved mode converges at once")
    dense, tensor = signed_tensor(len(shape), shape)
    start, (how, oracle) = random_factors(0, shape, 3), kind_of(name, len(shape))
    model = amped.cp_als(tensor, 3, init=start, tol=0, max_iters=6, device=device, precision=precision, **how)
    want = dense_constrained_als(dense, start, 6, **oracle)
    accuracy = {"fp32": 2e-5, "fp64": 1e-10}[precision]
    np.testing.assert_allclose(model.fits, want.fits, rtol=0, atol=accuracy)
    np.testing.assert_allclose(model.full(), want.full, rtol=0, atol=100 * accuracy * abs(want.full).max())


@pytest.mark.parametrize("precision", [exhaustive("fp32"), "fp64"])
@pytest.mark.parametrize("name", ["one", "ridges"])
def test_many_columns_take_the_same_path(device: str, precision: str, name: str) -> None:
    shape = (18, 17, 16)
    dense, tensor = signed_tensor(5, shape)
    start, (how, oracle) = random_factors(0, shape, 130), kind_of(name, 3)
    model = amped.cp_als(tensor, 130, init=start, tol=0, max_iters=2, device=device, precision=precision, **how)
    want = dense_constrained_als(dense, start, 2, **oracle)
    accuracy = {"fp32": 2e-5, "fp64": 1e-10}[precision]
    np.testing.assert_allclose(model.fits, want.fits, rtol=0, atol=accuracy)
    np.testing.assert_allclose(model.full(), want.full, rtol=0, atol=100 * accuracy * abs(want.full).max())


@pytest.mark.parametrize(
    ("rank", "precision"),
    [
        case if case in ((7, "fp32"), (16, "fp64")) else exhaustive(*case)
        for case in product([1, 7, 16, 33, 64], PRECISIONS)
    ],
)
def test_ranks_up_to_many_times_the_lengths_of_modes(device: str, rank: int, precision: str) -> None:
    start = random_factors(3, DENSE.shape, rank)
    options: dict[str, Any] = {"init": start, "tol": 0, "device": device, "precision": precision}
    model = amped.cp_als(TENSOR, rank, max_iters=3, nonnegative=True, **options)
    want = dense_constrained_als(DENSE, start, 3, (0, 1, 2))
    np.testing.assert_allclose(model.fits, want.fits, rtol=0, atol={"fp32": 2e-5, "fp64": 1e-10}[precision])
    fits = amped.cp_als(TENSOR, rank, max_iters=40, nonnegative=True, **options).fits
    assert np.all(np.diff(fits) >= -ACCURACY[precision])
    assert np.all(np.isfinite(fits))


@pytest.mark.parametrize(("ridge", "precision"), in_turn([1e-3, 0.5, 30.0]))
@pytest.mark.parametrize("nonnegative", [False, True, (1,)])
def test_the_objective_never_rises(
    comm: Comm, device: str, precision: str, ridge: float, nonnegative: bool | tuple[int, ...]
) -> None:
    start, how = random_factors(2, DENSE.shape, 4), {"nonnegative": nonnegative, "ridge": ridge}
    found = states(TENSOR, start, comm, 60, device=device, precision=precision, **how)
    objectives = np.array(found[-1].series["objective"])
    assert np.all(np.diff(objectives) <= ACCURACY[precision])
    assert objectives[-1] < objectives[0]
    modes = ConstraintParams(nonnegative, ridge).of(3).nonnegative
    want = dense_constrained_als(DENSE, start, 3, modes, [ridge] * 3).objectives
    np.testing.assert_allclose(objectives[:3], want[2::3], atol={"fp32": 1e-5, "fp64": 1e-11}[precision])
    assert np.all(np.diff(want) <= 1e-12), "not in any solve"


def test_a_state_without_a_common_ridge_has_no_objective(comm: Comm) -> None:
    start = random_factors(2, DENSE.shape, 3)
    for how, there in (
        ({}, False), ({"nonnegative": True}, False), ({"ridge": (1, 1, 2)}, False), ({"ridge": (1, 1, 1)}, True),
        ({"ridge": (1, 2, 1), "fixed_modes": (1,)}, True),
    ):  # fmt: skip
        [state] = states(TENSOR, start, comm, 1, device="cpu", **how)
        assert ("objective" in state.series) == there


@pytest.mark.parametrize("precision", PRECISIONS)
def test_a_non_negative_model(device: str, precision: str) -> None:
    model = amped.cp_als(TENSOR, 4, max_iters=30, tol=0, nonnegative=True, device=device, precision=precision)
    assert np.all(np.diff(model.weights) <= 0)
    assert all(factor.min() >= 0 for factor in model.factors)
    assert any((factor == 0).any() for factor in model.factors), "a constraint that counts"
    for factor in model.factors:
        np.testing.assert_allclose(factor.astype(float).sum(axis=0), 1, atol=ACCURACY[precision])
    assert model.fits[-1] == pytest.approx(true_fit(TENSOR, model), abs=ACCURACY[precision])
    plain = amped.cp_als(TENSOR, 4, max_iters=30, tol=0, device=device, precision=precision)
    assert min(factor.min() for factor in plain.factors) < 0
    assert plain.fits[-1] > model.fits[-1]


def test_a_non_negative_tensor_of_low_rank_is_found(device: str) -> None:
    factors = [f * (f > 0.4) + np.eye(*f.shape) for f in random_factors(4, (9, 8, 7), 2)]
    dense = np.einsum("ar,br,cr->abc", *factors)
    tensor = amped.SparseTensor(np.argwhere(dense), dense[dense != 0], dense.shape)
    model = amped.cp_als(tensor, 2, tol=0, max_iters=200, nonnegative=True, device=device, precision="fp64")
    assert model.fits[-1] > 1 - 1e-6
    wanted = amped.KruskalTensor(np.ones(2), factors).arranged(norm=1)
    for found, want in zip(model.factors, wanted.factors, strict=True):
        np.testing.assert_allclose(found, want, atol=1e-5)


@pytest.mark.parametrize(("name", "rank"), [("nations_3d", 16), ("kinships_3d", 10), ("aminoacid_3d", 3)])
def test_fits_of_real_tensors_never_fall(device: str, name: str, rank: int) -> None:
    tensor = load(name)
    dense = np.zeros(tensor.shape)
    dense[tuple(tensor.columns)] = tensor.values
    start = random_factors(1, tensor.shape, rank)
    options: dict[str, Any] = {"init": start, "tol": 0, "max_iters": 30, "device": device, "nonnegative": True}
    want = dense_constrained_als(dense, start, 30, range(3)).fits
    for precision in PRECISIONS:
        fits = amped.cp_als(tensor, rank, precision=precision, **options).fits
        assert np.all(np.diff(fits) >= -ACCURACY[precision])
        np.testing.assert_allclose(fits, want, atol={"fp32": 1e-5, "fp64": 1e-9}[precision])


# Ridges


def test_a_ridge_shortens_components_and_keeps_degenerate_ones_apart(device: str) -> None:
    lengths = [
        np.linalg.norm(amped.cp_als(TENSOR, 5, ridge=ridge, tol=0, device=device, precision="fp64").weights)
        for ridge in (0.0, 0.1, 1.0, 10.0, 1e4)
    ]
    assert np.all(np.diff(lengths) < 0)
    assert lengths[-1] < 1e-2 * lengths[0]


def test_a_ridge_of_zero_is_none(comm: Comm, device: str) -> None:
    models = [amped.cp_als(TENSOR, 3, max_iters=4, device=device, **how) for how in ({}, {"ridge": (0, 0, 0)})]
    assert models[0].fits == models[1].fits
    assert not ConstraintParams(ridge=(0.0, 0.0)).of(2)


@pytest.mark.parametrize("ridge", [1e-300, 1e30, 1e300])
@pytest.mark.parametrize("nonnegative", [False, True])
def test_a_ridge_of_any_size_gives_numbers(device: str, ridge: float, nonnegative: bool) -> None:
    model = amped.cp_als(TENSOR, 3, max_iters=5, tol=0, ridge=ridge, nonnegative=nonnegative, device=device)
    assert np.all(np.isfinite(model.full()))
    assert np.all(np.isfinite(model.fits))


# Fixed modes


@pytest.mark.parametrize("precision", PRECISIONS)
@pytest.mark.parametrize("fixed", [(0,), (2,), (0, 2), (1, 2)])
@pytest.mark.parametrize("nonnegative", [False, True])
def test_fixed_modes_keep_their_directions(
    device: str, precision: str, fixed: tuple[int, ...], nonnegative: bool
) -> None:
    start = [100 * f for f in random_factors(7, DENSE.shape, 4)]
    how: dict[str, Any] = {"fixed_modes": fixed, "nonnegative": nonnegative, "device": device, "precision": precision}
    model = amped.cp_als(TENSOR, 4, init=start, max_iters=10, tol=0, **how)
    norm = 1 if nonnegative else 2
    for mode in range(3):
        given = {tuple(np.round(c / np.linalg.norm(c, norm), 5)) for c in start[mode].T}
        found = {tuple(np.round(c, 5)) for c in model.factors[mode].T.astype(float)}
        assert (given == found) == (mode in fixed)
    assert model.fits[-1] == pytest.approx(true_fit(TENSOR, model), abs=ACCURACY[precision])


def test_one_mode_alone_is_a_projection(device: str) -> None:
    start = random_factors(8, DENSE.shape, 4)
    how: dict[str, Any] = {"fixed_modes": (0, 2), "init": start, "device": device, "precision": "fp64"}
    model = amped.cp_als(TENSOR, 4, **how)
    assert len(model.fits) == 2
    assert model.converged
    design = np.einsum("ar,cr->acr", start[0], start[2]).reshape(-1, 4)
    best = np.linalg.lstsq(design, DENSE.transpose(0, 2, 1).reshape(-1, 9), rcond=None)[0]
    full = (design @ best).reshape(12, 10, 9).transpose(0, 2, 1)
    np.testing.assert_allclose(model.full(), full, atol=1e-10)


# Edges


@pytest.mark.parametrize("nonnegative", [True, (0, 2)])
@pytest.mark.parametrize("precision", PRECISIONS)
def test_one_nonzero(device: str, nonnegative: Any, precision: str) -> None:
    tensor = amped.SparseTensor([[3, 0, 4]], [2.5], (5, 1, 6))
    model = amped.cp_als(tensor, 3, nonnegative=nonnegative, device=device, precision=precision)
    assert model.fits[-1] == pytest.approx(1, abs=1e-6)
    np.testing.assert_allclose(model.full()[3, 0, 4], 2.5, rtol=1e-5)


def test_all_values_negative(device: str) -> None:
    """Zeros are the optimum."""
    tensor = amped.SparseTensor(np.argwhere(np.ones((4, 5, 6))), -np.ones(120), (4, 5, 6))
    with pytest.warns(UserWarning, match="is below 10 times tol"):
        model = amped.cp_als(tensor, 3, nonnegative=True, device=device)
    assert np.all(np.isfinite(model.fits))
    assert model.fits[-1] == pytest.approx(0, abs=1e-6)
    assert np.all(model.full() == 0)
    assert all(np.all(np.isfinite(factor)) for factor in model.factors)


@pytest.mark.parametrize("how", KINDS.values(), ids=KINDS.keys())
def test_empty_rows_and_columns_of_zeros(device: str, how: dict[str, Any]) -> None:
    """Empty rows become zeros, or stay fixed; a component that is zero in a mode makes nothing a NaN."""
    rng = np.random.default_rng(5)
    dense = np.where(rng.random((10, 8, 9)) < 0.5, rng.random((10, 8, 9)), 0)
    dense[3] = dense[:, :, 5] = 0
    tensor = amped.SparseTensor(np.argwhere(dense), dense[dense != 0], dense.shape)
    ridge = (*how["ridge"], 0) if isinstance(how.get("ridge"), tuple) else how.get("ridge", 0.0)
    how, start = {**how, "ridge": ridge}, random_factors(6, dense.shape, 4)
    start[1][:, 2] = 0
    model = amped.cp_als(tensor, 4, init=start, tol=0, max_iters=8, device=device, precision="fp64", **how)
    assert all(np.all(np.isfinite(factor)) for factor in (*model.factors, model.weights, model.fits))
    assert model.fits[-1] > 0.1
    for mode, row in ((0, 3), (2, 5)):
        if mode not in how.get("fixed_modes", ()):
            np.testing.assert_allclose(model.factors[mode][row, model.weights > 0], 0, atol=1e-12)


def test_a_component_that_died_in_one_mode_comes_back(device: str) -> None:
    start = random_factors(9, DENSE.shape, 3)
    start[1][:, 0] = 0
    model = amped.cp_als(abs_tensor(), 3, init=start, tol=0, max_iters=30, nonnegative=True, device=device)
    assert np.all(model.weights > 0)


def abs_tensor() -> amped.SparseTensor:
    return amped.SparseTensor(np.argwhere(DENSE), abs(DENSE[DENSE != 0]), DENSE.shape)


@pytest.mark.parametrize("scale", [1e-18, 1e18])
@pytest.mark.parametrize("name", KINDS)
def test_values_of_any_size(device: str, scale: float, name: str) -> None:
    """Columns are stored with other divisors."""
    how, oracle = kind_of(name, 3)
    tensor = amped.SparseTensor(np.argwhere(DENSE), scale * DENSE[DENSE != 0], DENSE.shape)
    start = random_factors(3, DENSE.shape, 3)
    model = amped.cp_als(tensor, 3, init=start, tol=0, max_iters=8, device=device, **how)
    want = dense_constrained_als(scale * DENSE, start, 8, **oracle)
    np.testing.assert_allclose(model.fits, want.fits, atol=1e-5)
    np.testing.assert_allclose(model.full(), want.full, atol=1e-3 * abs(want.full).max())


def test_a_start_far_too_long(device: str) -> None:
    start = [1e6 * f for f in random_factors(3, DENSE.shape, 3)]
    fits = amped.cp_als(TENSOR, 3, init=start, tol=0, max_iters=60, nonnegative=True, device=device).fits
    assert np.all(np.diff(fits) >= -ACCURACY["fp32"])
    assert fits[-1] > 0.1


# Where and how it is computed


@pytest.mark.parametrize("threads", [1, 3])
@pytest.mark.parametrize("placement", ["resident", "stream"])
@pytest.mark.parametrize("name", ["all", "both", "the first"])
def test_placement_and_threads_change_nothing(threads: int, placement: str, name: str) -> None:
    how, _ = kind_of(name, 3)
    options: dict[str, Any] = {"init": random_factors(3, DENSE.shape, 4), "tol": 0, "max_iters": 8, "precision": "fp64"}
    want = amped.cp_als(TENSOR, 4, device="cpu", **options, **how)
    with small_pieces(20):
        found = amped.cp_als(TENSOR, 4, device="cpu", threads=threads, placement=placement, **options, **how)  # type: ignore[arg-type]
    np.testing.assert_allclose(found.fits, want.fits, atol=1e-11)
    np.testing.assert_allclose(found.full(), want.full(), atol=1e-9)


@pytest.mark.parametrize("name", KINDS)
def test_deterministic(device: str, name: str) -> None:
    how, _ = kind_of(name, 3)
    models = [
        amped.cp_als(TENSOR, 4, init=random_factors(3, DENSE.shape, 4), deterministic=True, device=device, **how)
        for _ in range(2)
    ]
    assert models[0].fits == models[1].fits
    assert all(np.array_equal(a, b) for a, b in zip(models[0].factors, models[1].factors, strict=True))


def test_eigenvectors_are_made_non_negative(device: str) -> None:
    model = amped.cp_als(TENSOR, 3, init="nvecs", nonnegative=True, tol=0, max_iters=20, device=device)
    assert np.all(np.diff(model.fits) >= -ACCURACY["fp32"])
    assert all(factor.min() >= 0 for factor in model.factors)


# What is refused

SIGNED = [np.full((n, 3), 0.5) for n in DENSE.shape]
SIGNED[1][2, 1] = -0.25
WRONG: list[tuple[dict[str, Any], str]] = [
    ({"nonnegative": (0, 3)}, "nonnegative: there is no mode 3; the tensor has modes 0 to 2"),
    ({"nonnegative": (-1,)}, "nonnegative: mode -1: expected"),
    ({"nonnegative": 2}, "nonnegative 2: expected modes, counted from 0"),
    ({"nonnegative": "all"}, "nonnegative: 'all' is none of 'mode 0', 'mode 1', 'mode 2'"),
    ({"fixed_modes": (7,), "init": SIGNED}, "fixed_modes: there is no mode 7"),
    ({"fixed_modes": (0.5,), "init": SIGNED}, "fixed_modes: mode 0.5"),
    ({"fixed_modes": 1, "init": SIGNED}, "fixed_modes 1: expected modes"),
    ({"fixed_modes": (1,)}, "the start is random"),
    ({"fixed_modes": (0, 1, 2), "init": SIGNED}, "all modes are fixed"),
    ({"ridge": -1.0}, "ridge -1.0: expected a number of at least 0"),
    ({"ridge": float("nan")}, "ridge nan"),
    ({"ridge": "much"}, "ridge 'much'"),
    ({"ridge": (1.0, 2.0)}, "ridge: 2 numbers for a tensor of order 3"),
    ({"ridge": (1.0, 2.0, -3.0)}, "ridge -3.0"),
    ({"nonnegative": True, "init": SIGNED}, "factor_1 of the start has negative entries, but mode 1 is non-negative"),
    ({"nonnegative": (1,), "init": SIGNED, "fixed_modes": (1,)}, "factor_1 of the start has negative entries"),
]  # fmt: skip


@pytest.mark.parametrize(("how", "message"), WRONG, ids=range(len(WRONG)))
def test_refused(how: dict[str, Any], message: str) -> None:
    with pytest.raises(amped.InputError, match=message):
        amped.cp_als(TENSOR, 3, device="cpu", **how)


def test_signs_do_not_matter_where_they_are_allowed() -> None:
    amped.cp_als(TENSOR, 3, device="cpu", init=SIGNED, nonnegative=(0, 2), max_iters=1)


def test_a_start_in_a_file_is_named(tmp_path: Path) -> None:
    path = tmp_path / "start.npz"
    np.savez(path, **{f"factor_{mode}": factor for mode, factor in enumerate(SIGNED)})
    with pytest.raises(amped.InputError, match=r"factor_1 of the start has negative entries"):
        amped.cp_als(TENSOR, 3, device="cpu", init=path, nonnegative=True)
