"""Generalised CP: losses, gradients and decompositions from Python, compared with dense oracles and references."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest
from command import refused, run_amped, succeeded
from forms import exhaustive, in_turn
from gcp import REFERENCES, TOLERANCE, Reference, check_reference, model_array, oracle, values_for
from oracle import load, machine_of, random_factors, reference, splitmix_factors

import amped
from amped.backend.known_losses import KNOWN, loss_of
from amped.methods.quasi_newton import MOST_TRIALS
from amped.models.deviance import best_values
from amped.models.matching import factor_match
from amped.parallel.mpi import world
from amped.runs import loss_elements

pytestmark = pytest.mark.in_turn

NAMES = ["huber:0.7", "negative-binomial:2", "beta:0.5", *(n for n, known in KNOWN.items() if known.default is None)]
SHAPE = (6, 5, 4)


@pytest.fixture(autouse=True, params=["never", "always"])
def _compiled(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> None:
    """Run with and without compiled code."""
    monkeypatch.setenv("AMPED_COMPILE", request.param)


def check(found: Any, want: tuple[float, list[np.ndarray]], rtol: float) -> None:
    assert found[0] == pytest.approx(want[0], rel=rtol)
    for gradient, expected in zip(found[1], want[1], strict=True):
        np.testing.assert_allclose(gradient, expected, atol=rtol * np.linalg.norm(expected))


@pytest.mark.parametrize("precision", TOLERANCE)
@pytest.mark.parametrize("dense", [False, True])
@pytest.mark.parametrize("case", REFERENCES)
def test_the_reference_at_the_start(case: Reference, dense: bool, precision: Any, device: Any) -> None:
    check_reference(world(), case, dense, precision, device)


@pytest.mark.parametrize("name", NAMES)
def test_values_and_gradients(name: str) -> None:
    factors = random_factors(0, SHAPE, 3)
    array = values_for(name, model_array(factors))
    array[2] = 1.0
    want = oracle(array, factors, name)
    check(amped.objective(array, factors, loss=name), want, 1e-12)
    check(amped.objective(np.asfortranarray(array), factors, loss=name), want, 1e-12)
    assert amped.objective(array, factors, loss=name, gradient=False) == pytest.approx(want[0], rel=1e-12)
    sparse = amped.SparseTensor(np.argwhere(array), array[array != 0], SHAPE)
    check(amped.objective(sparse, factors, loss=name), want, 1e-12)
    seen = np.random.default_rng(1).random(SHAPE) < 0.05
    seen[0, 0, 0] = True
    for some in (seen, ~seen):  # a list of elements, and an array with gaps
        check(amped.objective(array, factors, loss=name, mask=some), oracle(array, factors, name, some), 1e-12)
    weights = seen + 0.5 * (array > 1)
    check(amped.objective(array, factors, loss=name, weights=weights), oracle(array, factors, name, weights), 1e-12)


@pytest.mark.parametrize("shape", [(4, 3), (3, 4, 2), (3, 1, 4, 2), (2, 3, 2, 3, 2), (2, 2, 3, 1, 2, 2)])
@pytest.mark.parametrize("rank", [1, 7])
def test_orders_and_ranks(shape: tuple[int, ...], rank: int) -> None:
    factors = random_factors(0, shape, rank)
    counts = np.random.default_rng(0).poisson(model_array(factors)).astype(float)
    counts[0] = 0
    counts.flat[-1] = 3
    sparse = amped.SparseTensor(np.argwhere(counts), counts[counts > 0], shape)
    for tensor in (counts, sparse):
        for name in ("gaussian", "poisson"):
            check(amped.objective(tensor, factors, loss=name), oracle(counts, factors, name), 1e-11)


def test_least_squares_reaches_the_optimum() -> None:
    tensor, want = load("aminoacid_3d"), reference("gcp.json", "aminoacid_3d|R3|gaussian")
    start = splitmix_factors(tensor.shape, 3)
    model = amped.cp(tensor, 3, method="lbfgs", init=start, precision="fp64", tol=1e-11)
    assert model.series["objective"][-1] == pytest.approx(want["f"], rel=1e-8)
    assert model.converged


def test_norms_of_the_columns_of_a_start_do_not_matter() -> None:
    """Only their product does; a component that is zero is left as it is."""
    array = values_for("gaussian", model_array(random_factors(0, (8, 7, 6), 2)))
    start = random_factors(3, array.shape, 3)
    start[1][:, 2] = 0
    scales = np.array([[100, 0.01, 1], [0.1, 10, 1], [0.1, 10, 1]])
    rescaled = [factor * scale for factor, scale in zip(start, scales, strict=True)]
    given: dict[str, Any] = {"method": "lbfgs", "precision": "fp64", "max_iters": 8, "tol": 0}
    one, other = (amped.cp(array, 3, init=init, **given).series["objective"] for init in (start, rescaled))
    np.testing.assert_allclose(one[:4], other[:4], rtol=1e-8)


@pytest.mark.parametrize(("name", "rank"), [("nations_3d", 5), ("kinships_3d", 10)])
def test_binary_data_of_the_reference(name: str, rank: int) -> None:
    model = amped.cp(load(name), rank, loss="bernoulli-logit", seed=3, max_iters=250, precision="fp64")
    assert model.series["objective"][-1] <= reference("gcp.json", f"{name}|R{rank}|bernoulli-logit")["f"]


@pytest.mark.parametrize(("name", "method"), in_turn(NAMES, ["lbfgs", "newton"]))
def test_the_objective_falls_below_that_of_the_planted_model(name: str, method: Any) -> None:
    planted = [f + 0.4 for f in random_factors(0, (8, 7, 6), 2)]
    array = values_for(name, model_array(planted))
    model = amped.cp(array, 2, loss=name, method=method, precision="fp64", max_iters=150, tol=1e-12)
    objectives = np.array(model.series["objective"])
    assert (np.diff(objectives) <= 1e-12 * np.abs(objectives[1:])).all()
    assert objectives[-1] < oracle(array, planted, name)[0]
    factors = [model.factors[0] * model.weights, *model.factors[1:]]
    value = amped.objective(array, factors, loss=name, gradient=False)
    assert value == pytest.approx(objectives[-1], rel=1e-9)
    assert not loss_of(name).nonnegative or min(factor.min() for factor in model.factors) >= 0


@pytest.mark.parametrize("seed", [6, 16])
def test_the_model_is_that_of_the_last_objective(seed: int) -> None:
    """Also if a line search uses up its trials, of which an earlier one was best."""
    rng = np.random.default_rng(seed)
    array = model_array([rng.random((length, 2)) ** 3 for length in SHAPE]) * (rng.random(SHAPE) > 0.1)
    for iterations in (1, 2):
        found = amped.cp(array, 4, loss="beta:-1", seed=seed, max_iters=iterations, tol=0, precision="fp64")
        loss = float(loss_of("beta:-1").of(array.ravel(), found.full().ravel()).sum())
        assert loss == pytest.approx(found.series["objective"][-1], rel=1e-12)
    assert max(found.series["evaluations"]) > MOST_TRIALS, "choose another tensor"


def test_least_squares_with_constraints_is_the_same_as_by_als() -> None:
    """Ridge, non-negative modes and fixed modes; the penalty of ALS refers to the same matrices with a mask only."""
    array = values_for("gaussian", model_array(random_factors(0, (8, 7, 6), 2)))
    start = random_factors(3, (8, 7, 6), 2)
    given: dict[str, Any] = {
        "init": start,
        "nonnegative": (0,),
        "ridge": 0.05,
        "fixed_modes": (2,),
        "precision": "fp64",
    }
    quasi = amped.cp(array, 2, method="lbfgs", tol=1e-13, **given)
    als = amped.cp(array, 2, mask=np.ones(array.shape, bool), max_iters=2000, tol=1e-13, **given)
    assert (quasi.run["method"], als.run["method"]) == ("lbfgs", "als")
    assert quasi.series["objective"][-1] + 0.05 * np.vdot(start[2], start[2]) == pytest.approx(
        als.series["objective"][-1], rel=1e-7
    )
    assert quasi.factors[0].min() >= 0
    np.testing.assert_allclose(quasi.factors[2], start[2] / np.abs(start[2]).sum(axis=0), rtol=1e-12)


@pytest.mark.parametrize("name", ["gaussian", "poisson", "gamma"])
def test_newton_steps_with_weights(name: str) -> None:
    """Of dense and sparse tensors, with masks; those of weight 0 are missing."""
    start, rng = random_factors(3, SHAPE, 2), np.random.default_rng(2)
    array = values_for(name, model_array([f + 0.3 for f in random_factors(0, SHAPE, 2)]))
    weights = rng.choice([0.0, 0.5, 1.0, 3.0], SHAPE)
    given: dict[str, Any] = {"loss": name, "method": "newton", "init": start, "precision": "fp64", "device": "cpu"}
    objectives = amped.cp(array, 2, weights=weights, max_iters=10, ridge=0.01, **given).series["objective"]
    assert (np.diff(objectives) <= 1e-12 * np.abs(objectives[1:])).all()
    if name == "gaussian":  # one step is exact
        als = amped.cp(array, 2, weights=weights, max_iters=10, ridge=0.01, **{**given, "method": "als", "tol": 0})
        np.testing.assert_allclose(objectives, als.series["objective"], rtol=1e-9)
    plain = amped.cp(array, 2, weights=weights, max_iters=5, **given)
    ends = [plain.factors[0] * plain.weights, *plain.factors[1:]]
    assert oracle(array, ends, name, weights)[0] == pytest.approx(plain.series["objective"][-1], rel=1e-10)
    sparse = amped.SparseTensor(np.argwhere(array), array[array != 0], SHAPE)
    for tensor, observed in ((sparse, {}), (array, {"mask": weights > 0})):
        same = amped.cp(tensor, 2, weights=weights, max_iters=5, **observed, **given)  # type: ignore[arg-type]
        np.testing.assert_allclose(same.series["objective"], plain.series["objective"], rtol=1e-10)
    masked = amped.cp(array, 2, mask=weights > 0, max_iters=5, **given)
    ones = amped.cp(array, 2, weights=2.0 * (weights > 0), max_iters=5, **given)
    np.testing.assert_allclose(ones.series["objective"], 2 * np.array(masked.series["objective"]), rtol=1e-10)
    assert len(ones.factors) == 3


def test_the_best_of_several_starts() -> None:
    array = values_for("bernoulli-logit", 4 * model_array(random_factors(0, SHAPE, 2)) - 1)
    given: dict[str, Any] = {"loss": "bernoulli-logit", "max_iters": 20, "precision": "fp64"}
    each = [amped.cp(array, 2, seed=seed, **given).series["objective"][-1] for seed in range(3)]
    best = amped.cp(array, 2, starts=3, **given)
    assert best.series["objective"][-1] == pytest.approx(min(each), rel=1e-12)
    assert best.run["seed"] == int(np.argmin(each))


def test_a_run_is_stopped_and_resumed(tmp_path: Path) -> None:
    array = values_for("poisson", model_array([3 * f for f in random_factors(0, SHAPE, 2)]))
    given: dict[str, Any] = {"loss": "poisson", "method": "lbfgs", "precision": "fp64", "checkpoint": tmp_path / "c"}
    first = amped.cp(array, 2, callback=lambda iteration, objective: iteration == 4, **given)
    assert len(first.series["objective"]) == 4
    resumed = amped.cp(array, 2, resume=True, tol=1e-12, **given)
    assert resumed.series["objective"][:4] == first.series["objective"]
    whole = amped.cp(array, 2, tol=1e-12, **{**given, "checkpoint": None})
    assert resumed.series["objective"][-1] == pytest.approx(whole.series["objective"][-1], rel=1e-6)
    with pytest.raises(amped.InputError, match="was made with loss poisson"):
        amped.cp(array, 2, resume=True, **{**given, "loss": "poisson-log"})


def test_losses_of_users() -> None:
    array = values_for("gaussian", model_array(random_factors(0, SHAPE, 2)))
    array[0, 0, 0] = 50
    texts = {"value": "log1p((x - m)**2)", "first": "2 * (m - x) / (1 + (x - m)**2)"}
    functions = {"value": lambda x, m: np.log1p((x - m) ** 2), "first": lambda x, m: 2 * (m - x) / (1 + (x - m) ** 2)}
    given: dict[str, Any] = {"precision": "fp64", "max_iters": 30}
    models = [amped.cp(array, 2, loss=amped.Loss(name="cauchy", **each), **given) for each in (texts, functions)]
    np.testing.assert_allclose(models[0].series["objective"], models[1].series["objective"], rtol=1e-9)
    assert models[0].run["loss"] == "cauchy"
    seen = np.random.default_rng(0).random(SHAPE) < 0.08
    seen[0, 0, 0] = True
    for each in (texts, functions):  # a list of elements
        value = amped.objective(array, random_factors(0, SHAPE, 2), loss=amped.Loss(**each), mask=seen, gradient=False)
        model = model_array(random_factors(0, SHAPE, 2))
        assert value == pytest.approx(np.log1p((array - model) ** 2)[seen].sum(), rel=1e-12)


COUNTS = np.arange(24.0).reshape(2, 3, 4)
CORNERS, LENGTHS = [[0, 0, 0], [4999, 4999, 4999]], (5000, 5000, 5000)
LARGE, WEIGHTS = (amped.SparseTensor(CORNERS, values, LENGTHS) for values in ([1.0, 1.0], [1.0, 2.0]))


@pytest.mark.parametrize(
    ("X", "given", "what"),
    [
        (COUNTS, {"loss": "poison"}, "did you mean 'poisson'"),
        (COUNTS, {"loss": 3}, "is of type int"),
        (COUNTS, {"loss": "bernoulli-logit"}, "a value is 2: loss 'bernoulli-logit' expects 0 or 1"),
        (COUNTS, {"loss": "zero-truncated-poisson"}, "a value is 0"),
        (COUNTS - 1, {"loss": "gamma"}, "a value is -1: loss 'gamma' expects a number of at least 0"),
        (
            COUNTS,
            {"loss": "gamma", "method": "als"},
            "method 'als' does not apply to loss 'gamma': use 'lbfgs', 'newton', 'adam', 'sgd' or 'adagrad'",
        ),
        (COUNTS, {"loss": "poisson", "method": "mu", "ridge": 0.1}, "method 'mu' supports no holdout, ridge"),
        (COUNTS, {"loss": "poisson", "method": "adamw"}, "expected 'als'"),
        (COUNTS, {"loss": "gamma", "init": [-np.ones((n, 2)) for n in (2, 3, 4)]}, "negative entries"),
        (LARGE, {"loss": "bernoulli-logit"}, "use mask 'stored' if absent elements are unknown"),
        (LARGE, {"loss": "zero-truncated-poisson"}, "but absent elements are 0"),
        (LARGE, {"loss": "gamma", "weights": WEIGHTS}, "weights: with loss 'gamma'"),
    ],
)
def test_what_is_refused(X: Any, given: dict[str, Any], what: str) -> None:
    with pytest.raises(amped.InputError) as error:
        amped.cp(X, 2, **given)
    assert what in str(error.value)
    assert "\n" not in str(error.value)


def test_the_line_of_a_value_outside_the_domain(tmp_path: Path) -> None:
    path = tmp_path / "t.tns"
    path.write_text("1 1 1 3\n1 2 1 2.5\n")
    with pytest.raises(amped.InputError, match=r"t.tns, line 2: a value is 2.5: loss 'negative-binomial:1' expects"):
        amped.cp(path, 1, loss="negative-binomial")


def test_factors_outside_the_domain() -> None:
    with pytest.raises(amped.InputError, match=r"factors\[1\] has a negative entry"):
        amped.objective(COUNTS, [np.ones((2, 1)), -np.ones((3, 1)), np.ones((4, 1))], loss="poisson")


def test_the_default_method() -> None:
    def method(**given: Any) -> str:
        return str(amped.cp(COUNTS, 1, max_iters=2, **given).run["method"])

    assert method() == "als"
    assert method(loss="poisson") == "mu"
    assert method(loss="poisson", ridge=0.1) == method(loss="poisson", weights=np.ones(COUNTS.shape)) == "lbfgs"
    assert method(loss="poisson", method="pdnr") == "pdnr"


@pytest.mark.parametrize("name", NAMES)
def test_scores_and_residuals_refer_to_the_loss(name: str) -> None:
    planted = [f + 0.4 for f in random_factors(0, (12, 10, 8), 2)]
    array = values_for(name, model_array(planted))
    model = amped.cp(array, 2, loss=name, method="lbfgs", precision="fp64", max_iters=50)
    assert model.loss == loss_of(name).name
    if name in ("gaussian", "poisson"):
        return
    assert 0 < model.score(array) < 1
    saturated = best_values(loss_of(name), array)
    assert (saturated <= loss_of(name).of(array, model.full()) + 1e-12 * abs(saturated)).all()
    constant = min(loss_of(name).of(array, m).sum() for m in np.geomspace(1e-3, 1e2, 2000))
    explained = 1 - (loss_of(name).of(array, model.full()).sum() - saturated.sum()) / (constant - saturated.sum())
    assert model.score(array) == pytest.approx(explained, abs=1e-4)
    found = model.residuals(array, 5)
    expected = loss_of(name).mean_of(0.0, model.full())
    for entry in found.entries:
        assert (entry.value, entry.expected) == (array[entry.labels], pytest.approx(expected[entry.labels]))
        assert np.sign(entry.standardised) == np.sign(entry.value - entry.expected)
    np.testing.assert_allclose(found.slices[0].expected, expected.sum(axis=(1, 2)))
    deviances = 2 * (loss_of(name).of(array, model.full()) - saturated)
    np.testing.assert_allclose(found.slices[1].misfit, deviances.sum(axis=(0, 2)), rtol=1e-6)


def test_elements_of_a_sparse_tensor_that_are_absent_count() -> None:
    array = values_for("bernoulli-logit", 4 * model_array(random_factors(0, SHAPE, 2)) - 2)
    sparse = amped.SparseTensor(np.argwhere(array), array[array != 0], SHAPE)
    model = amped.cp(sparse, 2, loss="bernoulli-logit", precision="fp64", max_iters=50)
    assert model.score(sparse) == pytest.approx(model.score(array), rel=1e-12)
    assert model.residuals(sparse).entries[0].labels == model.residuals(array).entries[0].labels


@pytest.mark.parametrize("name", ["bernoulli-logit", "gamma", "huber:0.5"])
def test_the_rows_of_new_data_minimise_the_loss(name: str) -> None:
    array = values_for(name, model_array([f + 0.4 for f in random_factors(0, (9, 10, 8), 2)]))
    model = amped.cp(array[:6], 2, loss=name, precision="fp64")
    rows = model.transform(array[6:], 0, precision="fp64")
    assert rows.shape == (3, 2)
    value, gradients = amped.objective(array[6:], [rows, *model.factors[1:]], loss=name)
    slopes = np.where((rows > 0) | (gradients[0] < 0), gradients[0], 0) if loss_of(name).nonnegative else gradients[0]
    assert abs(slopes).max() < 1e-3 * abs(value)
    again = model.transform(array[:6], 0, precision="fp64")
    fitted = [again, *model.factors[1:]]
    assert amped.objective(array[:6], fitted, loss=name, gradient=False) <= model.series["objective"][-1] * (1 + 1e-6)
    seen = np.random.default_rng(0).random((3, 10, 8)) < 0.7
    some = model.transform(array[6:], 0, mask=seen, precision="fp64")
    least = amped.objective(array[6:], [some, *model.factors[1:]], loss=name, mask=seen, gradient=False)
    assert least <= amped.objective(array[6:], [rows, *model.factors[1:]], loss=name, mask=seen, gradient=False)


def test_an_estimator() -> None:
    array = values_for("gamma", model_array([f + 0.4 for f in random_factors(0, (9, 10, 8), 2)]))
    estimator = amped.CP(2, loss="gamma", options={"precision": "fp64"})
    assert estimator.fit_transform(array).shape == (9, 2)
    assert 0 < estimator.score(array) < 1
    assert estimator.n_iter_ > 1


def test_on_the_command_line(tmp_path: Path) -> None:
    array = values_for("bernoulli-logit", 4 * model_array(random_factors(0, SHAPE, 2)) - 2)
    np.save(tmp_path / "x.npy", array)
    cpd = "cpd", tmp_path / "x.npy", "--rank", 2, "--device", "cpu", "--output", tmp_path / "m"
    found = succeeded(run_amped(*cpd, "--loss", "bernoulli-logit", "--max-iters", 40, "--report"))
    model = amped.load(tmp_path / "m")
    assert "objective" in found.out
    assert (model.run["loss"], model.run["method"], model.loss) == ("bernoulli-logit", "lbfgs", "bernoulli-logit")
    want = amped.cp(array, 2, loss="bernoulli-logit", max_iters=40)
    np.testing.assert_allclose(model.series["objective"], want.series["objective"])
    page = (tmp_path / "m" / "report.html").read_text()
    assert "explained deviance" in page
    assert "bernoulli-logit: for 0 and 1; m is the logarithm of the odds" in page
    assert "most unusual" in succeeded(run_amped("residuals", tmp_path / "m", tmp_path / "x.npy")).out
    planned = succeeded(
        run_amped("plan", tmp_path / "x.npy", "--rank", 2, "--loss", "bernoulli-logit", "--device", "cpu")
    )
    assert "memory by rank" in planned.out
    for flags, cause in (
        (["--loss", "poison"], "did you mean 'poisson'"),
        (["--loss", "gamma", "--method", "als"], "method 'als' does not apply to loss 'gamma'"),
    ):
        refused(run_amped(*cpd, "--force", *flags), cause)


@pytest.mark.parametrize(
    ("name", "shape", "signed", "scale"),
    [
        ("bernoulli-logit", (40, 35, 30), True, 1.5), ("gamma", (30, 25, 20), False, 1.0),
        ("negative-binomial:2", (40, 35, 30), False, 1.0), ("huber:0.5", (30, 25, 20), True, 1.0),
    ],
)  # fmt: skip
def test_planted_factors_are_recovered(name: str, shape: tuple[int, ...], signed: bool, scale: float) -> None:
    """By the loss of the distribution from which the data are drawn, and worse by least squares."""
    rng = np.random.default_rng(0)
    draw = rng.standard_normal if signed else lambda size: rng.gamma(1.0, size=size)
    planted = [draw((length, 3)) for length in shape]
    planted[0] *= scale
    array = values_for(name, model_array(planted))
    given: dict[str, Any] = {"starts": 3, "precision": "fp64", "max_iters": 300}
    right = factor_match(planted, amped.cp(array, 3, loss=name, **given).factors)
    squares = factor_match(planted, amped.cp(array, 3, nonnegative=not signed, **given).factors)
    assert right >= 0.95
    assert squares < right - 0.01


@pytest.mark.parametrize("name", ["gamma", exhaustive("gaussian"), "poisson"])
def test_newton_steps_and_quasi_newton_steps_meet(name: str) -> None:
    """With a mask, a ridge and a fixed mode; and of a sparse tensor whose absent elements are zeros."""
    planted = [f + 0.4 for f in random_factors(0, (9, 8, 7), 2)]
    array, seen = values_for(name, model_array(planted)), np.random.default_rng(0).random((9, 8, 7)) < 0.7
    given: dict[str, Any] = {"loss": name, "precision": "fp64", "tol": 1e-12, "init": planted, "ridge": 0.1}
    given |= {"fixed_modes": (2,), "max_iters": 3000}
    cases: list[tuple[Any, dict[str, Any]]] = [(array, {"mask": seen})]
    if name in ("poisson", "gaussian"):
        cases.append((amped.SparseTensor(np.argwhere(seen), array[seen], seen.shape), {}))
    for tensor, more in cases:
        ends = [
            amped.cp(tensor, 2, method=method, **given, **more).series["objective"][-1]
            for method in ("lbfgs", "newton")  # type: ignore[arg-type]
        ]
        assert ends[0] == pytest.approx(ends[1], rel=1e-6)


def test_newton_steps_that_are_impossible() -> None:
    cauchy = {"value": "log1p((x - m)**2)", "first": "2 * (m - x) / (1 + (x - m)**2)"}
    functions = {
        "value": lambda x, m: (x - m) ** 2,
        "first": lambda x, m: 2 * (m - x),
        "second": lambda x, m: 2 + 0 * m,
    }
    for given, what in (
        ({"loss": amped.Loss(**cauchy)}, "no second derivative"),
        ({"loss": amped.Loss(**functions)}, "must be text"),  # type: ignore[arg-type]
    ):
        with pytest.raises(amped.InputError, match=what):
            amped.cp(COUNTS + 1, 2, method="newton", **given)  # type: ignore[arg-type]


def test_a_model_contains_the_formulas_of_a_loss(tmp_path: Path) -> None:
    """So that a loaded model is scored and projected by it, and a checkpoint is resumed by no other loss."""
    array = values_for("gaussian", model_array(random_factors(0, SHAPE, 2)))
    texts = {"value": "log1p((x - m)**2)", "first": "2 * (m - x) / (1 + (x - m)**2)"}
    given: dict[str, Any] = {"precision": "fp64", "max_iters": 5}
    model = amped.cp(array, 2, loss=amped.Loss(name="cauchy", **texts), checkpoint=tmp_path / "c", **given)
    model.save(tmp_path / "m.npz")
    loaded = amped.load(tmp_path / "m.npz")
    assert loaded.score(array) == model.score(array) > 0
    np.testing.assert_array_equal(loaded.transform(array, 0), model.transform(array, 0))
    assert amped.CP(2, loss=amped.Loss(name="cauchy", **texts)).fit(array).score(array) > 0
    other = {"value": "(x - m)**4", "first": "4 * (m - x)**3"}
    with pytest.raises(amped.InputError, match="was made with formulas"):
        amped.cp(array, 2, loss=amped.Loss(name="cauchy", **other), checkpoint=tmp_path / "c", resume=True, **given)
    functions = {"value": lambda x, m: (x - m) ** 4, "first": lambda x, m: 4 * (m - x) ** 3}
    own = amped.Loss(name="own", **functions)  # type: ignore[arg-type]
    unknown = amped.cp(array, 2, loss=own, **given)
    with pytest.raises(amped.InputError, match="does not contain its formulas"):
        unknown.score(array)
    assert unknown.transform(array, 0, loss=own).shape == (6, 2)
    with pytest.raises(amped.InputError, match="is the name of another loss"):
        amped.cp(array, 2, loss=amped.Loss(name="gaussian", **texts))


@pytest.mark.parametrize("scale", [1e-6, 1e12])
@pytest.mark.parametrize("name", ["gamma", "custom"])
def test_scores_do_not_depend_on_the_unit(name: str, scale: float) -> None:
    array = values_for("gamma", model_array([f + 0.4 for f in random_factors(0, SHAPE, 2)]))
    model = amped.cp(array, 2, loss="gamma", precision="fp64")
    if name == "custom":  # its lowest losses are searched for
        texts = {"value": "x / (m + 1e-10) + log(m + 1e-10)", "first": "1 / (m + 1e-10) - x / (m + 1e-10)**2"}
        model.run |= {"loss": name, "formulas": amped.Loss(name=name, lower=0, **texts).formulas}
    score, entry = model.score(array), model.residuals(array).entries[0]
    model.weights = model.weights * scale
    assert model.score(array * scale) == pytest.approx(score, abs=1e-3)
    assert model.residuals(array * scale).entries[0].standardised == pytest.approx(entry.standardised, rel=1e-3)


def test_a_ridge_in_a_projection() -> None:
    array = values_for("gamma", model_array([f + 0.4 for f in random_factors(0, SHAPE, 2)]))
    model = amped.cp(array, 2, loss="gamma", precision="fp64")
    sizes = [np.square(model.transform(array, 0, ridge=ridge)).sum() for ridge in (0.0, 1.0, 100.0)]
    assert sizes[0] > sizes[1] > sizes[2]


def test_a_run_that_has_ended_goes_on_without_evaluations() -> None:
    model = amped.cp(COUNTS + 1, 1, loss="gamma", tol=0, max_iters=300, precision="fp64")
    assert len(model.series["objective"]) == 300
    assert model.series["evaluations"][-1] == 0


def test_plans_in_python() -> None:
    array = values_for("bernoulli-logit", model_array(random_factors(0, SHAPE, 2)))
    sparse = amped.SparseTensor(np.argwhere(array), array[array != 0], SHAPE)
    methods: list[Any] = ["lbfgs", "newton"]
    for tensor, loss in ((array, "bernoulli-logit"), (sparse, "bernoulli-logit"), (sparse, "poisson")):
        for method in methods:
            found = amped.plan(tensor, 2, loss=loss, method=method, device="cpu")
            assert found is not None
            assert found.host_bytes[0] > 0
    masked = amped.plan(array, 2, loss="poisson", mask=array == 1, device="cpu")
    assert masked is not None
    with pytest.raises(amped.InputError, match="does not apply to loss"):
        amped.plan(array, 2, loss="gamma", method="als")


def test_elements_that_a_device_cannot_evaluate_are_left_to_a_cpu(monkeypatch: pytest.MonkeyPatch) -> None:
    sparse = amped.SparseTensor(np.argwhere(COUNTS), COUNTS[COUNTS > 0], COUNTS.shape)
    given: dict[str, Any] = {"loss": "poisson", "max_iters": 3, "precision": "fp64"}
    weights = np.where(COUNTS > 1, 2.0, 0.5)
    switched = []

    def on_cpu(machine: Any, options: amped.Options, what: str) -> Any:
        switched.append(what)
        return machine._replace()

    monkeypatch.setattr(loss_elements, "on_host", on_cpu)
    for tensor, options, leaves in (
        (sparse, {}, False),
        (COUNTS, {}, True),
        (COUNTS, {"weights": weights}, True),
        (COUNTS, {"mask": COUNTS.max() == COUNTS}, False),
    ):
        for method in ("lbfgs", "newton"):
            if method == "newton" and not options:
                leaves = False  # it has a list of all elements
            amped.cp(tensor, 2, method=method, **given, **options)
            assert bool(switched) == leaves
            assert all(f"method '{method}', of such elements" in what for what in switched)
            switched.clear()
    monkeypatch.undo()
    options = amped.Options(device="cuda")
    with pytest.raises(amped.InputError, match="only supported on a CPU so far"):
        loss_elements.on_host(machine_of("cpu", world()), options, "loss")


def test_missing_elements_do_not_count_where_a_loss_is_not_finite() -> None:
    """As x = 0 there: the logarithm is infinite, and an infinite number times a weight of zero is not zero."""
    logs = amped.Loss(name="logs", value="(log(x) - m)**2", first="2 * (m - log(x))", domain=(1e-300, np.inf, False))
    array, ones = np.array([[1.0, np.nan], [2.0, 3.0]]), [np.ones((2, 1))] * 2
    want = sum((np.log(x) - 1) ** 2 for x in (1.0, 2.0, 3.0))
    for given in ({"mask": "nan"}, {"mask": ~np.isnan(array)}, {"weights": (~np.isnan(array)).astype(float)}):
        values = array if isinstance(given.get("mask"), str) else np.nan_to_num(array)
        value, gradients = amped.objective(values, ones, loss=logs, precision="fp64", **given)  # type: ignore[arg-type]
        assert value == pytest.approx(want, rel=1e-12)
        assert all(np.isfinite(each).all() for each in gradients)
    large = [np.array([[1.0], [-1.0]]), np.array([[1.0], [800.0]])]
    assert np.isfinite(amped.objective(array, large, loss="poisson-log", mask="nan", gradient=False))


@pytest.mark.parametrize("centred", [False, True])
@pytest.mark.parametrize("method", ["lbfgs", "newton"])
@pytest.mark.parametrize("loss", ["gaussian", "huber"])
def test_the_unit_of_the_elements_does_not_matter(loss: str, method: str, centred: bool) -> None:
    """Starts are scaled, and no tolerance is absolute: elements may be large or small, with any mean."""
    rng = np.random.default_rng(0)
    parts = [rng.standard_normal((n, 2)) if centred else rng.random((n, 2)) for n in (6, 5, 4)]
    array = model_array(parts)
    for unit in (1.0, 1e10, 1e-7):
        given = loss if loss == "gaussian" else f"huber:{min(unit / 10, 1e9)}"
        model = amped.cp(unit * array, 2, loss=given, method=method, seed=0, device="cpu")
        assert np.linalg.norm(model.full() / unit - array) < 1e-3 * np.linalg.norm(array), unit


def test_a_start_of_another_size_is_named() -> None:
    array = 1e10 * model_array(random_factors(0, SHAPE, 2))
    with pytest.warns(amped.InputWarning, match="no step from the start"):
        amped.cp(array, 2, method="lbfgs", init=random_factors(1, SHAPE, 2), device="cpu")
