"""CP-ALS by default: short runs choose the start of small tensors, and explicit parameters keep their meaning."""

from __future__ import annotations

import json
import shlex
import warnings
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import pytest
from command import run_amped, succeeded

import amped
from amped.runs.starting import SHORT_RUNS

CPU: dict[str, Any] = {"device": "cpu"}


def exact(seed: int, shape: tuple[int, ...] = (5, 6, 7), rank: int = 2) -> np.ndarray:
    rng = np.random.default_rng(seed)
    return np.einsum("ir,jr,kr->ijk", *[rng.normal(size=(length, rank)) for length in shape])


def sparse(array: np.ndarray) -> amped.SparseTensor:
    return amped.SparseTensor(np.argwhere(array), array[array != 0], array.shape)


@pytest.mark.parametrize("seed", range(8))
def test_small_tensors_reach_their_optimum(seed: int) -> None:
    X = exact(seed)
    for tensor in (X, sparse(X)):
        model = amped.cp_als(tensor, 2, **CPU)
        assert model.fits[-1] > 0.999
        assert (model.run["init"], model.run["seed"]) == (SHORT_RUNS, None)
    assert amped.cp(X, 2, **CPU).fits == amped.cp_als(X, 2, **CPU).fits


@pytest.mark.parametrize("given", [{"max_iters": 50}, {"tol": 1e-5}, {"max_iters": 50, "tol": 1e-5, "seed": 0}])
def test_limits_select_a_random_start_and_plain_iterations(given: dict[str, Any]) -> None:
    model = amped.cp_als(exact(0), 2, **given, **CPU)
    assert model.fits == amped.cp_als(exact(0), 2, max_iters=50, tol=1e-5, seed=0, **CPU).fits
    assert (model.run["init"], model.run["seed"]) == (None, 0)


def test_a_seed_selects_a_random_start() -> None:
    """The first iterations are plain ones; then accelerated ones reach a higher fit than as many plain ones."""
    X = exact(0, (10, 10, 10), 4)
    model, plain = amped.cp_als(X, 4, seed=5, **CPU), amped.cp_als(X, 4, seed=5, max_iters=30, tol=0, **CPU)
    assert model.fits[:3] == plain.fits[:3]
    assert model.fits[-1] > 0.99
    assert model.run["seed"] == 5


def test_checkpoints_imply_plain_iterations(tmp_path: Path) -> None:
    X = exact(0)
    model = amped.cp_als(X, 2, checkpoint=tmp_path / "c", **CPU)
    assert model.fits == amped.cp_als(X, 2, max_iters=50, **CPU).fits


LIMITS: list[dict[str, Any]] = [{}, {"max_iters": 50, "accelerate": True}]


def test_constraints_and_missing_elements_have_the_usual_limits() -> None:
    X = np.abs(exact(0))
    for given in ({"nonnegative": True}, {"ridge": 0.1}, {"mask": X > 0.1}):
        found, expected = (amped.cp_als(X, 2, **given, **limits, **CPU) for limits in LIMITS)
        assert found.fits == expected.fits


def test_a_lower_fit_than_that_of_a_short_run_is_a_warning() -> None:
    """A start of zeros in one component cannot find it."""
    X, start = exact(1), [np.ones((length, 2)) for length in (5, 6, 7)]
    with pytest.warns(UserWarning, match="a short run from another start reached"):
        amped.cp_als(X, 2, init=start, **CPU)
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        amped.cp_als(X, 2, **CPU)
        amped.cp_als(X, 2, init=start, max_iters=50, **CPU)


def test_zeros() -> None:
    model = amped.cp_als(np.zeros((3, 3, 3)), 2, **CPU)
    assert model.run["init"] is None


def test_a_model_of_another_rank_is_a_start(tmp_path: Path) -> None:
    X = exact(2, (8, 7, 6), 4)
    model = amped.cp_als(X, 3, max_iters=100, tol=0, seed=1, **CPU)
    model.save(tmp_path / "m.npz")
    for init in (model, tmp_path / "m.npz"):
        wider, narrower = (amped.cp_als(X, rank, init=init, max_iters=1, **CPU) for rank in (4, 2))
        assert wider.fits[0] > model.fits[-1] - 1e-3
        assert narrower.rank == 2
        assert narrower.fits[0] > amped.cp_als(X, 2, seed=1, max_iters=1, **CPU).fits[0]
    with pytest.raises(amped.InputError, match="expected \\(8, 3\\)"):
        amped.cp_als(X, 3, init=[np.ones((length, 2)) for length in X.shape], **CPU)


def test_a_model_of_other_labels_is_a_start() -> None:
    """Rows of common labels are matched; a new one begins with the mean."""
    names = [(a, b, c) for a in "abcde" for b in "wxyz" for c in "pqrs"]
    frame = pd.DataFrame(names, columns=["A", "B", "C"])
    frame["value"] = exact(3, (5, 4, 4)).reshape(-1)
    model = amped.cp_als(amped.from_frame(frame, ["A", "B", "C"], "value"), 2, **CPU)
    other = frame[frame.A != "b"].replace({"A": {"c": "new"}})
    X = amped.from_frame(other, ["A", "B", "C"], "value")
    first = amped.cp_als(X, 2, init=model, max_iters=1, **CPU)
    assert first.shape == (4, 4, 4)
    assert first.fits[0] > 0.99  # mode 0 is solved from the others, whose rows are known


def test_the_command_line_does_the_same(tmp_path: Path) -> None:
    X, path = exact(4), tmp_path / "x.npy"
    np.save(path, X)
    succeeded(run_amped("cpd", path, "--rank", 2, "--device", "cpu", "--output", tmp_path / "m"))
    record = json.loads((tmp_path / "m" / "run.json").read_text())
    assert record["init"] == SHORT_RUNS
    assert record["fits"] == list(amped.cp_als(X, 2, **CPU).fits)
    assert "--init" not in shlex.split(record["command"])
    assert "--max-iters" not in shlex.split(record["command"])
