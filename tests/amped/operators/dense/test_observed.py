"""Small arrays with missing elements: the results are those of their observed elements as a sparse tensor."""

from __future__ import annotations

import json
from typing import Any

import numpy as np
import pytest

import amped
from amped.operators.dense import observed

pytestmark = pytest.mark.usefixtures("without_compiled_code")

SHAPES = [(6, 5), (4, 7, 3), (3, 1, 4, 5), (2, 3, 2, 3, 2)]
HOW: dict[str, dict[str, Any]] = {
    "plain": {"ridge": 0.01},
    "nonnegative": {"nonnegative": [0]},
    "ridges": {"ridge": [0.1, 0.2, 0.3, 0.4, 0.5]},
}


def array_of(shape: tuple[int, ...], rank: int = 2) -> np.ndarray:
    """Return an array of low rank and noise."""
    rng = np.random.default_rng(len(shape))
    letters = "abcde"[: len(shape)]
    factors = [rng.random((length, rank)) for length in shape]
    exact = np.einsum(",".join(f"{letter}r" for letter in letters) + "->" + letters, *factors)
    return exact + 0.1 * rng.standard_normal(shape)


def both(monkeypatch: pytest.MonkeyPatch, X: np.ndarray, rank: int, **how: Any) -> list[amped.KruskalTensor]:
    """Return the models of the dense and the sparse formulation."""
    models, placed, begin = [], list[object](), observed.DirectObserved.__init__

    def noted(self: observed.DirectObserved, *args: Any) -> None:
        placed.append(self)
        begin(self, *args)

    monkeypatch.setattr(observed.DirectObserved, "__init__", noted)
    for numbers in (observed.NUMBERS, 0):
        monkeypatch.setattr(observed, "NUMBERS", numbers)
        models.append(amped.cp_als(X, rank, tol=0, device="cpu", **how))
    assert len(placed) == 1
    return models


def assert_equal(one: amped.KruskalTensor, other: amped.KruskalTensor, bound: float) -> None:
    for name, numbers in other.series.items():
        np.testing.assert_allclose(one.series[name], numbers, rtol=bound, atol=0)
    for mine, theirs in zip(one.factors, other.factors, strict=True):
        assert mine.dtype == theirs.dtype
        np.testing.assert_allclose(mine, theirs, rtol=0, atol=1e4 * bound)


@pytest.mark.parametrize("precision", ["fp32", "fp64"])
@pytest.mark.parametrize("how", HOW)
@pytest.mark.parametrize("shape", SHAPES)
def test_as_a_sparse_tensor(shape: tuple[int, ...], how: str, precision: str, monkeypatch: pytest.MonkeyPatch) -> None:
    X = array_of(shape)
    X[np.random.default_rng(0).random(shape) < 0.2] = np.nan
    terms = {name: value[: len(shape)] if isinstance(value, list) else value for name, value in HOW[how].items()}
    one, other = both(monkeypatch, X, 2, max_iters=5, mask="nan", precision=precision, **terms)
    assert_equal(one, other, 1e-11 if precision == "fp64" else 1e-5)


def test_reports_plan_the_matrices(tmp_path: Any) -> None:
    X = array_of((4, 7, 3))
    X[1, 2] = np.nan
    amped.cp_als(X, 2, max_iters=2, mask="nan", metrics=tmp_path / "metrics")
    (line,) = [line for line in (tmp_path / "metrics").read_text().splitlines() if "planned_bytes" in line][:1]
    assert json.loads(line)["planned_bytes"][0]["row systems"] > 0


@pytest.mark.parametrize("how", HOW)
def test_weights(how: str, monkeypatch: pytest.MonkeyPatch) -> None:
    X, weights = array_of((4, 7, 3)), np.random.default_rng(0).integers(0, 4, (4, 7, 3))
    terms = {name: value[:3] if isinstance(value, list) else value for name, value in HOW[how].items()}
    one, other = both(monkeypatch, X, 2, max_iters=5, weights=weights, precision="fp64", **terms)
    assert_equal(one, other, 1e-11)


def test_rows_with_fewer_elements_than_components(monkeypatch: pytest.MonkeyPatch) -> None:
    X = array_of((5, 6, 7))
    X[2], X[3], X[:, 4] = np.nan, np.nan, np.nan
    X[3, 1, 2] = 1.0
    one, other = both(monkeypatch, X, 3, max_iters=2, precision="fp64", mask="nan")
    assert_equal(one, other, 1e-10)
    assert not one.factors[0][2].any()
    assert not one.factors[1][4].any()


def test_an_exact_fit(monkeypatch: pytest.MonkeyPatch) -> None:
    """Differences of squares would be rounding errors."""
    rng = np.random.default_rng(0)
    factors = [rng.random((n, 2)) for n in (6, 7, 8)]
    X = np.einsum("ir,jr,kr->ijk", *factors)
    X[rng.random(X.shape) < 0.3] = np.nan
    start = [factor + 1e-4 * rng.random(factor.shape) for factor in factors]
    one, other = both(monkeypatch, X, 2, max_iters=3, precision="fp64", mask="nan", init=start)
    assert one.series["rmse"][-1] < 1e-6
    np.testing.assert_allclose(one.series["objective"], other.series["objective"], rtol=1e-6)


def test_a_run_resumes(tmp_path: Any) -> None:
    X, how = array_of((5, 6, 7)), {"mask": "nan", "tol": 0, "precision": "fp64"}
    X[np.random.default_rng(0).random(X.shape) < 0.2] = np.nan
    whole = amped.cp_als(X, 2, max_iters=9, **how)
    amped.cp_als(X, 2, max_iters=5, checkpoint=tmp_path / "c", **how)
    resumed = amped.cp_als(X, 2, max_iters=9, checkpoint=tmp_path / "c", resume=True, **how)
    np.testing.assert_array_equal(resumed.series["objective"], whole.series["objective"])
