"""Generalised CP by stochastic gradients: from Python and the command line."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest
from command import refused, run_amped, succeeded
from forms import in_turn
from gcp import model_array, oracle, values_for
from oracle import random_factors

import amped
from amped.backend.cuda import probe
from amped.backend.known_losses import KNOWN, loss_of
from amped.models.matching import factor_match

SHAPE = (12, 10, 8)
SOME: dict[str, Any] = {"method": "adam", "rate": 0.02, "steps": 40, "samples": 60, "max_iters": 4, "precision": "fp64"}


def sparse(array: np.ndarray) -> amped.SparseTensor:
    return amped.SparseTensor(np.argwhere(array), array[array != 0], array.shape)


COUNTS = values_for("poisson", model_array(random_factors(0, SHAPE, 2)) / 2)


def few_counts() -> amped.SparseTensor:
    """Return a tensor of which a quarter is not zero."""
    return sparse(COUNTS)


def planted(shape: tuple[int, ...], rank: int) -> tuple[list[np.ndarray], amped.SparseTensor]:
    """Return factor matrices, and a binary tensor drawn from the odds of their model."""
    rng = np.random.default_rng(2)
    factors = [2 * rng.random((length, rank)) ** 3 for length in shape]
    odds = 1.5 * model_array(factors)
    return factors, sparse((rng.random(shape) < odds / (1 + odds)).astype(np.float64))


@pytest.mark.parametrize("sampling", ["stratified", "semi-stratified", "uniform", "nonzeros"])
def test_planted_factors_are_recovered(sampling: Any) -> None:
    factors, tensor = planted((60, 50, 40), 3)
    given = {"steps": 60, "samples": 4000} if sampling == "nonzeros" else {"steps": 100, "samples": 1500}
    model = amped.cp(
        tensor, 3, loss="bernoulli-odds", method="adam", rate=0.02, sampling=sampling, max_iters=10, **given
    )  # type: ignore[arg-type]  # fmt: skip
    assert factor_match([factor.astype(np.float64) for factor in model.factors], factors) > 0.95
    assert {name: model.run[name] for name in ("sampling", *given)} == {"sampling": sampling, **given}


def test_the_best_of_several_starts_is_the_run_with_its_seed() -> None:
    """The samples belong to the seed, too."""
    best = amped.cp(few_counts(), 3, loss="poisson", seed=4, starts=3, **SOME)
    single = [amped.cp(few_counts(), 3, loss="poisson", seed=seed, **SOME).series["objective"] for seed in (4, 5, 6)]
    assert best.series["objective"] == min(single, key=lambda objective: objective[-1])
    assert best.series["objective"] == single[best.run["seed"] - 4]


@pytest.mark.parametrize(("method", "compiled"), in_turn(["adam", "adagrad", "sgd"], ["never", "always"]))
def test_every_method_comes_close_to_the_optimum(method: Any, compiled: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("AMPED_COMPILE", compiled)
    tensor = few_counts()
    best = amped.cp(tensor, 2, loss="poisson", method="lbfgs", precision="fp64").series["objective"][-1]
    rates = {"adam": 0.02, "adagrad": 0.2, "sgd": 0.001}
    model = amped.cp(
        tensor, 2, loss="poisson", method=method, rate=rates[method], steps=150, samples=200, max_iters=12,
        precision="fp64",
    )  # fmt: skip
    objective = oracle(COUNTS, [model.factors[0] * model.weights, *model.factors[1:]], "poisson")[0]
    first = amped.cp(tensor, 2, loss="poisson", method=method, rate=1e-12, steps=1, max_iters=1).series["objective"][0]
    assert objective - best < 0.1 * (first - best)
    assert model.series["objective"][-1] == pytest.approx(objective, rel=0.1)
    assert list(model.series["objective"]) == sorted(model.series["objective"], reverse=True)


NAMES = [name for name, known in KNOWN.items() if name != "zero-truncated-poisson" and known.default is None]


@pytest.mark.parametrize("name", ["huber:0.7", "negative-binomial:2", "beta:0.5", *NAMES])
def test_every_loss_decreases_within_its_bounds(name: str) -> None:
    array = values_for(name, model_array([f + 0.1 for f in random_factors(0, SHAPE, 2)]))
    array[:, :, 3:] = 0
    model = amped.cp(sparse(array), 2, loss=name, **SOME)
    objectives = model.series["objective"]
    assert objectives[-1] < objectives[0]
    assert not loss_of(name).nonnegative or min(factor.min() for factor in model.factors) >= 0
    assert model.loss == loss_of(name).name


def test_large_tensors_need_no_closed_form() -> None:
    places = np.random.default_rng(0).integers(0, 5000, (300, 3))
    tensor = amped.SparseTensor(places, np.ones(300), (5000, 5000, 5000))
    model = amped.cp(tensor, 2, loss="bernoulli-odds", **{**SOME, "samples": 2000, "max_iters": 8})
    assert model.series["objective"][-1] < model.series["objective"][0]
    with pytest.raises(
        amped.InputError, match=r"use method 'adam'; or use mask 'stored' if absent elements are unknown"
    ):
        amped.cp(tensor, 2, loss="bernoulli-logit")


@pytest.mark.parametrize("mask", ["stored", "array", None])
def test_samples_of_observed_elements(mask: Any) -> None:
    """With at least as many samples as elements, gradients and objectives are exact."""
    array = values_for("gamma", model_array([f + 0.3 for f in random_factors(0, SHAPE, 2)]))
    seen = np.random.default_rng(1).random(SHAPE) < 0.4
    tensor, chosen = {"stored": (sparse(array * seen), "stored"), "array": (array, seen), None: (array, None)}[mask]
    model = amped.cp(tensor, 2, loss="gamma", mask=chosen, **{**SOME, "samples": 10**6})
    factors = [model.factors[0] * model.weights, *model.factors[1:]]
    value = oracle(array, factors, "gamma", 1.0 if mask is None else seen)[0]
    assert model.series["objective"][-1] == pytest.approx(value, rel=1e-10)
    assert model.run["sampling"] == "uniform"


def test_constraints() -> None:
    tensor, start = few_counts(), random_factors(3, SHAPE, 2)
    given = {**SOME, "init": start, "sampling": "nonzeros"}
    plain = amped.cp(tensor, 2, nonnegative=(0,), fixed_modes=(2,), **given)
    assert plain.factors[0].min() >= 0
    np.testing.assert_allclose(plain.factors[2], start[2] / np.abs(start[2]).sum(axis=0), rtol=1e-12)
    free, ridge = (amped.cp(tensor, 2, ridge=weight, **given) for weight in (0.0, 20.0))
    assert ridge.weights.sum() < 0.8 * free.weights.sum()
    assert ridge.series["objective"][-1] > free.series["objective"][-1]


def same(one: amped.KruskalTensor, other: amped.KruskalTensor) -> bool:
    pairs = zip((one.weights, *one.factors), (other.weights, *other.factors), strict=True)
    return one.series == other.series and all(a.tobytes() == b.tobytes() for a, b in pairs)


@pytest.mark.parametrize("method", ["adam", "adagrad", "sgd"])
@pytest.mark.parametrize("precision", ["fp32", "fp64"])
def test_a_resumed_run_takes_the_same_steps(tmp_path: Path, method: Any, precision: Any) -> None:
    tensor = few_counts()
    given: dict[str, Any] = {**SOME, "loss": "poisson", "method": method, "rate": 0.3, "seed": 5, "tol": 0}
    given |= {"max_iters": 6, "precision": precision}
    whole = amped.cp(tensor, 2, **given)
    assert method == "adagrad" or len(set(whole.series["rate"])) > 1  # epochs that failed
    side = {"checkpoint": tmp_path / "c", **given}
    amped.cp(tensor, 2, callback=lambda epoch, _: epoch == 3, **side)
    assert same(amped.cp(tensor, 2, resume=True, **side), whole)
    with pytest.raises(amped.InputError, match="was made with steps 40, this run has 30"):
        amped.cp(tensor, 2, resume=True, **{**side, "steps": 30})


@pytest.mark.gpu
@pytest.mark.parametrize("sampling", ["stratified", "semi-stratified", "uniform", "nonzeros"])
@pytest.mark.parametrize("method", ["adam", "adagrad", "sgd"])
def test_a_gpu_takes_the_steps_of_a_cpu(method: Any, sampling: Any) -> None:
    if missing := probe():
        pytest.skip(missing)
    rates = {"adam": 0.02, "adagrad": 0.1, "sgd": 0.0005}
    given = SOME | {"loss": "poisson", "method": method, "rate": rates[method], "sampling": sampling, "steps": 70}
    cpu, gpu = (amped.cp(few_counts(), 2, device=device, **given) for device in ("cpu", "cuda"))
    assert gpu.run["device"] == "cuda"
    assert cpu.series["objective"][-1] < cpu.series["objective"][0]
    np.testing.assert_allclose(gpu.series["objective"], cpu.series["objective"], rtol=1e-7)
    for one, other in zip(cpu.factors, gpu.factors, strict=True):
        np.testing.assert_allclose(one, other, rtol=1e-5, atol=1e-7)
    given |= {"precision": "fp32", "device": "cuda", "deterministic": True}
    assert same(*(amped.cp(few_counts(), 2, **given) for _ in range(2)))


def test_seeds() -> None:
    tensor = few_counts()
    one, again, other = (amped.cp(tensor, 2, loss="poisson", seed=seed, **SOME) for seed in (1, 1, 1 << 70))
    assert same(one, again)
    assert not same(one, other)
    best = amped.cp(tensor, 2, loss="poisson", seed=1, starts=2, **SOME)
    assert best.series["objective"][-1] <= one.series["objective"][-1]


def test_a_run_that_never_improves_ends_with_a_warning() -> None:
    array = np.zeros(SHAPE)
    array[0, 0, 0] = 1
    start = [np.zeros((length, 2)) for length in SHAPE]  # a saddle point
    with pytest.warns(amped.InputWarning, match="method 'adam': none of 10 epochs decreased the estimated objective"):
        model = amped.cp(sparse(array), 2, init=start, **{**SOME, "max_iters": 50})
    assert (model.run["iterations"], model.converged) == (10, True)


def test_a_failed_epoch_is_undone() -> None:
    given = {**SOME, "rate": 1e12, "max_iters": 10, "init": random_factors(1, SHAPE, 2)}
    with pytest.warns(amped.InputWarning, match="none of 10 epochs"):
        model = amped.cp(few_counts(), 2, loss="poisson-log", **given)
    assert np.isfinite(model.series["objective"]).all()
    assert len(set(model.series["objective"])) == 1
    assert model.series["rate"][-1] == pytest.approx(1e3)


@pytest.mark.parametrize(
    ("given", "what"),
    [
        ({"method": "lbfgs", "samples": 3}, "samples requires method 'adam', 'sgd' or 'adagrad', not 'lbfgs'"),
        ({"loss": "poisson", "rate": 0.1}, "rate requires method"),
        ({"method": "adam", "sampling": "all"}, "sampling is 'all': expected 'stratified'"),
        ({"method": "adam", "samples": 0}, "samples"),
        ({"method": "adam", "steps": 0}, "steps"),
        ({"method": "adam", "rate": 0.0}, "rate"),
        ({"method": "adam", "weights": 1.0 + COUNTS}, "method 'adam' supports no weights"),
        ({"method": "adam", "loss": "bernoulli-logit"}, "expects 0 or 1"),
        ({"method": "adam", "loss": "zero-truncated-poisson"}, "but absent elements are 0"),
        ({"method": "adam", "device_memory": 1000}, "device memory: nonzeros, factor matrices and gradients need"),
    ],
)
def test_what_is_refused(given: dict[str, Any], what: str) -> None:
    with pytest.raises(amped.InputError) as error:
        amped.cp(few_counts(), 2, **given)
    assert what in str(error.value)
    assert "\n" not in str(error.value)


def test_held_out_elements_choose_the_epoch() -> None:
    model = amped.cp(few_counts(), 2, loss="poisson", mask="stored", holdout=0.2, **SOME)
    assert len(model.series["holdout_deviance"]) == len(model.series["objective"])


def test_the_command_line(tmp_path: Path) -> None:
    path, folder = tmp_path / "t.tns", tmp_path / "m"
    tensor = few_counts()
    rows = np.column_stack([tensor.columns.T + 1, tensor.values])
    np.savetxt(path, rows, fmt="%g")
    flags = ["--loss", "poisson", "--method", "adam", "--rate", "0.02", "--steps", "40", "--samples", "60"]
    flags += ["--max-iters", "3", "--precision", "fp64", "--seed", "4"]
    result = succeeded(run_amped("cpd", path, "--rank", 2, *flags, "--sampling", "uniform", "--output", folder))
    assert "note: method 'adam' estimates gradients from samples" in result.out
    model = amped.load(folder)
    given: dict[str, Any] = {**SOME, "max_iters": 3, "sampling": "uniform", "seed": 4, "shape": None}
    del given["shape"]
    assert model.series == amped.cp(amped.read(path), 2, loss="poisson", **given).series
    assert model.run["sampling"] == "uniform"
    plan = succeeded(run_amped("plan", path, "--rank", 2, "--method", "adam", "--loss", "poisson", "--ranks", 3)).out
    assert "moments" in plan
    assert "No time estimate: the time of stochastic gradients is not predicted" in plan
    refused(
        run_amped("cpd", path, "--rank", 2, "--samples", "3"), "--samples requires method 'adam', 'sgd' or 'adagrad'"
    )
    planned = amped.plan(tensor, 2, loss="poisson", method="sgd", device="cpu")
    assert planned is not None
    assert planned.device_bytes[0]["moments"] == 0
