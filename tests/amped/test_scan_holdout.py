"""Scans of observed elements: the number of components that predicts held-out elements."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from command import refused, run_amped, succeeded, write_tns
from missing import planted, stored

import amped
from amped.models.explained import explained_deviance
from amped.models.matching import factor_match
from amped.models.scanned import ScannedRank, suggestion
from amped.runs.compression import consistent, consistent_with_gaps

HOW: dict[str, Any] = {"device": "cpu", "precision": "fp64", "max_iters": 60, "starts": 2, "halves": False}
SHAPE = (16, 14, 12)


def signed(shape: tuple[int, ...], rank: int, share: float, seed: int = 0) -> tuple[np.ndarray, np.ndarray]:
    """Return a tensor of components with signs, and which elements are observed."""
    rng = np.random.default_rng(seed)
    exact = np.einsum("ir,jr,kr->ijk", *(rng.normal(size=(length, rank)) for length in shape))
    return exact + 0.1 * rng.normal(size=shape), rng.random(shape) < share


def case(name: str) -> tuple[Any, int, dict[str, Any]]:
    """Return a tensor, its number of components, and arguments."""
    if name == "dense":
        noisy, seen = signed(SHAPE, 2, 0.5)
        return np.where(seen, noisy, np.nan), 2, {"mask": "nan"}
    if name == "order 5":
        noisy, _, seen = planted((7, 6, 5, 6, 5), 2, 0.3, 0.02)
        return stored(noisy, seen), 2, {"mask": "stored"}
    if name == "non-negative":
        noisy, _, seen = planted(SHAPE, 2, 0.4, 0.02)
        return stored(noisy, seen), 2, {"mask": "stored", "nonnegative": True}
    noisy, seen = signed(SHAPE, 3, 0.4)
    if name == "empty slices":
        seen[3], seen[:, 5], seen[:, :, 7] = False, False, False
    return stored(noisy, seen), 3, {"mask": "stored"}


@pytest.mark.parametrize("name", ["sparse", "dense", "non-negative", "empty slices", "order 5"])
def test_the_planted_number_is_found(name: str) -> None:
    tensor, rank, arguments = case(name)
    found = amped.scan(tensor, range(1, rank + 2), holdout=0.1, **arguments, **HOW)
    assert found.suggestion.rank == rank, found.suggestion.reason
    assert "held-out RMSE" in found.suggestion.reason
    errors = [each.holdout for each in found.tried]
    assert all(each is not None for each in errors)
    assert found.seconds["holdout"] > 0
    assert found.tried[rank - 1].consistency == pytest.approx(100, abs=10)


def test_figures_refer_to_observed_elements() -> None:
    noisy, seen = signed(SHAPE, 2, 0.4)
    how = HOW | {"halves": True}
    found = amped.scan(np.where(seen, noisy, np.nan), (2,), mask="nan", **how)
    model, tried = found.models[0], found.tried[0]
    squares = np.square(noisy - model.full())[seen].sum() / np.square(noisy[seen]).sum()
    assert tried.squared == pytest.approx(1 - squares, rel=1e-9)
    assert tried.halves == pytest.approx(1, abs=0.05)
    assert tried.holdout is None
    assert "holdout" not in found.seconds
    assert amped.scan(np.ma.array(noisy, mask=~seen), (2,), **how).tried[0].squared == tried.squared
    # Without gaps this is the scan of all elements.
    whole = amped.scan(noisy, (2,), mask=np.ones(SHAPE), **how).tried[0]
    plain = amped.scan(noisy, (2,), **how).tried[0]
    assert whole.squared == pytest.approx(plain.squared, rel=1e-6)
    assert whole.consistency == pytest.approx(plain.consistency, rel=1e-3)
    assert whole.halves == pytest.approx(plain.halves, rel=1e-3)


def test_consistency_completes_the_tensor_by_the_model() -> None:
    noisy, seen = signed((6, 5, 4), 2, 0.7)
    factors = [np.random.default_rng(1).normal(size=(length, 2)) for length in noisy.shape]
    completed = np.where(seen, noisy, np.einsum("ir,jr,kr->ijk", *factors))
    from amped.options import Options
    from amped.parallel.mpi import world
    from amped.runs.assembly import bring_up, open_tensor

    options = Options(device="cpu", precision="fp64")
    machine = bring_up(options, world())
    full = consistent(open_tensor(amped.DenseTensor(completed), machine, options), machine, options, factors)
    source = open_tensor(stored(noisy, seen), machine, options).sparse(None)
    assert consistent_with_gaps(source, machine, options, factors) == pytest.approx(full, rel=1e-9)
    exact = np.einsum("ir,jr,kr->ijk", *factors)
    source = open_tensor(stored(exact, seen), machine, options).sparse(None)
    assert consistent_with_gaps(source, machine, options, factors) == pytest.approx(100, abs=1e-6)


@pytest.mark.parametrize(("split", "used"), [(None, 0), (2, 2)])
def test_the_mode_that_is_split(split: int | None, used: int) -> None:
    noisy, _ = signed((9, 8, 8), 1, 1.0)
    halves = [noisy.take(range(k, noisy.shape[used], 2), axis=used) for k in range(2)]
    models = [amped.cp_als(half, 1, max_iters=60, tol=1e-6, device="cpu", precision="fp64") for half in halves]
    shared = [[f for mode, f in enumerate(model.factors) if mode != used] for model in models]
    found = amped.scan(noisy, (1,), split=split, **(HOW | {"halves": True, "starts": 1}))
    assert found.tried[0].halves == pytest.approx(factor_match(*shared), rel=1e-9)


@pytest.mark.parametrize(("loss", "sparse"), [("poisson", False), ("poisson", True), ("bernoulli-logit", False)])
def test_other_losses(loss: str, sparse: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    """Full gradients: explained deviance, matches, and the held-out deviance; no core consistency."""
    monkeypatch.setenv("AMPED_COMPILE", "never")
    rng = np.random.default_rng(0)
    mean = 4 * np.einsum("ir,jr,kr->ijk", *(rng.gamma(1, size=(length, 2)) for length in SHAPE))
    logit = loss == "bernoulli-logit"
    array = rng.random(SHAPE) < 1 / (1 + np.exp(2 - mean)) if logit else rng.poisson(mean).astype(float)
    tensor: Any = amped.SparseTensor(np.argwhere(array), array[array > 0], SHAPE) if sparse else array
    how = HOW | {"loss": loss, "method": "lbfgs", "max_iters": 120, "starts": 2}
    found = amped.scan(tensor, "1-3", **how, **({} if sparse else {"holdout": 0.1}))
    two = found.tried[1]
    assert [each.consistency for each in found.tried] == [None] * 3
    model = found.models[1]
    score = model.score(tensor) if logit else explained_deviance(model.weights, model.factors, amped.DenseTensor(array))
    assert two.squared == pytest.approx(score, rel=1e-4)
    assert two.match is not None
    if not logit:
        assert two.match > 0.98
    if not sparse:
        assert two.criterion == "deviance"
        assert logit or found.suggestion.rank == 2
        assert "held-out deviance, " in found.suggestion.reason


def tried(rank: int, holdout: float, error: float) -> ScannedRank:
    return ScannedRank(rank, (0.9,), 0.9, 1, None, None, None, 5, 1.0, holdout, error)


def test_one_standard_error() -> None:
    found = suggestion([tried(3, 0.10, 0.01), tried(1, 0.5, 0.1), tried(2, 0.109, 0.01), tried(4, 0.11, 0.2)])
    assert found.rank == 2
    assert "within one standard error, 0.01, of the lowest, 0.1 with 3" in found.reason
    found = suggestion([tried(1, 0.5, 0.1), tried(2, 0.12, 0.01), tried(3, 0.10, 0.01)])
    assert found.rank == 3
    assert "no smaller number" in found.reason


def test_command_line(folder: Path) -> None:
    noisy, seen = signed(SHAPE, 2, 0.4)
    tensor = stored(noisy, seen)
    write_tns(folder / "x.tns", tensor.indices, tensor.values)
    flags = ["--rank", "1-3", "--starts", 2, "--max-iters", 40, "--split", 1, "--device", "cpu", "--precision", "fp64"]
    files = ["--output", "s.json", "--plot", "s.png"]
    out = succeeded(run_amped("scan", "x.tns", "--mask", "stored", "--holdout", 0.1, *flags, *files)).out
    assert "held-out RMSE  iterations" in out
    assert out.splitlines()[-1].startswith("suggested: 2; 2 has the lowest held-out RMSE")
    record = json.loads(Path("s.json").read_text())
    assert record["rank"] == 2
    assert f"{record['tried'][1]['holdout']:.4g} ± " in out
    assert Path("s.png").stat().st_size > 0
    how = {"starts": 2, "max_iters": 40, "split": 1, "device": "cpu", "precision": "fp64"}
    found = amped.scan(tensor, "1-3", mask="stored", holdout=0.1, **how)  # type: ignore[arg-type]
    assert found.tried[1].holdout == pytest.approx(record["tried"][1]["holdout"], rel=1e-9)
    assert "0.1" in found._repr_html_()
    for wrong, cause in [
        (["--holdout", 0.1], "--holdout needs --mask stored"),
        (["--mask", "stored", "--holdout", 1.5], "--holdout 1.5: expected a fraction"),
        (["--loss", "poisson", "--method", "pqnr", "--mask", "stored"], "method 'pqnr' supports no mask"),
        (["--loss", "gamma", "--method", "als"], "method 'als' does not apply to loss 'gamma'"),
        (["--split", 3], "split: mode 3 is outside 0..2"),
        (["--split", -1], "--split -1"),
        (["--split", 1, "--no-halves"], "--split needs halves"),
    ]:
        refused(run_amped("scan", "x.tns", "--rank", 1, "--device", "cpu", *wrong), cause)


@pytest.mark.parametrize(
    ("arguments", "cause"),
    [
        ({"holdout": 0}, "holdout 0"),
        ({"holdout": float("nan")}, "holdout nan"),
        ({"holdout": 0.1, "loss": "poisson", "method": "mu"}, "method 'mu' supports no holdout"),
        ({"mask": np.ones((2, 2))}, "mask has shape"),
        ({"split": 3}, "mode 3"),
        ({"split": -1}, "split -1"),
    ],
)
def test_wrong_arguments(arguments: dict[str, Any], cause: str) -> None:
    with pytest.raises(amped.InputError, match=cause):
        amped.scan(np.ones((4, 3, 2)), (1,), device="cpu", **arguments)
