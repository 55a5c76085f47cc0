"""Extrapolated iterations of CP-ALS: fits never fall, swamps are left sooner, and runs can be stopped."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

import amped
from amped.methods.als import CpAls
from amped.methods.driver import StopRule, run
from amped.methods.extrapolation import NUMBERS, suits
from amped.options import Options
from amped.parallel.mpi import world
from amped.runs.assembly import begin, bring_up, decomposition, open_tensor

RANK = 3


def tensor(dense: bool) -> Any:
    """Return a tensor of order 3 with collinear components, of which random starts end in a swamp."""
    rng = np.random.default_rng(5)
    mixed = np.linalg.cholesky(np.full((RANK, RANK), 0.9) + 0.1 * np.eye(RANK)).T
    factors = [np.linalg.qr(rng.normal(size=(length, RANK)))[0] @ mixed for length in (9, 8, 7)]
    array = np.einsum("ir,jr,kr->ijk", *factors)
    return array if dense else amped.SparseTensor(np.argwhere(array), array[array != 0], array.shape)


def method_of(X: Any, accelerate: bool, **options: Any) -> CpAls:
    """Return CP-ALS of a tensor with a random start."""
    chosen = Options(device="cpu", **options)
    machine = bring_up(chosen, world())
    source = open_tensor(amped.DenseTensor(X) if isinstance(X, np.ndarray) else X, machine, chosen)
    method = decomposition(source, RANK, machine, chosen, accelerate=accelerate)
    assert isinstance(method, CpAls)
    begin(method, source, 4)
    return method


def needed(method: CpAls, fit: float = 0.999) -> int:
    """Return the iterations that a method needs for a fit."""
    run(method, StopRule(1000, 0), stop=lambda: max(method.state.series["fit"], default=0.0) > fit)
    return method.state.iterations


@pytest.mark.parametrize(("dense", "compiled", "precision"), [(True, "never", "fp64"), (False, "always", "fp32")])
def test_fits_rise_faster(dense: bool, compiled: str, precision: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("AMPED_COMPILE", compiled)
    X = tensor(dense)
    method = method_of(X, True, precision=precision)
    assert 3 * needed(method) < needed(method_of(X, False, precision=precision))
    fits = np.array(method.state.series["fit"])
    assert np.diff(fits[2:]).min() > -1e-7  # up to rounding
    assert method.model().score(X) == pytest.approx(fits[-1], abs=1e-6)


def nonnegative_tensor(dense: bool) -> Any:
    """Return a non-negative tensor with columns that resemble each other, and noise."""
    rng = np.random.default_rng(0)
    factors = [rng.random((length, RANK)) + rng.random((length, 1)) for length in (12, 11, 10)]
    array = np.einsum("ir,jr,kr->ijk", *factors) + 0.05 * rng.random((12, 11, 10))
    return array if dense else amped.SparseTensor(np.argwhere(array), array[array != 0], array.shape)


CASES: list[dict[str, Any]] = [
    {"nonnegative": True},
    {"nonnegative": (0, 2), "ridge": 1e-3},
    {"mask": "nan"},
    {"mask": "nan", "nonnegative": True, "ridge": 1e-3},
]


@pytest.mark.parametrize("compiled", ["never", "always"])
@pytest.mark.parametrize("how", CASES)
def test_other_objectives_fall_faster(how: dict[str, Any], compiled: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """Non-negative, penalised and masked runs: the objective never rises, and is lower after as many iterations."""
    monkeypatch.setenv("AMPED_COMPILE", compiled)
    X = nonnegative_tensor(dense="mask" in how)
    if "mask" in how:
        X[np.random.default_rng(1).random(X.shape) < 0.4] = np.nan
    common: dict[str, Any] = {"max_iters": 60, "tol": 0, "seed": 1, "precision": "fp64", "device": "cpu", **how}
    plain, fast = (amped.cp_als(X, RANK, accelerate=way, **common) for way in (False, True))
    found, wanted = (
        np.array(model.series["objective"] if "objective" in model.series else [-fit for fit in model.fits])
        for model in (fast, plain)
    )
    assert np.diff(found[1:]).max() <= 1e-12 * abs(found[-1])
    assert found[30] < wanted[-1]
    if how.get("nonnegative"):
        assert min(fast.factors[mode].min() for mode in (0, 2)) >= 0
    if "mask" not in how:
        assert fast.score(X) == pytest.approx(fast.fits[-1], abs=1e-9)


def test_when_it_is_the_default() -> None:
    """Without limits and checkpoints; also with constraints and missing elements."""
    X, how = nonnegative_tensor(dense=True), {"nonnegative": True, "seed": 1, "precision": "fp64", "device": "cpu"}
    default, on, off = (amped.cp_als(X, RANK, accelerate=each, **how) for each in (None, True, False))
    assert default.fits == on.fits != off.fits
    limited = [amped.cp_als(X, RANK, accelerate=each, max_iters=9, **how).fits for each in (None, True, False)]
    assert limited[0] == limited[2] != limited[1]


@pytest.mark.parametrize("compiled", ["never", "always"])
def test_a_stop_within_an_iteration_leaves_the_last_one(compiled: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("AMPED_COMPILE", compiled)
    X = tensor(False)
    method = method_of(X, True)
    run(method, StopRule(12, 0))
    before, state = method.model(), method.state.copy()
    assert not method.step(lambda: True)
    assert (method.state.iterations, method.state.mode, method.state.series) == (12, 0, state.series)
    for factor, expected in zip(method.model().factors, before.factors, strict=True):
        np.testing.assert_array_equal(factor, expected)
    run(method, StopRule(13, 0))
    assert method.state.series["fit"][-1] >= state.series["fit"][-1]


def test_a_restart_forgets_the_last_run() -> None:
    X = tensor(True)
    method, fits = method_of(X, True), []
    start = [method.factor(mode) for mode in range(3)]
    for _ in range(2):
        run(method, StopRule(20, 0))
        fits.append(method.state.series["fit"])
        method.restart()
        for mode, factor in enumerate(start):
            method.operator.set_factor(mode, factor)
    assert fits[0] == fits[1]


def test_where_it_is_used() -> None:
    device = bring_up(Options(device="cpu"), world()).device
    assert suits(device, (10, 10), 2)
    assert not suits(device, (NUMBERS, 10), 2)
