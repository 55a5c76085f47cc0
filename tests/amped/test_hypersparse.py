"""Decompositions whose matrices have no rows for most unused indices equal those with all rows."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest
from forms import exhaustive
from hypersparse import RUNS, SHAPES, assert_alike, both_ways, hypersparse

import amped
from amped.operators import kept_rows
from partitioner.host.worth import SETTING


@pytest.mark.parametrize("order", SHAPES)
@pytest.mark.parametrize("name", RUNS)
def test_compact_matrices_change_results_only_by_rounding(
    monkeypatch: pytest.MonkeyPatch, name: str, order: int
) -> None:
    tensor = hypersparse(order)
    usual, compact, made = both_ways(monkeypatch, name, tensor)
    assert made == (0 if name == "hosvd" else 1)
    assert_alike(usual, compact)
    assert compact.shape == tensor.shape
    unused = np.setdiff1d(np.arange(tensor.shape[0]), tensor.columns[0])
    assert name == "hosvd" or not compact.factors[0][unused].any(), "rows of unused indices are zero"


@pytest.mark.parametrize(("name", "order"), [("als", 3), exhaustive("als", 4), exhaustive("mu", 4)])
def test_compiled_code_has_compact_matrices_too(monkeypatch: pytest.MonkeyPatch, name: str, order: int) -> None:
    usual, compact, made = both_ways(monkeypatch, name, hypersparse(order), deterministic=True)
    assert made == 1
    assert_alike(usual, compact)


def test_fixed_matrices_keep_all_rows(monkeypatch: pytest.MonkeyPatch) -> None:
    _, compact, _ = both_ways(monkeypatch, "fixed", hypersparse(3))
    assert compact.factors[2].all()


def test_an_interrupted_run_continues_from_full_matrices(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    """A checkpoint serves runs with compact matrices and without."""
    tensor, how = hypersparse(3), {"tol": 0, "precision": "fp64", "device": "cpu", "checkpoint": tmp_path / "c"}
    monkeypatch.setattr(kept_rows, "LEAST_LENGTH", 1)
    whole = amped.cp_als(tensor, 4, max_iters=4, tol=0, precision="fp64", device="cpu")
    amped.cp_als(tensor, 4, max_iters=2, **how)
    saved = np.load(next((tmp_path / "c").glob("*2/factor_0.npy")))
    assert saved.shape == (tensor.shape[0], 4)
    resumed = amped.cp_als(tensor, 4, max_iters=3, resume=True, **how)
    assert len(resumed.fits) == 3
    monkeypatch.setattr(kept_rows, "LEAST_LENGTH", 1 << 62)
    assert_alike(whole, amped.cp_als(tensor, 4, max_iters=4, resume=True, **how))


def test_constraints_that_fill_empty_rows_keep_all_rows(monkeypatch: pytest.MonkeyPatch) -> None:
    RUNS["smooth"] = lambda x, **how: amped.cp_als(x, 2, max_iters=2, tol=0, constraints={0: "smooth:0.1"}, **how)
    try:
        usual, compact, made = both_ways(monkeypatch, "smooth", hypersparse(3))
    finally:
        del RUNS["smooth"]
    assert made == 0
    assert_alike(usual, compact)


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
