"""Dense tensors with few missing elements: the results are those of their observed elements as a sparse tensor."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest
from gaps import assert_equal, both, with_gaps

import amped
from amped.errors import InputError
from amped.operators.dense import gaps


@pytest.fixture(autouse=True)
def _small_tensors(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(gaps, "LEAST", 0)


HOW: dict[str, dict[str, Any]] = {
    "plain": {},
    "nonnegative": {"nonnegative": [0]},
    "ridges": {"ridge": [0.1, 0.2, 0.3]},
    "fp32": {"precision": "fp32", "ridge": 0.1},
    "streamed": {"placement": "stream"},
    "deterministic": {"deterministic": True},
}


@pytest.mark.parametrize("how", HOW)
def test_as_a_sparse_tensor(how: str) -> None:
    one, other = both(with_gaps((9, 10, 11)), 5, **HOW[how])
    assert_equal(one, other, 1e-5 if how == "fp32" else 1e-12)


def test_fixed_modes() -> None:
    start = [np.random.default_rng(m).random((n, 5)) for m, n in enumerate((9, 10, 11))]
    one, other = both(with_gaps((9, 10, 11)), 5, init=start, fixed_modes=[2])
    assert_equal(one, other, 1e-12)


@pytest.mark.parametrize("nonnegative", [False, True])
def test_iterations_from_extrapolated_matrices(nonnegative: bool) -> None:
    one, other = both(with_gaps((9, 10, 11)), 5, nonnegative=nonnegative, max_iters=8, accelerate=True)
    assert_equal(one, other, 1e-9)


def test_modes_in_another_order_in_memory() -> None:
    one, other = both(np.asfortranarray(with_gaps((9, 10, 11))), 5)
    assert_equal(one, other, 1e-12)


def test_rows_with_few_observed_elements() -> None:
    """Differences of their equations would be rounding errors."""
    X = with_gaps((15, 10, 11))
    X[5], X[:, 4] = np.nan, np.nan
    X[5, 2, 3:5], X[2:, 4, 1] = 1.0, 0.4
    X[3] = np.nan
    one, other = both(X, 5)
    assert_equal(one, other, 1e-9)
    assert not one.factors[0][3].any()


def test_rows_that_all_threads_share() -> None:
    one, other = both(with_gaps((2, 200, 220)), 5, max_iters=2)
    assert_equal(one, other, 1e-12)


@pytest.mark.parametrize("accelerate", [False, True])
def test_more_components_than_there_are_in_single_precision(accelerate: bool) -> None:
    """Rounding errors of an MTTKRP in single precision would become large."""
    rng = np.random.default_rng(1)
    X = np.einsum("ir,jr,kr->ijk", *(rng.random((length, 1)) for length in (15, 16, 17)))
    X[rng.random(X.shape) < 0.1] = np.nan
    one, other = both(X, 2, precision="fp32", max_iters=20, accelerate=accelerate, deterministic=True)
    squares = np.nansum(X**2)
    assert max(np.diff(one.series["objective"])) < 1e-9 * squares
    assert one.series["objective"][-1] < other.series["objective"][-1] + 1e-9 * squares


def test_more_components_than_there_are() -> None:
    """All rows' matrices are singular."""
    X = np.multiply.outer(np.multiply.outer(np.arange(1.0, 10), np.ones(10)), np.linspace(1, 2, 11))
    X[2, 3, 4] = np.nan
    start = [np.repeat(np.random.default_rng(m).random((n, 1)), 5, axis=1) for m, n in enumerate(X.shape)]
    one, other = both(X, 5, init=start, max_iters=1)
    assert_equal(one, other, 1e-11)
    assert one.rank == 5


def test_an_exact_fit() -> None:
    """Differences of squares would be rounding errors."""
    factors = [np.random.default_rng(m).random((n, 5)) for m, n in enumerate((9, 10, 11))]
    X = np.einsum("ir,jr,kr->ijk", *factors)
    X[np.random.default_rng(9).random(X.shape) < 0.2] = np.nan
    start = [factor + 1e-6 * np.random.default_rng(8).random(factor.shape) for factor in factors]
    one, other = both(X, 5, init=start, max_iters=2)
    assert one.series["rmse"][-1] < 1e-6
    np.testing.assert_allclose(one.series["objective"], other.series["objective"], rtol=1e-6)


@pytest.mark.gpu
@pytest.mark.parametrize("precision", ["fp32", "fp64"])
@pytest.mark.parametrize("how", ["plain", "nonnegative", "ridges", "streamed"])
@pytest.mark.parametrize("rank", [5, 33])
def test_a_gpu_takes_the_path_of_a_cpu(how: str, precision: str, rank: int) -> None:
    """With rows of which nothing, little, or everything is observed."""
    X = with_gaps((15, 20, 21))
    X[7] = 0.5
    X[5], X[3] = np.nan, np.nan
    X[5, 2, 3:5] = 1.0
    start = [np.random.default_rng(m).random((n, rank)) for m, n in enumerate(X.shape)]
    terms = {"mask": "nan", "init": start, "max_iters": 4, "tol": 0, "precision": precision, "ridge": 0.01, **HOW[how]}
    one, other = (amped.cp_als(X, rank, device=device, **terms) for device in ("cuda", "cpu"))
    assert "segmented" not in one.run["kernels"]
    bound = 1e-4 if precision == "fp32" else 1e-9
    for name, numbers in other.series.items():
        np.testing.assert_allclose(one.series[name], numbers, rtol=bound)
    np.testing.assert_allclose(one.full(), other.full(), rtol=0, atol=30 * bound)


@pytest.mark.gpu
def test_an_exact_fit_on_a_gpu() -> None:
    factors = [np.random.default_rng(m).random((n, 5)) for m, n in enumerate((9, 10, 11))]
    X = np.einsum("ir,jr,kr->ijk", *factors)
    X[np.random.default_rng(9).random(X.shape) < 0.2] = np.nan
    how = {"mask": "nan", "init": factors, "max_iters": 1, "tol": 0, "device": "cuda", "precision": "fp64"}
    assert amped.cp_als(X, 5, **how).series["rmse"][-1] < 1e-12


def test_held_out_elements_are_missing() -> None:
    X = with_gaps((9, 10, 11))
    one, other = both(X, 5, holdout=0.1)
    assert_equal(one, other, 1e-11)


def test_a_run_resumes(tmp_path: Path) -> None:
    X, how = with_gaps((9, 10, 11)), {"mask": "nan", "tol": 0, "precision": "fp64", "device": "cpu"}
    whole = amped.cp_als(X, 5, max_iters=6, **how)
    amped.cp_als(X, 5, max_iters=4, checkpoint=tmp_path / "c", **how)
    resumed = amped.cp_als(X, 5, max_iters=6, checkpoint=tmp_path / "c", resume=True, **how)
    np.testing.assert_allclose(resumed.series["objective"], whole.series["objective"], rtol=1e-13)


def test_values_beyond_the_precision() -> None:
    X = with_gaps((9, 10, 11))
    X[0, 0, 0] = 1e300
    with pytest.raises(InputError, match="precision"):
        amped.cp_als(X, 5, mask="nan", precision="fp32", device="cpu")


def test_few_missing_elements_only(monkeypatch: pytest.MonkeyPatch) -> None:
    for limit, kernels in ((0.4, 1), (0.1, 0)):
        monkeypatch.setattr(gaps, "MISSING", limit)
        model = amped.cp_als(with_gaps((9, 10, 11)), 5, mask="nan", max_iters=1, device="cpu")
        assert (model.run["kernels"] == ["split"] * 3) == bool(kernels)


@pytest.mark.parametrize("how", ["plain", "streamed"])
def test_the_plan_is_that_of_the_run(how: str, monkeypatch: pytest.MonkeyPatch) -> None:
    X, placed, begin = with_gaps((15, 10, 11)), list[gaps.DenseOperator](), gaps.GapRows.__init__
    X[5] = np.nan
    X[5, 2, 3:5] = 1.0

    def noted(self: gaps.GapRows, operator: gaps.DenseOperator, *args: Any) -> None:
        placed.append(operator)
        begin(self, operator, *args)

    monkeypatch.setattr(gaps.GapRows, "__init__", noted)
    options: dict[str, Any] = {"mask": "nan", "device": "cpu", **HOW[how]}
    amped.cp_als(X, 5, max_iters=20, **options)
    plan, (operator,) = amped.plan(X, 5, **options), placed
    assert plan.device_bytes == (dict(operator.plan.device_bytes),)
    assert plan.host_bytes == (operator.plan.host_bytes,)
    assert "observed elements are not predicted" in plan.expectation
    parts = amped.plan(X, 5, ranks=2, **options).device_bytes
    resident = 0 if how == "streamed" else X.size * np.dtype(np.float32).itemsize
    assert sum(part["resident elements"] for part in parts) == resident
