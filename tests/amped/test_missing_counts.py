"""CP-APR over observed elements: the model of counts is summed over these only."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from command import refused, run_amped, succeeded
from missing import stored

import amped

SHAPE = (12, 11, 10)
HOW: dict[str, Any] = {"device": "cpu", "precision": "fp64"}
METHODS = [("mu", "never"), ("mu", "always"), ("pdnr", "always")]


def planted(share: float = 0.4, rank: int = 2) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """Return counts, their means, and which elements are observed."""
    rng = np.random.default_rng(0)
    mean = 20 * np.einsum("ir,jr,kr->ijk", *(rng.gamma(1, size=(length, rank)) for length in SHAPE))
    return rng.poisson(mean).astype(float), mean, rng.random(SHAPE) < share


COUNTS, MEAN, SEEN = planted()


@pytest.fixture(params=METHODS, ids="-".join)
def method(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> Any:
    """A method, with or without compiled code."""
    monkeypatch.setenv("AMPED_COMPILE", request.param[1])
    return request.param[0]


def likelihood(model: amped.KruskalTensor, weights: np.ndarray) -> float:
    full = model.full()
    return float((weights * (COUNTS * np.log(np.maximum(full, 1e-10)) - full)).sum())


def test_all_elements_observed(method: Any) -> None:
    """The updates of MU are those without a mask, and PDNR ends at the same likelihood."""
    how = HOW | {"method": method, "max_iters": 60 if method == "pdnr" else 8, "kappa": 0}
    plain = amped.cp_apr(COUNTS, 2, **how)
    masked = amped.cp_apr(COUNTS, 2, mask=np.ones(SHAPE), **how)
    for name in ("loglikelihood", "kkt", "inner_iterations") if method == "mu" else ():
        np.testing.assert_allclose(masked.series[name], plain.series[name], rtol=1e-8, err_msg=name)
    assert masked.series["loglikelihood"][-1] == pytest.approx(plain.series["loglikelihood"][-1], rel=1e-7)
    np.testing.assert_allclose(masked.full(), plain.full(), rtol=1e-8 if method == "mu" else 1e-3, atol=1e-3)


@pytest.mark.parametrize("weighted", [False, True])
def test_contracts(method: Any, weighted: bool) -> None:
    """The likelihood is that of the observed elements, never falls, and ends at a KKT point."""
    weights = SEEN * (np.random.default_rng(1).choice([0.5, 1.0, 3.0], SHAPE) if weighted else 1.0)
    observed = {"weights": weights} if weighted else {"mask": SEEN}
    model = amped.cp_apr(COUNTS, 2, method=method, max_iters=2000, tol=1e-5, **observed, **HOW)  # type: ignore[arg-type]
    likelihoods = np.array(model.series["loglikelihood"])
    assert model.converged
    assert likelihoods[-1] == pytest.approx(likelihood(model, weights), rel=1e-12)
    assert np.diff(likelihoods).min() >= -1e-12 * abs(likelihoods[-1])
    factors, full = [*model.factors], model.full()
    factors[0] = factors[0] * model.weights
    gradient = np.einsum("ijk,jr,kr->ir", weights * (1 - COUNTS / full), *factors[1:])
    assert np.abs(np.minimum(factors[0], gradient)).max() < 1e-3
    assert model.series["kkt"][-1] <= 1e-5
    for factor in model.factors:
        np.testing.assert_allclose(factor.sum(axis=0), 1, rtol=1e-12)
    unseen = ~SEEN
    assert np.mean(np.abs(full - MEAN)[unseen]) < 0.2 * MEAN[unseen].mean()  # not zeros
    best = amped.cp(COUNTS, 2, loss="poisson", method="lbfgs", **observed, **HOW)  # type: ignore[arg-type]
    assert -likelihoods[-1] <= best.series["objective"][-1] * (1 + 1e-6 * np.sign(best.series["objective"][-1]))


def test_kinds_of_observed_elements(method: Any) -> None:
    how = HOW | {"method": method, "max_iters": 6}
    expected = amped.cp_apr(COUNTS, 2, mask=SEEN, **how).series["loglikelihood"]
    gaps, sparse = np.where(SEEN, COUNTS, np.nan), stored(COUNTS, SEEN)
    for tensor, mask in [(gaps, "nan"), (sparse, "stored"), (np.ma.masked_array(COUNTS, ~SEEN), None)]:
        model = amped.cp(tensor, 2, loss="poisson", mask=mask, **how)  # type: ignore[arg-type]
        np.testing.assert_allclose(model.series["loglikelihood"], expected, rtol=1e-10)
        assert model.run["method"] == method
    single = amped.cp_apr(COUNTS, 2, mask=SEEN, **how | {"precision": "fp32"}).series["loglikelihood"]
    np.testing.assert_allclose(single, expected, rtol=1e-4)


def test_rows_without_observations(method: Any) -> None:
    seen = SEEN.copy()
    seen[3], seen[:, :, 4] = False, False
    model = amped.cp_apr(COUNTS, 2, method=method, mask=seen, max_iters=6, **HOW)
    assert not model.factors[0][3].any()
    assert not model.factors[2][4].any()
    assert np.isfinite(model.series["loglikelihood"]).all()


def test_zeros_that_should_not_be() -> None:
    """MU raises entries that are zero although a larger value is likelier."""
    start = [np.random.default_rng(2).random((length, 2)) for length in SHAPE]
    start[0][4] = 0
    model = amped.cp_apr(COUNTS, 2, init=start, mask=SEEN, max_iters=40, **HOW)
    assert model.factors[0][4].any()
    stays = amped.cp_apr(COUNTS, 2, init=start, mask=SEEN, max_iters=40, kappa=0, **HOW)
    assert model.series["loglikelihood"][-1] > stays.series["loglikelihood"][-1]


def test_a_run_is_resumed(method: Any, folder: Path) -> None:
    how = HOW | {"method": method, "mask": SEEN, "mu_iters": 1}
    whole = amped.cp_apr(COUNTS, 2, max_iters=6, **how)
    amped.cp_apr(COUNTS, 2, max_iters=3, checkpoint=folder / "c", **how)
    rest = amped.cp_apr(COUNTS, 2, max_iters=6, checkpoint=folder / "c", resume=True, **how)
    np.testing.assert_allclose(rest.series["loglikelihood"], whole.series["loglikelihood"], rtol=1e-10)
    best = amped.cp_apr(COUNTS, 2, max_iters=3, starts=3, **how)
    assert best.series["loglikelihood"][-1] >= whole.series["loglikelihood"][2]


def test_command_line(folder: Path) -> None:
    np.save("x.npy", np.where(SEEN, COUNTS, np.nan))
    cpd = ["cpd", "x.npy", "--rank", 2, "--loss", "poisson", "--mask", "nan", "--device", "cpu", "--precision", "fp64"]
    out = succeeded(run_amped(*cpd, "--method", "mu", "--max-iters", 4, "--output", "m")).out
    assert f"{SEEN.sum():,} elements are observed" in out
    expected = amped.cp_apr(COUNTS, 2, mask=SEEN, max_iters=4, **HOW)
    record = json.loads(Path("m/run.json").read_text())
    assert record["loglikelihood"] == pytest.approx(expected.series["loglikelihood"], rel=1e-9)
    succeeded(run_amped("plan", *cpd[1:], "--method", "mu"))
    found = amped.scan(COUNTS, "1-2", loss="poisson", method="mu", mask=SEEN, starts=2, max_iters=30, **HOW)
    assert found.tried[1].squared > found.tried[0].squared
    for flags, cause in [
        (["--method", "pqnr"], "method 'pqnr' supports no mask or weights: use 'mu' or 'pdnr'"),
        (["--method", "mu", "--holdout", 0.1], "method 'mu' supports no holdout, ridge or fixed modes: use 'lbfgs'"),
    ]:
        refused(run_amped(*cpd, *flags, "--output", "n"), cause)


def test_negative_counts() -> None:
    with pytest.raises(amped.InputError, match="a value is -1: loss 'poisson' expects a number of at least 0"):
        amped.cp_apr(np.where(SEEN, COUNTS, -1.0), 2, mask=np.ones(SHAPE), **HOW)
