"""Runs in a batch equal separate runs: in each device's batch, and in one that consists of single runs."""

from __future__ import annotations

from collections.abc import Callable
from itertools import product
from typing import Any

import numpy as np
import pytest
from densecases import low_rank
from forms import exhaustive
from hostbatch import HostBatch, HostBatches
from oracle import PRECISIONS
from severalruns import assert_as_single_runs, assert_near_one_as_single_runs, multi_run

import amped
from amped.backend.normal_equations.state import FLAGS, MODE
from amped.backend.ops.equations import NOISY, SINGULAR, Equations
from amped.methods.driver import StopRule
from amped.methods.multi_run import equations
from amped.parallel.mpi import Comm
from amped.runs import assembly
from partitioner.tensors.dense import DenseTensor

ACCURACY = {"fp32": 1e-5, "fp64": 1e-9}
SINGULAR_ACCURACY = {"cpu": 1e-5, "cuda": 2e-4}  # sums that come in any order differ: singular equations make that more


@pytest.fixture(autouse=True)
def provider(device: str, monkeypatch: pytest.MonkeyPatch) -> None:
    if device == "cpu":
        monkeypatch.setattr(assembly, "batch_equations", HostBatches)


def counts(seed: int = 0, size: float = 1.0) -> amped.SparseTensor:
    dense = np.abs(low_rank((13, 10, 8), 3, 0.5, seed)) * size
    dense[4] = 0
    kept = np.random.default_rng(seed).random(dense.shape) < 0.6
    return amped.SparseTensor(np.argwhere(kept & (dense != 0)), dense[kept & (dense != 0)], dense.shape)


@pytest.mark.parametrize(
    ("size", "precision", "nonnegative"),
    [
        case if case in ((1e-6, "fp32", False), (3e7, "fp64", True)) else exhaustive(*case)
        for case in product([1e-6, 1.0, 3e7], PRECISIONS, [False, True])
    ],
)
def test_values_of_any_size(device: str, comm: Comm, precision: str, nonnegative: bool, size: float) -> None:
    """Large or small ones are out of range, so that rows are solved twice."""
    tensor, rule = counts(size=size), StopRule(10, 0)
    how: dict[str, Any] = {"device": device, "precision": precision}
    found = multi_run(tensor, 24, comm, rule, nonnegative, **how)
    assert_as_single_runs(found, tensor, rule, ACCURACY[precision], nonnegative, **how)


@pytest.mark.parametrize("nonnegative", [False, True])
@pytest.mark.parametrize("flag", [NOISY, SINGULAR])
def test_a_flag_in_the_midst_of_an_iteration(
    device: str, comm: Comm, monkeypatch: pytest.MonkeyPatch, flag: int, nonnegative: bool
) -> None:
    """The run goes on by itself from the mode where it was raised, and comes back; others do not notice."""
    raised = list[int]()
    solve = equations._Iterations._solve

    def solve_and_raise(self: Any, mode: int) -> None:
        solve(self, mode)
        if mode == 1 and self._computed == 3 and not raised:
            raised.append(mode)
            raise_flag(self._update.equations, mode, flag)

    monkeypatch.setattr(equations._Iterations, "_solve", solve_and_raise)
    monkeypatch.setattr(equations._Iterations, "_captured", lambda self: NotCaptured(self))
    tensor, rule, how = counts(), StopRule(12, 0), {"device": device, "precision": "fp64"}
    found = multi_run(tensor, 24, comm, rule, nonnegative, **how)
    assert raised == [1]
    assert_as_single_runs(found, tensor, rule, 1e-9, nonnegative, **how)


@pytest.mark.parametrize("kind", ["sparse", "dense"])
def test_a_flag_between_iterations(device: str, comm: Comm, monkeypatch: pytest.MonkeyPatch, kind: str) -> None:
    """An operator's partial results are invalid after a launch of which it was not notified."""
    raised = list[int]()
    following = equations._Iterations.next

    def raise_and_compute(self: Any) -> Any:
        if self._computed in (4, 7) and len(raised) < 2:
            raised.append(self._computed)
            raise_flag(self._update.equations, -1, SINGULAR)
        return following(self)

    monkeypatch.setattr(equations._Iterations, "next", raise_and_compute)
    tensor = DenseTensor(low_rank((12, 10, 9), 3, 0.2, 3)) if kind == "dense" else counts()
    rule, how = StopRule(12, 0), {"device": device, "precision": "fp64"}
    found = multi_run(tensor, 20, comm, rule, ranks={(3, start): 3 for start in range(4)}, **how)
    assert raised == [4, 7]
    assert_as_single_runs(found, tensor, rule, 1e-7, False, **how)


class NotCaptured:
    """A replay that computes again each time."""

    def __init__(self, iterations: Any) -> None:
        self._iterations = iterations

    def launch(self) -> None:
        self._iterations._compute()

    def wait(self) -> np.ndarray:
        batch = self._iterations._update.equations
        self._iterations._update.statuses()
        return np.asarray(batch.reported.get())


def raise_flag(batch: Equations, mode: int, flag: int) -> None:
    """Let the last run have a flag after a mode was solved and its norms taken out, as if the next one could not be."""
    some: Any = batch
    place = len(batch.totals) - 1
    if isinstance(some, HostBatch):
        some.runs[place].flags, some.runs[place].mode = flag, mode + 1
    else:
        some._device.wait_side()
        some._states[place, FLAGS], some._states[place, MODE] = flag, mode + 1


@pytest.mark.parametrize("precision", [exhaustive("fp32"), exhaustive("fp64")])
def test_fits_near_one_and_singular_equations(device: str, comm: Comm, precision: str) -> None:
    assert_near_one_as_single_runs(comm, SINGULAR_ACCURACY[device], device=device, precision=precision)


def test_more_runs_than_columns(device: str, comm: Comm, monkeypatch: pytest.MonkeyPatch) -> None:
    """Places and columns are used again, and no run is computed by itself."""
    alone: Callable[..., Any] = equations.AlsRuns._iterate
    calls = list[int]()
    monkeypatch.setattr(equations.AlsRuns, "_iterate", lambda self, some: (calls.append(1), alone(self, some)))
    tensor, rule, how = counts(), StopRule(8, 1e-3), {"device": device, "precision": "fp64"}
    ranks = {(rank, start): rank for rank in (4, 1, 3) for start in range(9)}
    found = multi_run(tensor, 10, comm, rule, ranks=ranks, **how)
    assert_as_single_runs(found, tensor, rule, 1e-9, False, **how)
    assert not calls


def test_a_single_run_in_a_batch(device: str, comm: Comm) -> None:
    tensor, rule, how = counts(size=1e-6), StopRule(6, 0), {"device": device, "precision": "fp64"}
    found = multi_run(tensor, 7, comm, rule, ranks={(3, 0): 3}, **how)
    assert_as_single_runs(found, tensor, rule, 1e-9, False, **how)
    assert equations.places_of(1, 7) == 2, "the flags of a single run would be cleared"
    assert equations.places_of(9, 7) == 7
