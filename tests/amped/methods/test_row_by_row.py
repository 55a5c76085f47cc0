"""CP-ALS under constraints by a device that solves all modes row by row."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest
from oracle import random_factors
from proximal import dense_ao_admm
from row_admm import HostProvider

import amped
from amped.backend.ops.row_admm import ROW_ADMM

HOW: dict[str, Any] = {"tol": 0, "precision": "fp64"}
RNG = np.random.default_rng(0)
DENSE = np.where(RNG.random((8, 7, 6)) < 0.6, RNG.random((8, 7, 6)) + 0.2, 0)
TENSOR = amped.SparseTensor(np.argwhere(DENSE), DENSE[DENSE != 0], DENSE.shape)
KINDS: dict[str, dict[int, Any]] = {
    "sets": {0: "simplex:rows", 1: "bounds:-0.5:1.5", 2: ["nonnegative", "fixed:columns:1"]},
    "penalties": {0: ["nonnegative", "l1:0.1"], 1: "l2:0.2", 2: ["l1:0.3", "bounds:-1:1"]},
    "one": {1: "nonnegative"},
}


@pytest.fixture
def on_host(monkeypatch: pytest.MonkeyPatch) -> None:
    """Let the CPU solve row by row as a GPU does."""
    provider = HostProvider()
    monkeypatch.setattr(ROW_ADMM, "providers", lambda device: [provider])


@pytest.mark.usefixtures("on_host")
@pytest.mark.parametrize("tensor", [DENSE, TENSOR], ids=["dense", "sparse"])
@pytest.mark.parametrize("kind", KINDS)
def test_the_path_of_the_oracle(tensor: Any, kind: str) -> None:
    start = random_factors(0, DENSE.shape, 3)
    how = HOW | {"init": start, "max_iters": 8, "device": "cpu", "threads": 1}
    model = amped.cp_als(tensor, 3, constraints=KINDS[kind], **how)
    factors, objectives = dense_ao_admm(DENSE, start, 8, KINDS[kind])
    np.testing.assert_allclose(model.series["objective"], objectives, rtol=1e-10)
    np.testing.assert_allclose(model.full(), np.einsum("ir,jr,kr->ijk", *factors), atol=1e-9)


@pytest.mark.usefixtures("on_host")
def test_a_resumed_run_is_the_uninterrupted_one(folder: Path) -> None:
    how = HOW | {"constraints": KINDS["penalties"], "device": "cpu", "threads": 1}
    whole = amped.cp_als(TENSOR, 3, max_iters=7, **how)
    amped.cp_als(TENSOR, 3, max_iters=3, checkpoint="c", **how)
    rest = amped.cp_als(TENSOR, 3, max_iters=7, checkpoint="c", resume=True, **how)
    np.testing.assert_allclose(rest.series["objective"], whole.series["objective"], rtol=1e-13)
    several = amped.cp_als(TENSOR, 3, max_iters=7, starts=2, **how)
    assert several.series["objective"][-1] <= whole.series["objective"][-1]
