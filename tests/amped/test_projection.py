"""New data on known components: `KruskalTensor.transform`."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest
from constrained import signed_tensor
from oracle import PRECISIONS, random_factors
from scipy.optimize import nnls

import amped

SHAPE, RANK = (8, 7, 6), 4
ACCURACY = {"fp32": 1e-5, "fp64": 1e-10}


def model_of(shape: tuple[int, ...] = SHAPE, norm: int = 2) -> amped.KruskalTensor:
    weights = np.arange(1.0, RANK + 1)
    return amped.KruskalTensor(weights, random_factors(2, shape, RANK)).arranged(norm)


def unfolded(dense: np.ndarray, mode: int) -> np.ndarray:
    return np.moveaxis(dense, mode, 0).reshape(dense.shape[mode], -1)


def design_of(model: amped.KruskalTensor, mode: int) -> np.ndarray:
    """Return the columns that rows of a mode multiply: one for each component."""
    others = [f.astype(np.float64) for m, f in enumerate(model.factors) if m != mode]
    product = others[0]
    for factor in others[1:]:
        product = (product[:, None] * factor[None]).reshape(-1, product.shape[1])
    return product


@pytest.mark.parametrize("precision", PRECISIONS)
@pytest.mark.parametrize("mode", [0, 1, 2])
@pytest.mark.parametrize("length", [1, 5, 40])
@pytest.mark.parametrize("norm", [1, 2])
def test_the_nearest_rows(device: str, precision: str, mode: int, length: int, norm: int) -> None:
    shape = (*SHAPE[:mode], length, *SHAPE[mode + 1 :])
    dense, tensor = signed_tensor(7, shape)
    model, how = model_of(norm=norm), {"device": device, "precision": precision}
    design, data = design_of(model, mode), unfolded(dense, mode)
    plain, signed = model.transform(tensor, mode, **how), np.linalg.lstsq(design, data.T, rcond=None)[0].T
    assert plain.dtype == {"fp32": np.float32, "fp64": np.float64}[precision]
    np.testing.assert_allclose(plain, signed, rtol=0, atol=10 * ACCURACY[precision] * abs(signed).max())
    found = model.transform(tensor, mode, nonnegative=True, **how)
    want = np.array([nnls(design, row)[0] for row in data])
    assert found.min() >= 0
    np.testing.assert_allclose(found, want, rtol=0, atol=100 * ACCURACY[precision] * abs(want).max())


def test_a_model_s_own_tensor_gives_its_own_rows(device: str) -> None:
    model = model_of()
    full = model.full()
    tensor = amped.SparseTensor(np.argwhere(full), full[full != 0], SHAPE)
    for nonnegative in (False, True):
        rows = model.transform(tensor, 1, nonnegative=nonnegative, device=device, precision="fp64")
        np.testing.assert_allclose(rows, model.factors[1] * model.weights, atol=1e-7)


def test_a_ridge(device: str) -> None:
    dense, tensor = signed_tensor(8, SHAPE)
    model = model_of()
    design = design_of(model, 2)
    want = np.linalg.solve(design.T @ design + 0.5 * np.eye(RANK), design.T @ unfolded(dense, 2).T).T
    found = model.transform(tensor, 2, ridge=0.5, device=device, precision="fp64")
    np.testing.assert_allclose(found, want, atol=1e-10)


@pytest.mark.parametrize("nonnegative", [False, True])
def test_rows_without_nonzeros_and_components_that_are_zero(device: str, nonnegative: bool) -> None:
    model = model_of()
    model.factors[0][:, 2] = 0
    tensor = amped.SparseTensor([[1, 4, 2], [0, 4, 3]], [2.0, 3.0], (8, 9, 6))
    rows = model.transform(tensor, 1, nonnegative=nonnegative, device=device)
    assert np.all(np.isfinite(rows))
    assert np.all(np.delete(rows, 4, axis=0) == 0)
    assert np.all(rows[:, 2] == 0)
    assert np.any(rows[4])


def test_long_columns_of_small_numbers(device: str) -> None:
    """Unit 1-norm columns of long modes are far below what is stored."""
    shape = (3000, 5000, 4)
    model = model_of(shape, 1)
    rng = np.random.default_rng(0)
    tensor = amped.SparseTensor(rng.integers(0, shape, (5000, 3)), rng.random(5000), shape)
    rows = model.transform(tensor, 2, device=device)
    others = [f.astype(np.float64) for f in model.factors[:2]]
    right = np.zeros((4, RANK))
    i, j, k = tensor.columns
    np.add.at(right, k, tensor.values[:, None] * others[0][i] * others[1][j])
    want = right @ np.linalg.inv(np.prod([f.T @ f for f in others], axis=0))
    np.testing.assert_allclose(rows, want, rtol=1e-4)


def test_a_loaded_model_and_a_file(tmp_path: Path) -> None:
    _, tensor = signed_tensor(8, SHAPE)
    model = model_of()
    model.save(tmp_path / "m.npz")
    path = tmp_path / "x.npz"
    np.savez(path, indices=np.stack(tensor.columns, 1), values=tensor.values, shape=SHAPE)
    found = amped.load(tmp_path / "m.npz").transform(path, 0, device="cpu")
    assert np.array_equal(found, model.transform(tensor, 0, device="cpu"))


WRONG: list[tuple[dict[str, Any], str]] = [
    ({"mode": 3}, r"mode 3 is outside 0\.\.2"),
    ({"mode": -1}, "mode -1"),
    ({"mode": 1}, "X is 9 x 7 x 6: this model's other modes make it 8 x any x 6"),
    ({"X": amped.SparseTensor([[0, 0]], [1.0], (8, 7))}, "X is 8 x 7: this model's other modes make it any x 7 x 6"),
    ({"ridge": -1.0}, "ridge -1.0"),
    ({"X": 3}, "X is of type int"),
]


@pytest.mark.parametrize(("change", "message"), WRONG)
def test_refused(change: dict[str, Any], message: str) -> None:
    _, tensor = signed_tensor(8, (9, 7, 6))
    with pytest.raises(amped.InputError, match=message):
        model_of().transform(**{"X": tensor, "mode": 0, "device": "cpu", **change})
