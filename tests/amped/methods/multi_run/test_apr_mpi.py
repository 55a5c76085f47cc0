"""Runs of CP-APR side by side, over all ranks."""

from __future__ import annotations

from itertools import product

import pytest
from counts import random_counts
from forms import exhaustive
from oracle import PRECISIONS
from severalruns import assert_counts_as_single_runs

from amped.methods.driver import StopRule
from amped.parallel.mpi import Comm

pytestmark = pytest.mark.mpi
SHAPES = [(9, 11, 10), (2, 30, 20), (6, 7, 5, 8)]
CASES = [((9, 11, 10), "fp64"), ((2, 30, 20), "fp64")]


@pytest.mark.parametrize(
    ("shape", "precision"),
    [*CASES, *(exhaustive(*case) for case in product(SHAPES, PRECISIONS) if case not in CASES)],
)
def test_as_alone(comm: Comm, device: str, shape: tuple[int, ...], precision: str) -> None:
    tensor = random_counts(len(shape), shape) if comm.rank == 0 else None
    ranks = {(rank, start): rank for rank in (1, 2, 4) for start in range(3)}
    assert_counts_as_single_runs(tensor, ranks, comm, StopRule(6, 1e-4), device=device, precision=precision)
