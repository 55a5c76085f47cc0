"""Runs of CP-APR in one batch equal separate runs."""

from __future__ import annotations

from typing import Any
from unittest import mock

import numpy as np
import pytest
from counts import random_counts
from forms import exhaustive
from oracle import PRECISIONS, small_pieces
from severalruns import assert_counts_as_single_runs

import amped
from amped.methods.driver import StopRule
from amped.methods.poisson import Poisson
from amped.options import Options
from amped.parallel.mpi import Comm
from amped.runs import assembly
from amped.runs.assembly import multi_run_apr
from amped.runs.session import opened

SHAPES = [(19, 13), (9, 11, 10), (6, 7, 5, 8), (5, 1, 6, 5, 4), (4, 3, 4, 3, 4, 3)]
RANKS = {(rank, start): rank for rank in (1, 2, 4, 16) for start in range(3)}


@pytest.mark.parametrize(
    ("shape", "precision"),
    [
        (SHAPES[1], "fp64"),
        *(exhaustive(shape, how) for shape in SHAPES for how in PRECISIONS if (shape, how) != (SHAPES[1], "fp64")),
    ],
)
def test_as_alone(comm: Comm, device: str, shape: tuple[int, ...], precision: str) -> None:
    ranks = RANKS if len(shape) == 3 else {key: rank for key, rank in RANKS.items() if rank in (2, 4)}
    assert_counts_as_single_runs(
        random_counts(len(shape), shape), ranks, comm, StopRule(8, 1e-4), device=device, precision=precision
    )


def test_others_get_the_place_of_those_that_have_ended(comm: Comm, device: str) -> None:
    """Three groups have room, and runs of one component end after two iterations."""
    ranks = {(rank, start): rank for rank in (1, 16) for start in range(5)}
    with mock.patch.object(assembly, "MAX_RANK", 128):
        assert_counts_as_single_runs(
            random_counts(3, (9, 8, 7)), ranks, comm, StopRule(5, 1e-4), device=device, precision="fp64"
        )


@pytest.mark.parametrize("threads", [exhaustive(1), 2, exhaustive(3)])
def test_rows_that_threads_and_shards_share(comm: Comm, device: str, threads: int) -> None:
    tensor = random_counts(5, (2, 40, 30))
    how: dict[str, Any] = {"device": device, "precision": "fp64", "threads": threads}
    with small_pieces(50):
        for placement in ("resident", "stream"):
            assert_counts_as_single_runs(tensor, RANKS, comm, StopRule(2, 0), placement=placement, **how)


def test_values_of_all_kinds(comm: Comm, device: str) -> None:
    """Log-likelihoods of small whole numbers are those of products."""
    given = random_counts(2, (12, 10, 9))
    values = np.resize([1, 2, 3, 4, 5, 0.5, 2.5, 1e6, 17], given.nnz).astype(float)
    tensor = amped.SparseTensor(given.columns.T, values, given.shape)
    assert_counts_as_single_runs(tensor, RANKS, comm, StopRule(6, 0), device=device, precision="fp64")


@pytest.mark.exhaustive
def test_a_pass_serves_all(comm: Comm, device: Any) -> None:
    chosen, ranks = Options(device=device), dict.fromkeys(range(5), 3)
    with opened(random_counts(1, (9, 8, 7)), comm, chosen, None) as (machine, source):
        several = multi_run_apr(source, ranks, machine, chosen, Poisson(0.0, inner_iters=2), lambda key: key)
        operator: Any = several._counts
        passes, compute = list[int](), operator.compute
        operator.compute = lambda phi, mode, *rest: (passes.append(mode), compute(phi, mode, *rest))[1]
        assert {key for key, _ in several.run(ranks, StopRule(2, 0))} == set(ranks)
    assert passes == [0, 0, 1, 1, 2, 2] * 2
