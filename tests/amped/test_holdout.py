"""Held-out elements: the model of the best iteration predicts elements that were not seen."""

from __future__ import annotations

import json
import shlex
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from command import refused, run_amped, succeeded, write_tns
from missing import stored

import amped
from amped.methods.driver import MethodState, best_iteration, is_stale
from partitioner.tensors.held_out import drawn

SHAPE, NOISE = (24, 22, 20), 0.1
HOW: dict[str, Any] = {"device": "cpu", "precision": "fp64", "tol": 0}


def planted(rank: int = 3, share: float = 0.2, seed: int = 0) -> tuple[np.ndarray, np.ndarray]:
    """Return a tensor with noise, and which elements are observed."""
    rng = np.random.default_rng(seed)
    exact = np.einsum("ir,jr,kr->ijk", *(rng.normal(size=(length, rank)) for length in SHAPE))
    return exact + NOISE * rng.normal(size=SHAPE), rng.random(SHAPE) < share


@pytest.mark.parametrize("precision", ["fp32", "fp64"])
def test_unobserved_elements_are_predicted(precision: str) -> None:
    noisy, seen = planted()
    how = HOW | {"precision": precision}
    model = amped.cp_als(stored(noisy, seen), 3, mask="stored", holdout=0.1, starts=3, max_iters=100, **how)
    unseen = noisy - model.full()
    assert np.sqrt(np.mean(np.square(unseen[~seen]))) <= 1.1 * NOISE
    errors = model.series["holdout_rmse"]
    assert len(errors) == len(model.fits) < 100  # patience ends it
    assert model.converged
    assert model.run["best_iteration"] == np.argmin(errors) + 1
    held = drawn(np.argwhere(seen).T.astype(np.int32), 0.1, 0)
    at = np.argwhere(seen)[held]
    assert model.run["held_out"] == len(at) == pytest.approx(0.1 * seen.sum(), rel=0.1)
    differences = model.predict(at) - noisy[tuple(at.T)]
    assert np.sqrt(np.mean(np.square(differences))) == pytest.approx(min(errors), rel=1e-5)


def test_the_best_iteration_is_kept() -> None:
    noisy, seen = planted(share=0.1)
    tensor = stored(noisy, seen)
    held = np.zeros(SHAPE, bool)
    held[::2, ::3] = True
    kept = amped.cp_als(tensor, 8, mask="stored", holdout=held, patience=5, max_iters=60, **HOW)
    best = kept.run["best_iteration"]
    assert len(kept.fits) > best
    part = stored(noisy, seen & ~held)
    alone = amped.cp_als(part, 8, mask="stored", max_iters=best, **HOW)
    np.testing.assert_allclose(kept.full(), alone.full(), rtol=1e-9, atol=1e-9)
    differences = (alone.full() - noisy)[seen & held]
    assert kept.series["holdout_rmse"][best - 1] == pytest.approx(np.sqrt(np.mean(np.square(differences))), rel=1e-9)
    np.testing.assert_allclose(kept.fits[:best], alone.fits, rtol=1e-9)
    sparse = amped.cp_als(tensor, 8, mask="stored", holdout=stored(noisy, held), patience=5, max_iters=4, **HOW)
    assert sparse.series["holdout_rmse"] == pytest.approx(kept.series["holdout_rmse"][:4], rel=1e-9)


def test_kinds_of_observed_elements_agree() -> None:
    noisy, seen = planted()
    gaps = np.where(seen, noisy, np.nan)
    how = HOW | {"holdout": 0.2, "holdout_seed": 7, "max_iters": 4}
    expected = amped.cp_als(stored(noisy, seen), 2, mask="stored", **how).series["holdout_rmse"]
    for tensor, observed in [(gaps, {"mask": "nan"}), (noisy, {"mask": seen}), (noisy, {"weights": seen * 1.0})]:
        model = amped.cp_als(tensor, 2, **observed, **how)
        np.testing.assert_allclose(model.series["holdout_rmse"], expected, rtol=1e-10)
    other = amped.cp_als(gaps, 2, mask="nan", **(how | {"holdout_seed": 8})).series["holdout_rmse"]
    assert other != pytest.approx(expected, rel=1e-6)


@pytest.mark.parametrize("compiled", ["always", "never"])
def test_weights_count_in_the_error(compiled: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("AMPED_COMPILE", compiled)
    noisy, seen = planted()
    weights = np.where(seen, np.random.default_rng(3).integers(1, 4, SHAPE), 0.0)
    held = np.random.default_rng(4).random(SHAPE) < 0.2
    model = amped.cp_als(noisy, 3, weights=weights, holdout=held, max_iters=5, **HOW)
    squares = weights * np.square(noisy - model.full())
    expected = np.sqrt(squares[held].sum() / weights[held].sum())
    assert min(model.series["holdout_rmse"]) == pytest.approx(expected, rel=1e-9)
    fitted = np.sqrt(squares[~held].sum() / weights[~held].sum())
    assert model.series["rmse"][model.run["best_iteration"] - 1] == pytest.approx(fitted, rel=1e-9)


def counted(share: float = 0.3) -> tuple[np.ndarray, np.ndarray]:
    """Return counts of three components, and which elements are observed."""
    rng = np.random.default_rng(0)
    exact = np.einsum("ir,jr,kr->ijk", *(rng.gamma(1, size=(length, 3)) for length in SHAPE))
    return rng.poisson(exact).astype(float), rng.random(SHAPE) < share


@pytest.mark.parametrize(("method", "compiled"), [("lbfgs", "never"), ("newton", "always")])
def test_losses_keep_the_best_iteration(method: Any, compiled: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("AMPED_COMPILE", compiled)
    counts, seen = counted()
    held = seen & (np.random.default_rng(1).random(SHAPE) < 0.3)
    how = HOW | {"loss": "poisson", "method": method}
    kept = amped.cp(counts, 6, mask=seen, holdout=held, patience=4, max_iters=60, **how)
    deviances, best = kept.series["holdout_deviance"], kept.run["best_iteration"]
    assert best == np.argmin(deviances) + 1 < len(deviances) < 60
    rest = amped.cp(counts, 6, mask=seen & ~held, max_iters=best, **how)
    np.testing.assert_allclose(kept.full(), rest.full(), rtol=1e-6, atol=1e-9)
    x, m = counts[held], rest.full()[held]
    logs = np.where(x > 0, x * np.log((m + 1e-10) / np.maximum(x, 1)), 0)
    assert min(deviances) == pytest.approx(2 * np.mean(m - x - logs), rel=1e-6)
    assert kept.series["holdout_loss"][best - 1] == pytest.approx(np.mean(m - x * np.log(m + 1e-10)), rel=1e-6)
    squares = amped.cp(counts, 3, method=method, mask=seen, holdout=held, max_iters=3, **HOW)
    rmse = np.sqrt(np.mean(np.square(squares.full() - counts)[held]))
    assert min(squares.series["holdout_rmse"]) == pytest.approx(rmse, rel=1e-6)


def test_all_elements_of_a_dense_tensor_are_observed() -> None:
    noisy, _ = planted()
    model = amped.cp_als(noisy, 3, holdout=0.1, max_iters=20, starts=2, **HOW)
    assert model.run["held_out"] == pytest.approx(0.1 * noisy.size, rel=0.1)
    assert min(model.series["holdout_rmse"]) < 1.1 * NOISE


def test_resumed_runs_keep_the_best_iteration(folder: Path) -> None:
    noisy, seen = planted(share=0.1)
    tensor = stored(noisy, seen)
    how = HOW | {"mask": "stored", "holdout": 0.2, "patience": 6}
    whole = amped.cp_als(tensor, 8, max_iters=60, **how)
    best = whole.run["best_iteration"]
    assert best < len(whole.fits) - 1
    amped.cp_als(tensor, 8, max_iters=best + 1, checkpoint=folder / "c", **how)
    rest = amped.cp_als(tensor, 8, max_iters=60, checkpoint=folder / "c", resume=True, **how)
    assert rest.run["best_iteration"] == best
    assert rest.series["holdout_rmse"] == pytest.approx(whole.series["holdout_rmse"], rel=1e-9)
    np.testing.assert_allclose(rest.full(), whole.full(), rtol=1e-9, atol=1e-9)
    with pytest.raises(amped.InputError, match=r"was made with holdout 0\.2, seed 0, this run has 0\.2, seed 1"):
        amped.cp_als(tensor, 8, checkpoint=folder / "c", resume=True, **(how | {"holdout_seed": 1}))
    loaded = amped.cp_als(tensor, 8, max_iters=2, **how)
    loaded.save(folder / "m.npz")
    assert amped.load(folder / "m.npz").series["holdout_rmse"] == loaded.series["holdout_rmse"]


def test_a_draw_depends_on_indices_alone() -> None:
    columns = np.stack(np.unravel_index(np.arange(40_000), (40, 50, 20))).astype(np.int32)
    chosen = drawn(columns, 0.3, 5)
    assert chosen.mean() == pytest.approx(0.3, abs=0.01)
    for mode, length in enumerate((40, 50, 20)):  # no row is preferred
        shares = np.bincount(columns[mode], chosen, length) / np.bincount(columns[mode], minlength=length)
        assert np.abs(shares - 0.3).max() < 0.1
    order = np.random.default_rng(0).permutation(chosen.size)
    np.testing.assert_array_equal(drawn(columns[:, order], 0.3, 5), chosen[order])
    assert (drawn(columns, 0.3, 6) & chosen).mean() == pytest.approx(0.09, abs=0.01)
    assert (drawn(columns, 0.5, 5) | ~chosen).all()  # a larger fraction has the elements of a smaller one


def state(*errors: float) -> MethodState:
    return MethodState({}, {"fit": [0.5] * len(errors), "holdout_rmse": list(errors)}, len(errors))


def test_patience() -> None:
    assert best_iteration(state()) is None
    assert best_iteration(state(3, 1, 2)) == 2
    assert not is_stale(state(3, 1, 2), 2)
    assert is_stale(state(3, 1, 2, 2), 2)
    assert is_stale(state(1, 0.99995, 0.9999), 2)  # below 0.01 %
    assert not is_stale(state(1, 0.99995, 0.99985), 2)
    assert not is_stale(state(1, 1, 1), None)
    assert is_stale(state(0, 0), 1)


@pytest.mark.parametrize(
    ("arguments", "cause"),
    [
        ({"holdout": 0}, "holdout 0: expected a fraction between 0 and 1"),
        ({"holdout": 1}, "holdout 1: expected a fraction"),
        ({"holdout": -0.5}, "holdout -0.5"),
        ({"holdout": float("nan")}, "holdout nan"),
        ({"holdout": True}, "holdout is of type bool"),
        ({"holdout": np.ones((3, 2))}, r"holdout has shape \(3, 2\)"),
        ({"holdout": np.ones((4, 3, 2))}, "selects all 24 observed elements"),
        ({"holdout": np.zeros((4, 3, 2))}, "selects none"),
        ({"holdout": 1e-12}, "selects none"),
        ({"holdout": 1 - 1e-12}, "selects all"),
        ({"holdout": "no.tns"}, "holdout: .*no such file"),
        ({"holdout": 0.5, "patience": 0}, "patience 0"),
        ({"holdout": 0.5, "holdout_seed": -1}, "holdout_seed -1"),
        ({"holdout_seed": 3}, "holdout_seed 3 needs holdout"),
        ({"patience": 4}, "patience 4 needs holdout"),
    ],
)
def test_wrong_arguments(arguments: dict[str, Any], cause: str) -> None:
    with pytest.raises(amped.InputError, match=cause):
        amped.cp_als(np.ones((4, 3, 2)), 1, **arguments, **HOW)


def test_wrong_tensors() -> None:
    tensor = amped.SparseTensor([[0, 0, 0], [3, 2, 1]], [1.0, 2.0])
    with pytest.raises(amped.InputError, match="holdout needs mask='stored'"):
        amped.cp_als(tensor, 1, holdout=0.5, **HOW)
    with pytest.raises(amped.InputError, match="mask='nan'"):
        amped.cp_als(np.array([[1.0, np.nan], [2.0, 3.0]]), 1, holdout=0.5, **HOW)
    nonzero = np.zeros((4, 3))
    nonzero[1] = 1
    with pytest.raises(amped.InputError, match="not zero: none of them is left"):
        amped.cp_als(nonzero, 1, holdout=nonzero, **HOW)
    elsewhere = np.zeros((4, 3, 2))
    elsewhere[1] = 1
    with pytest.raises(amped.InputError, match="selects none of the 2 observed"):
        amped.cp_als(tensor, 1, mask="stored", holdout=elsewhere, **HOW)


def test_command_line(folder: Path) -> None:
    noisy, seen = planted()
    tensor = stored(noisy, seen)
    write_tns(folder / "x.tns", tensor.indices, tensor.values)
    flags = ["--rank", 3, "--mask", "stored", "--holdout", 0.2, "--starts", 3, "--tol", 0, "--precision", "fp64"]
    where = ["--device", "cpu", "--threads", 1, "--deterministic"]
    result = succeeded(run_amped("cpd", "x.tns", *flags, "--patience", 4, "--output", "m", *where))
    assert "observed elements are held out (" in result.out
    assert "the held-out RMSE fell by less than 0.01% in 4 iterations); best held-out RMSE 0." in result.out
    record, model = json.loads(Path("m/run.json").read_text()), amped.load("m")
    expected = amped.cp_als(tensor, 3, mask="stored", holdout=0.2, starts=3, patience=4, threads=1, **HOW)
    np.testing.assert_allclose(model.full(), expected.full(), rtol=1e-9, atol=1e-9)
    assert record["holdout_rmse"] == pytest.approx(expected.series["holdout_rmse"], rel=1e-9)
    assert record["best_iteration"] == model.run["best_iteration"] == expected.run["best_iteration"]
    words = shlex.split(record["command"])
    succeeded(run_amped(*words[1:], "--output", "again"))
    np.testing.assert_array_equal(amped.load("again").full(), model.full())
    np.save("held.npy", seen & (np.indices(SHAPE).sum(axis=0) % 4 == 0))
    held = ["--rank", 3, "--mask", "stored", "--holdout", "held.npy", "--max-iters", 3, "--output", "other", *where]
    result = succeeded(run_amped("cpd", "x.tns", *held, "--init", "tucker", "--precision", "fp64", "--tol", 0))
    assert f"{np.load('held.npy').sum():,} observed elements are held out" in result.out
    how = HOW | {"max_iters": 3, "init": "tucker", "threads": 1, "deterministic": True}
    expected = amped.cp_als(tensor, 3, mask="stored", holdout=np.load("held.npy"), **how)
    assert amped.load("other").series["holdout_rmse"] == pytest.approx(expected.series["holdout_rmse"], rel=1e-9)


def test_wrong_flags(folder: Path) -> None:
    write_tns(folder / "x.tns", np.array([[0, 0, 0], [3, 2, 1]]), np.array([1.0, 2.0]))
    cpd = ["cpd", "x.tns", "--rank", 1, "--device", "cpu"]
    for flags, cause in [
        (["--holdout", 0.5], "--holdout needs --mask stored or another mask"),
        (["--mask", "stored", "--holdout", 1], "--holdout 1: expected a fraction between 0 and 1"),
        (["--mask", "stored", "--holdout", "nan"], "--holdout nan"),
        (["--mask", "stored", "--holdout", "none.tns"], "none.tns: no such file"),
        (["--patience", 3], "--patience needs --holdout"),
        (["--holdout-seed", 3], "--holdout-seed needs --holdout"),
        (["--mask", "stored", "--holdout", 0.5, "--patience", 0], "--patience 0"),
        (["--loss", "poisson", "--method", "mu", "--holdout", 0.5], "method 'mu' supports no holdout"),
    ]:
        refused(run_amped(*cpd, *flags), cause)
