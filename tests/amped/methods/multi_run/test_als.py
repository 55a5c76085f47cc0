"""Runs in one batch equal separate runs."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
import pytest
from densecases import low_rank
from forms import exhaustive
from oracle import PRECISIONS, random_factors, small_pieces
from severalruns import RANKS, assert_as_single_runs, assert_near_one_as_single_runs, multi_run

import amped
from amped.backend.cpu.ops.equations import CpuEquations
from amped.methods.constraints import NONE
from amped.methods.driver import StopRule
from amped.methods.updates import DivergedError
from amped.operators.sparse.tuning import Budget
from amped.options import Options
from amped.parallel.mpi import Comm
from amped.runs.assembly import multi_run_als
from amped.runs.session import opened
from partitioner.tensors.dense import DenseTensor

SHAPES = [(19, 13), (9, 11, 10), (6, 7, 5, 8), (5, 1, 6, 5, 4), (4, 3, 4, 3, 4, 3)]
ACCURACY = {"cpu": 0.0, "cuda": 1e-5}  # a GPU has other kernels for other numbers of columns
SINGULAR_ACCURACY = {"cpu": 0.0, "cuda": 2e-4}  # sums that come in any order differ: singular equations make that more


def counts(shape: Sequence[int], seed: int = 0, density: float = 0.3) -> amped.SparseTensor:
    """Return a tensor with some structure: rows of a mode that are empty, and values of different sizes."""
    rng = np.random.default_rng(seed)
    factors = [np.abs(factor) for factor in random_factors(seed, shape, 4)]
    rates = np.einsum(",".join(c + "z" for c in "abcdef"[: len(shape)]) + "->" + "abcdef"[: len(shape)], *factors)
    dense = np.where(rng.random(shape) < density, rng.poisson(5 * rates) + 1, 0).astype(float)
    dense[-1] = 0
    return amped.SparseTensor(np.argwhere(dense), dense[dense != 0], shape)


@pytest.mark.parametrize("nonnegative", [False, True])
@pytest.mark.parametrize(
    ("shape", "precision"),
    [
        (SHAPES[1], "fp64"),
        *(exhaustive(shape, how) for shape in SHAPES for how in PRECISIONS if (shape, how) != (SHAPES[1], "fp64")),
    ],
)
def test_as_alone(device: str, comm: Comm, shape: tuple[int, ...], precision: str, nonnegative: bool) -> None:
    tensor, rule = counts(shape), StopRule(12, 1e-4)
    how: dict[str, Any] = {"device": device, "precision": precision}
    found = multi_run(tensor, 24, comm, rule, nonnegative, **how)
    assert set(found) == set(RANKS)
    assert len({len(model.fits) for model in found.values()}) > 1, "they end at different times"
    assert_as_single_runs(found, tensor, rule, ACCURACY[device], nonnegative, **how)


@pytest.mark.parametrize("columns", [16, *map(exhaustive, [17, 58, 64])])
def test_any_number_of_columns(device: str, comm: Comm, columns: int) -> None:
    tensor, rule, how = counts((15, 11, 12)), StopRule(15, 1e-4), {"device": device, "precision": "fp32"}
    found = multi_run(tensor, columns, comm, rule, **how)
    assert_as_single_runs(found, tensor, rule, ACCURACY[device], False, **how)


def test_streamed_nonzeros(device: str, comm: Comm) -> None:
    tensor, rule = counts((15, 11, 12)), StopRule(6, 0)
    how: dict[str, Any] = {"device": device, "precision": "fp64", "placement": "stream"}
    with small_pieces(40):
        found = multi_run(tensor, 20, comm, rule, **how)
    assert_as_single_runs(found, tensor, rule, 1e-9, False, **how)


@pytest.mark.parametrize("precision", [exhaustive("fp32"), exhaustive("fp64")])
def test_fits_near_one_and_singular_equations(device: str, comm: Comm, precision: str) -> None:
    assert_near_one_as_single_runs(comm, SINGULAR_ACCURACY[device], device=device, precision=precision)


def test_dense_tensors(device: str, comm: Comm) -> None:
    dense, rule, how = low_rank((12, 10, 9), 3, 0.2, 3), StopRule(20, 1e-6), {"device": device, "precision": "fp64"}
    found = multi_run(DenseTensor(dense), 20, comm, rule, **how)
    assert_as_single_runs(found, dense, rule, 1e-7, False, **how)


def test_a_pass_serves_all(comm: Comm) -> None:
    """All runs of one iteration take one pass per mode."""
    tensor, chosen = counts((15, 11, 12)), Options(device="cpu")
    ranks = dict.fromkeys(range(5), 3)
    with opened(tensor, comm, chosen, None) as (machine, source):
        several = multi_run_als(source, ranks, 15, machine, chosen, Budget(), NONE, lambda key: key)
        operator: Any = several._operator
        passes, compute = list[int](), operator.mttkrp
        operator.mttkrp = lambda mode, *rest: (passes.append(mode), compute(mode, *rest))[1]
        assert {key for key, _ in several.run(ranks, StopRule(3, 0))} == set(ranks)
    assert passes == [0, 1, 2] * 3


def test_what_diverges_says_where(comm: Comm, monkeypatch: pytest.MonkeyPatch) -> None:
    def solve(self: Any, mode: int, source: Any, target: Any, again: bool = False) -> None:
        if mode == 1 and target.shape[1] == 2:
            raise DivergedError("of rank 2")

    monkeypatch.setattr(CpuEquations, "solve", solve)
    with pytest.raises(DivergedError, match=r"iteration 1, mode 1: of rank 2; likely cause"):
        multi_run(
            counts((9, 8, 7)), 12, comm, StopRule(3, 0), ranks={(rank, 0): rank for rank in (1, 2, 3)}, device="cpu"
        )
