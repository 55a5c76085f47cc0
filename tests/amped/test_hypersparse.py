"""Decompositions whose matrices have no rows for most unused indices equal those with all rows."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest
from forms import exhaustive
from hypersparse import RUNS, SHAPES, ZERO_ROWS, assert_alike, both_ways, hypersparse, start_of

import amped
from amped.operators import kept_rows
from amped.operators.dense.observed import DirectObserved
from partitioner.host.worth import SETTING


@pytest.mark.parametrize("order", SHAPES)
@pytest.mark.parametrize("name", RUNS)
def test_compact_matrices_change_results_only_by_rounding(
    monkeypatch: pytest.MonkeyPatch, name: str, order: int
) -> None:
    monkeypatch.setattr(DirectObserved, "fits", lambda *_: False)  # of small masked arrays
    tensor = hypersparse(order)
    usual, compact, made = both_ways(monkeypatch, name, tensor)
    assert made == (0 if name == "hosvd" else 1)
    assert_alike(usual, compact)
    assert compact.shape == tensor.shape
    unused = np.setdiff1d(np.arange(tensor.shape[0]), tensor.columns[0])
    full = name == "hosvd" or "smooth" in name
    assert full or not compact.factors[0][unused].any(), "rows of unused indices are zero"


@pytest.mark.parametrize(("name", "order"), [("als", 3), exhaustive("als", 4), exhaustive("mu", 4)])
def test_compiled_code_has_compact_matrices_too(monkeypatch: pytest.MonkeyPatch, name: str, order: int) -> None:
    usual, compact, made = both_ways(monkeypatch, name, hypersparse(order), deterministic=True)
    assert made == 1
    assert_alike(usual, compact)


def test_fixed_matrices_keep_all_rows(monkeypatch: pytest.MonkeyPatch) -> None:
    _, compact, _ = both_ways(monkeypatch, "fixed", hypersparse(3))
    assert compact.factors[2].all()


@pytest.mark.parametrize("constraints", [None, {0: "ball", 1: "simplex:rows"}])
def test_an_interrupted_run_continues_from_full_matrices(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path, constraints: dict[int, str] | None
) -> None:
    """A checkpoint serves runs with compact matrices and without."""
    plain: dict[str, Any] = {"tol": 0, "precision": "fp64", "device": "cpu", "constraints": constraints}
    tensor, how = hypersparse(3), {**plain, "checkpoint": tmp_path / "c"}
    monkeypatch.setattr(kept_rows, "LEAST_LENGTH", 1)
    whole = amped.cp_als(tensor, 4, max_iters=4, **plain)
    amped.cp_als(tensor, 4, max_iters=2, **how)
    saved = next((tmp_path / "c").glob("*2"))
    assert np.load(saved / "factor_0.npy").shape == (tensor.shape[0], 4)
    assert not constraints or np.load(saved / "dual_0.npy").shape == (1, tensor.shape[0], 4)
    resumed = amped.cp_als(tensor, 4, max_iters=3, resume=True, **how)
    assert len(resumed.fits) == 3
    monkeypatch.setattr(kept_rows, "LEAST_LENGTH", 1 << 62)
    assert_alike(whole, amped.cp_als(tensor, 4, max_iters=4, resume=True, **how))


def test_constraints_that_fill_empty_rows_keep_all_rows(monkeypatch: pytest.MonkeyPatch) -> None:
    tensor = hypersparse(3)
    _, compact, _ = both_ways(monkeypatch, "admm, smooth, rank 7", tensor)
    unused = np.setdiff1d(np.arange(tensor.shape[0]), tensor.columns[0])
    assert compact.factors[0][unused].any(axis=1).all()


def test_a_simplex_of_rows_keeps_all_rows(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(kept_rows, "LEAST_LENGTH", 1)
    model = amped.cp_als(hypersparse(3), 4, constraints={0: "simplex:rows"}, max_iters=2, device="cpu")
    np.testing.assert_allclose(model.factors[0].sum(axis=1), 1, rtol=1e-6)


@pytest.mark.parametrize("name", ["lbfgs", "lbfgs, ridge", "masked lbfgs", "newton", "admm"])
def test_zero_rows_of_a_start_do_not_raise_the_objective(name: str) -> None:
    """The start that a run takes is at least as good as the caller's."""
    tensor, start = hypersparse(3), start_of(3, 4)
    zeroed = [
        np.where(np.isin(np.arange(n), c)[:, None], f, 0)
        for n, c, f in zip(tensor.shape, tensor.columns, start, strict=True)
    ]
    runs = [
        ZERO_ROWS[name](tensor, 4, init=each, max_iters=2, tol=0, precision="fp64", device="cpu")
        for each in (start, zeroed)
    ]
    assert_alike(*runs)


def test_runs_that_share_passes_have_compact_matrices(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv(SETTING, "never")
    tensor, scans = hypersparse(3), []
    for least in (1 << 62, 1):
        monkeypatch.setattr(kept_rows, "LEAST_LENGTH", least)
        scans.append(amped.scan(tensor, [2, 3], starts=2, max_iters=4, tol=0, precision="fp64", device="cpu"))
    for usual, compact in zip(scans[0].models, scans[1].models, strict=True):
        assert_alike(usual, compact)


def test_a_plan_counts_compact_matrices_and_a_full_model(monkeypatch: pytest.MonkeyPatch) -> None:
    tensor = hypersparse(3)
    plans = {}
    for least in (1, 1 << 62):
        monkeypatch.setattr(kept_rows, "LEAST_LENGTH", least)
        plans[least] = amped.plan(tensor, 4, device="cpu", precision="fp64")
    (compact,), (usual,) = plans[1].device_bytes, plans[1 << 62].device_bytes
    assert compact["factor matrices"] < usual["factor matrices"] / 4
    assert plans[1].host_bytes[0] < plans[1 << 62].host_bytes[0]


def test_short_modes_are_not_searched(monkeypatch: pytest.MonkeyPatch) -> None:
    def fail(*arguments: Any) -> None:
        raise AssertionError("used indices were searched")

    from amped.operators.sources.sparse import TensorSource

    monkeypatch.setattr(TensorSource, "used_indices", fail)
    amped.cp_als(hypersparse(3), 2, max_iters=1, device="cpu")
