"""Held-out elements on several ranks: the same ones are drawn, and their RMSE is that of one rank."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

import amped
from amped.parallel.mpi import Comm
from partitioner.tensors.held_out import drawn

HOW: dict[str, Any] = {"tol": 0, "device": "cpu", "precision": "fp64", "threads": 1, "max_iters": 6}


@pytest.mark.parametrize(("weighted", "compiled"), [(True, "always"), (False, "never"), (True, "never")])
def test_ranks_agree(comm: Comm, weighted: bool, compiled: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("AMPED_COMPILE", compiled)
    rng = np.random.default_rng(0)
    exact = np.einsum("ir,jr,kr->ijk", *(rng.normal(size=(length, 2)) for length in (12, 10, 8)))
    noisy, seen = exact + 0.1 * rng.normal(size=exact.shape), rng.random(exact.shape) < 0.4
    weights = np.where(seen, rng.integers(1, 4, exact.shape) if weighted else 1.0, 0.0)
    root = comm.rank == 0
    model = amped.cp_als(noisy if root else None, 2, weights=weights if root else None, holdout=0.2, **HOW)
    at = np.argwhere(seen)
    held = at[drawn(at.T.astype(np.int32), 0.2, 0)]
    squares = weights * np.square(noisy - model.full())
    expected = np.sqrt(squares[tuple(held.T)].sum() / weights[tuple(held.T)].sum())
    assert model.run["held_out"] == len(held)
    assert model.series["holdout_rmse"][model.run["best_iteration"] - 1] == pytest.approx(expected, rel=1e-9)
    expected = np.sqrt((squares.sum() - squares[tuple(held.T)].sum()) / (weights.sum() - weights[tuple(held.T)].sum()))
    assert model.series["rmse"][model.run["best_iteration"] - 1] == pytest.approx(expected, rel=1e-9)
    assert len(set(comm.allgather(repr(model.series)))) == 1
    with pytest.raises(amped.InputError, match="holdout 2"):
        amped.cp_als(noisy if root else None, 2, holdout=2, **HOW)


@pytest.mark.parametrize(("method", "compiled"), [("lbfgs", "never"), ("newton", "always")])
def test_losses(comm: Comm, method: Any, compiled: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("AMPED_COMPILE", compiled)
    rng = np.random.default_rng(0)
    counts = rng.poisson(np.einsum("ir,jr,kr->ijk", *(rng.random((length, 2)) for length in (12, 10, 8)))).astype(float)
    how = HOW | {"loss": "poisson", "method": method, "holdout": 0.2}
    model = amped.cp(counts if comm.rank == 0 else None, 2, **how)
    at = np.argwhere(counts >= 0)
    at = at[drawn(at.T.astype(np.int32), 0.2, 0)]
    expected = model.predict(at)
    losses = expected - counts[tuple(at.T)] * np.log(expected + 1e-10)
    assert model.series["holdout_loss"][model.run["best_iteration"] - 1] == pytest.approx(losses.mean(), rel=1e-6)
    assert len(set(comm.allgather(repr(model.series)))) == 1


@pytest.mark.ranks(2)
def test_scans_agree(comm: Comm) -> None:
    rng = np.random.default_rng(0)
    exact = np.einsum("ir,jr,kr->ijk", *(rng.random((length, 2)) for length in (12, 10, 8)))
    gaps = np.where(rng.random(exact.shape) < 0.6, exact + 0.02 * rng.normal(size=exact.shape), np.nan)
    how: dict[str, Any] = {"starts": 2, "max_iters": 30, "halves": False, "precision": "fp64", "threads": 1}
    found = amped.scan(gaps if comm.rank == 0 else None, "1-3", mask="nan", holdout=0.1, device="cpu", **how)
    assert found.suggestion.rank == 2
    assert found.tried[1].consistency == pytest.approx(100, abs=5)
    assert len(set(comm.allgather(repr([each[:7] + each[9:] for each in found.tried])))) == 1
