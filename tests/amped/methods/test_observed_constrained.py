"""CP-ALS over observed elements under constraints, against a textbook version on dense tensors."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest
from oracle import random_factors
from proximal import observed_ao_admm, smooth_tensor
from scipy.optimize import lsq_linear

import amped

HOW: dict[str, Any] = {"tol": 0, "precision": "fp64", "device": "cpu", "threads": 1}
RNG = np.random.default_rng(0)
DENSE = RNG.random((8, 7, 6)) + 0.2
MASK = RNG.random(DENSE.shape) < 0.7
WEIGHTS = np.where(MASK, RNG.integers(1, 4, DENSE.shape), 0).astype(float)
STORED = amped.SparseTensor(np.argwhere(MASK), DENSE[MASK], DENSE.shape)
KINDS: dict[str, dict[int, Any]] = {
    "rows": {0: ["nonnegative", "l1:0.1"], 1: "simplex:rows", 2: "bounds:-0.5:1.5"},
    "columns": {0: "monotone", 1: ["unimodal", "nonnegative"], 2: "smooth:0.1"},
    "sets": {0: ["smooth:0.05:2", "nonnegative"], 1: "orthonormal", 2: "sparse:3"},
    "one": {1: "nonnegative"},
}
GIVEN: dict[str, tuple[Any, dict[str, Any], np.ndarray]] = {
    "mask": (DENSE, {"mask": MASK}, MASK.astype(float)),
    "stored": (STORED, {"mask": "stored"}, MASK.astype(float)),
    "weights": (DENSE, {"weights": WEIGHTS}, WEIGHTS),
}


@pytest.mark.parametrize("given", GIVEN)
@pytest.mark.parametrize("kind", KINDS)
def test_the_path_of_the_oracle(given: str, kind: str) -> None:
    start, (tensor, how, weights) = random_factors(0, DENSE.shape, 3), GIVEN[given]
    model = amped.cp_als(tensor, 3, init=start, max_iters=6, constraints=KINDS[kind], **how, **HOW)
    factors, objectives = observed_ao_admm(DENSE, weights, start, 6, KINDS[kind])
    np.testing.assert_allclose(model.series["objective"], objectives, rtol=1e-9)
    np.testing.assert_allclose(model.full(), np.einsum("ir,jr,kr->ijk", *factors), atol=1e-8)
    squares = (weights * np.square(DENSE - model.full())).sum()
    assert model.series["rmse"][-1] == pytest.approx(np.sqrt(squares / weights.sum()))
    assert (np.diff(model.series["objective"]) <= 1e-12 * objectives[0]).all()


def test_compiled_code_in_single_precision() -> None:
    start = random_factors(0, DENSE.shape, 3)
    how = HOW | {"precision": "fp32", "deterministic": True}
    model = amped.cp_als(STORED, 3, init=start, max_iters=6, mask="stored", constraints=KINDS["rows"], **how)
    _, objectives = observed_ao_admm(DENSE, MASK.astype(float), start, 6, KINDS["rows"])
    np.testing.assert_allclose(model.series["objective"], objectives, rtol=1e-4)
    assert -0.5 <= model.factors[2].min() <= model.factors[2].max() <= 1.5
    assert model.factors[0].min() >= 0


def test_each_row_is_at_its_optimum() -> None:
    start = random_factors(0, DENSE.shape, 3)
    how = HOW | {"init": start, "mask": MASK, "max_iters": 400, "constraints": {1: "nonnegative"}}
    model = amped.cp_als(DENSE, 3, **how)
    scaled = [model.factors[0], model.factors[1] * model.weights, model.factors[2]]
    design = np.einsum("ir,kr->ikr", scaled[0], scaled[2])
    for j in range(DENSE.shape[1]):
        seen = MASK[:, j]
        best = lsq_linear(design[seen], DENSE[:, j][seen], bounds=(0, np.inf))
        found = np.square(design[seen] @ scaled[1][j] - DENSE[:, j][seen]).sum() / 2
        assert found == pytest.approx(best.cost, rel=1e-4)


def test_rows_without_elements() -> None:
    mask = MASK.copy()
    mask[2], mask[:, 3] = False, False
    how = HOW | {"mask": mask, "max_iters": 20}
    model = amped.cp_als(DENSE, 2, constraints={0: "nonnegative", 1: "smooth:1"}, **how)
    assert not model.factors[0][2].any()
    between = model.factors[1][[2, 4]]
    assert (between.min(axis=0) <= model.factors[1][3] + 1e-6).all()
    assert (model.factors[1][3] <= between.max(axis=0) + 1e-6).all()
    model = amped.cp_als(DENSE, 2, constraints={0: "simplex:rows"}, **how)
    np.testing.assert_allclose(model.factors[0][2], 0.5)


def test_smooth_columns_predict_missing_elements_better() -> None:
    clean, noisy = smooth_tensor(0, (10, 40, 8), 1.0)
    mask = np.random.default_rng(1).random(clean.shape) < 0.15
    errors = []
    for constraints in ({1: "nonnegative"}, {1: ["nonnegative", "smooth:3"]}):
        model = amped.cp_als(noisy, 3, max_iters=60, starts=2, constraints=constraints, mask=mask, **HOW)
        errors.append(np.linalg.norm((model.full() - clean)[~mask]))
    assert errors[1] < 0.8 * errors[0]


def test_held_out_elements() -> None:
    how = HOW | {"mask": MASK, "max_iters": 12, "constraints": {1: ["nonnegative", "unimodal"]}}
    model = amped.cp_als(DENSE, 4, holdout=0.2, **how)
    errors = model.series["holdout_rmse"]
    assert model.run["best_iteration"] == int(np.argmin(errors)) + 1
    assert model.factors[1].min() >= 0


@pytest.mark.parametrize("given", ["stored", "weights"])
def test_a_resumed_run_is_the_uninterrupted_one(folder: Path, given: str) -> None:
    tensor, how, _ = GIVEN[given]
    how = HOW | how | {"constraints": KINDS["columns"]}
    whole = amped.cp_als(tensor, 3, max_iters=6, **how)
    amped.cp_als(tensor, 3, max_iters=2, checkpoint="c", **how)
    rest = amped.cp_als(tensor, 3, max_iters=6, checkpoint="c", resume=True, **how)
    assert rest.series == whole.series


def test_a_plan() -> None:
    assert amped.plan(STORED, 3, mask="stored", device="cpu").device_bytes
