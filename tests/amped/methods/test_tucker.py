"""HOOI, HOSVD and ST-HOSVD on one process."""

from __future__ import annotations

from typing import Any
from unittest import mock

import numpy as np
import pytest
from forms import exhaustive
from oracle import load, random_nonzeros, small_pieces
from tuckers import (
    RUNS,
    assert_orthonormal,
    assert_same_spaces,
    assert_the_reference,
    dense_hooi,
    dense_hosvd,
    relative_error,
)

import amped
from amped.errors import InputError
from amped.methods import hosvd, singular_vectors

SHAPES = [
    ((9, 7), (3, 3)), ((6, 3, 8), (3, 2, 4)), ((4, 6, 5, 3), (2, 3, 2, 3)), ((2, 3, 40), (2, 3, 5)),
    ((1, 5, 6), (1, 3, 3)),
]  # fmt: skip
SPECTRA = [((9, 7), (3, 3)), ((6, 3, 8), (3, 2, 4)), ((4, 6, 5, 3), (2, 3, 2, 2)), ((3, 4, 40), (2, 3, 5)), SHAPES[-1]]


def random_tensor(shape: tuple[int, ...], seed: int = 0) -> tuple[amped.SparseTensor, np.ndarray]:
    """Return a tensor with repeated nonzeros, most of them in one row of each mode, and the same one dense."""
    columns, values = random_nonzeros(seed, shape, 150)
    dense = np.zeros(shape)
    np.add.at(dense, tuple(columns), values)
    return amped.SparseTensor(columns.T, values, shape), dense


def random_start(shape: tuple[int, ...], ranks: tuple[int, ...]) -> list[np.ndarray]:
    return [np.random.default_rng([n, r]).random((n, r)) for n, r in zip(shape, ranks, strict=True)]


@pytest.mark.parametrize("precision", ["fp64", exhaustive("fp32")])
@pytest.mark.parametrize(
    ("name", "ranks"), [exhaustive(*run) if run[0].endswith(("_5d", "_6d")) else run for run in RUNS]
)
def test_the_reference_results(device: str, name: str, ranks: tuple[int, ...], precision: str) -> None:
    tensor = load(name)
    assert_the_reference(name, ranks, tensor, tensor.shape, precision=precision, device=device)


@pytest.mark.parametrize("placement", ["resident", "stream"])
@pytest.mark.parametrize(("shape", "ranks"), SHAPES)
def test_the_path_of_an_oracle(device: str, shape: tuple[int, ...], ranks: tuple[int, ...], placement: Any) -> None:
    (tensor, dense), start = random_tensor(shape), random_start(shape, ranks)
    factors, fits = dense_hooi(dense, start, 6)
    with small_pieces(20):
        model = amped.tucker(
            tensor, ranks, init=start, max_iters=6, tol=0, precision="fp64", device=device, placement=placement
        )
    np.testing.assert_allclose(model.fits, fits, atol=1e-7 if fits[-1] > 0.999 else 1e-12)
    assert_same_spaces(model.factors, factors, 1e-6)
    assert_orthonormal(model, 1e-12)
    assert abs(1 - relative_error(dense, model) - model.fits[-1]) < 1e-7
    core, _ = model
    assert abs(np.linalg.norm(core) - model.norm()) <= 1e-12 * model.norm()


@pytest.mark.parametrize("most", [singular_vectors.MOST, 2])
def test_more_columns_than_the_matrix_has_rank(device: str, most: int) -> None:
    """They are filled up: a tensor of rank one, at ranks of three; most of its indices have no nonzeros."""
    dense = np.zeros((8, 9, 10))
    dense[np.ix_([1, 2], [3, 5], [0, 9])] = 2.0
    tensor = amped.SparseTensor(np.argwhere(dense), dense[dense != 0], dense.shape)
    with mock.patch.object(singular_vectors, "MOST", most):
        model = amped.tucker(tensor, (3, 3, 3), max_iters=3, tol=0, precision="fp64", device=device)
    assert model.fits[-1] > 1 - 1e-6
    assert_orthonormal(model, 1e-12)
    np.testing.assert_allclose(model.full(), dense, atol=1e-6)


def test_subspace_iteration_where_no_matrix_is_small(device: str) -> None:
    """HOOI's fits are those of whole singular value decompositions."""
    shape, ranks = (12, 14, 13), (3, 4, 3)
    (tensor, dense), start = random_tensor(shape), random_start(shape, ranks)
    _, fits = dense_hooi(dense, start, 5)
    with mock.patch.object(singular_vectors, "MOST", 2), mock.patch.object(singular_vectors, "OVERSAMPLED", 3):
        model = amped.tucker(tensor, ranks, init=start, max_iters=5, tol=0, precision="fp64", device=device)
    np.testing.assert_allclose(model.fits, fits, atol=1e-6)
    assert_orthonormal(model, 1e-12)


@pytest.mark.parametrize("method", ["hosvd", "sthosvd"])
@pytest.mark.parametrize("most", [hosvd.MOST, 3])
@pytest.mark.parametrize(("shape", "ranks"), [case if len(case[0]) < 4 else exhaustive(*case) for case in SPECTRA])
def test_spectra(shape: tuple[int, ...], ranks: tuple[int, ...], most: int, method: str) -> None:
    """By Gram matrices, and by randomised range finding."""
    tensor, dense = random_tensor(shape)
    with mock.patch.object(hosvd, "MOST", most):
        model = amped.tucker(tensor, ranks, method=method, precision="fp64", device="cpu")
    assert_same_spaces(model.factors, dense_hosvd(dense, ranks, method == "sthosvd"), 1e-6)
    assert_orthonormal(model, 1e-12)
    assert len(model.fits) == 1
    assert abs(1 - relative_error(dense, model) - model.fits[0]) < 1e-7


@pytest.mark.parametrize("method", ["hosvd", "sthosvd", "hooi"])
@pytest.mark.parametrize("most", [hosvd.MOST, 3])
@pytest.mark.parametrize("error", [0.9, 0.5, 0.1])
def test_the_error_that_was_asked_for(error: float, most: int, method: str) -> None:
    tensor, dense = random_tensor((12, 9, 14), 3)
    with mock.patch.object(hosvd, "MOST", most), mock.patch.object(hosvd, "FIRST", 1):
        model = amped.tucker(tensor, error=error, method=method, precision="fp64", device="cpu")
    assert relative_error(dense, model) <= error + 1e-9
    if error == 0.9:
        assert max(model.ranks) < 9


def test_hooi_from_spectra_begins_with_their_fit() -> None:
    tensor, _ = random_tensor((12, 9, 14), 3)
    first = amped.tucker(tensor, (3, 3, 3), method="hosvd", precision="fp64", device="cpu").fits[0]
    assert amped.tucker(tensor, (3, 3, 3), init="nvecs", precision="fp64", device="cpu").fits[0] >= first


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ({"rank": (2, 2)}, "rank 2,2: 2 numbers for a tensor of 3 modes"),
        ({"rank": (9, 3, 3)}, "mode 0 has length 6"),
        ({"rank": (5, 2, 2)}, "at most 4 columns, the product of the other modes' ranks"),
        ({"rank": (0, 1, 1)}, "rank 0"),
        ({"rank": 3}, "expected a number for each mode"),
        ({}, "pass rank or error"),
        ({"rank": (1, 1, 1), "error": 0.5}, "not both"),
        ({"error": 1.5}, "between 0 and 1"),
        ({"rank": (1, 1, 1), "method": "svd"}, "expected 'hooi', 'hosvd' or 'sthosvd'"),
        ({"rank": (1, 1, 1), "method": "hosvd", "init": "nvecs"}, "requires method 'hooi'"),
        ({"rank": (2, 2, 2), "init": [np.ones((6, 3))] * 3}, "expected (6, 2)"),
    ],
)
def test_wrong_arguments_are_told_in_one_line(arguments: dict[str, Any], message: str) -> None:
    tensor, _ = random_tensor((6, 7, 8))
    with pytest.raises(InputError, match=r"rank|error|init|method|start|expected") as caught:
        amped.tucker(tensor, device="cpu", **arguments)
    assert message in str(caught.value)
    assert "\n" not in str(caught.value)


def test_fibres_of_one_nonzero_and_empty_rows(device: str) -> None:
    tensor = amped.SparseTensor([[0, 1, 2], [5, 6, 0], [9, 0, 7]], [1.0, 2.0, 3.0], (12, 8, 10))
    model = amped.tucker(tensor, (3, 3, 3), precision="fp64", device=device)
    assert model.fits[-1] > 1 - 1e-7
    assert_orthonormal(model, 1e-12)


@pytest.mark.parametrize("dense", [False, True])
def test_core_consistency(device: str, dense: bool) -> None:
    """Of the components that data are made of, and of one too many; against a core fitted by least squares."""
    rng = np.random.default_rng(0)
    true = [rng.standard_normal((n, 2)) for n in (9, 8, 7)]
    data = np.einsum("ir,jr,kr->ijk", *true) + 1e-3 * rng.standard_normal((9, 8, 7))
    tensor: Any = data if dense else amped.SparseTensor(np.argwhere(data != 0), data[data != 0], data.shape)
    found = []
    for extra in (0, 1):
        factors = [np.hstack([f, rng.standard_normal((len(f), extra))]) for f in true]
        model = amped.KruskalTensor(np.full(2 + extra, 2.0), [factors[0] / 2, *factors[1:]])
        found.append(amped.core_consistency(tensor, model, precision="fp64", device=device))
        kron = np.kron(np.kron(factors[0], factors[1]), factors[2])
        core = np.linalg.lstsq(kron, data.ravel(), rcond=None)[0]
        wanted = np.zeros((2 + extra,) * 3)
        wanted[(np.arange(2 + extra),) * 3] = 1
        assert found[-1] == pytest.approx(100 * (1 - np.sum((core - wanted.ravel()) ** 2) / (2 + extra)), abs=1e-6)
    assert found[0] > 99
    assert found[1] < 90
    with pytest.raises(InputError, match="shape differs"):
        amped.core_consistency(tensor, amped.KruskalTensor(np.ones(1), [np.ones((3, 1))] * 3), device="cpu")


@pytest.mark.parametrize("dense", [False, True])
def test_cp_from_a_compressed_start(device: str, dense: bool) -> None:
    """Of a tensor of three components it is where a decomposition ends, but for rounding."""
    rng = np.random.default_rng(3)
    data = np.einsum("ir,jr,kr->ijk", *(rng.random((n, 3)) for n in (30, 20, 25)))
    tensor: Any = data if dense else amped.SparseTensor(np.argwhere(data != 0), data[data != 0], data.shape)
    how: dict[str, Any] = {"max_iters": 1, "tol": 0, "precision": "fp64", "device": device}
    started = amped.cp_als(tensor, 3, init="tucker", **how).fits[0]
    assert started > max(0.95, amped.cp_als(tensor, 3, **how).fits[0])
    with pytest.raises(InputError, match="negative entries"):
        amped.cp_als(tensor, 3, init="tucker", nonnegative=True, **how)


def test_core_consistency_of_data_with_gaps() -> None:
    """It is that of the tensor which the model completes, as in a scan."""
    rng = np.random.default_rng(1)
    factors = [rng.random((n, 2)) for n in (9, 8, 7)]
    whole = np.einsum("ir,jr,kr->ijk", *factors) + 1e-2 * rng.standard_normal((9, 8, 7))
    gaps = np.where(rng.random(whole.shape) < 0.3, np.nan, whole)
    model = amped.cp_als(gaps, 3, mask="nan", max_iters=30, precision="fp64", device="cpu")
    completed = np.where(np.isnan(gaps), model.full(), whole)
    wanted = amped.core_consistency(completed, model, precision="fp64", device="cpu")
    masked = np.ma.masked_invalid(gaps)
    for found in (
        amped.core_consistency(gaps, model, mask="nan", precision="fp64", device="cpu"),
        amped.core_consistency(whole, model, mask=~np.isnan(gaps), precision="fp64", device="cpu"),
        amped.core_consistency(masked, model, precision="fp64", device="cpu"),
    ):
        assert found == pytest.approx(wanted, rel=1e-6)
    with pytest.raises(InputError, match="every element must be finite"):
        amped.core_consistency(gaps, model, device="cpu")
