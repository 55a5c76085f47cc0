"""Decompositions with compact matrices on several ranks; see `test_hypersparse`."""

from __future__ import annotations

import pytest
from hypersparse import assert_alike, both_ways, hypersparse

from amped.parallel.mpi import Comm

pytestmark = pytest.mark.mpi


ZERO_ROWS = ["admm", "admm, smooth", "masked", "masked admm", "lbfgs", "masked newton"]
NAMES = ["als", "fixed", "nonnegative", "mu", "pdnr", "hooi", *(f"{name}, rank 7" for name in ZERO_ROWS)]


@pytest.mark.parametrize("name", NAMES)
def test_compact_matrices_change_results_only_by_rounding(
    comm: Comm, monkeypatch: pytest.MonkeyPatch, name: str
) -> None:
    usual, compact, made = both_ways(monkeypatch, name, hypersparse(3) if comm.rank == 0 else None)
    assert made == 1
    assert_alike(usual, compact)
    parts = [factor.tobytes() for factor in compact.factors]
    assert all(other == parts for other in comm.allgather(parts)), "all ranks have the same model"


def test_rows_that_ranks_share(comm: Comm, monkeypatch: pytest.MonkeyPatch) -> None:
    """A tensor with few rows, each of which is cut: ranks add their sums."""
    tensor = hypersparse(4, seed=3, nonzeros=200) if comm.rank == 0 else None
    usual, compact, _ = both_ways(monkeypatch, "als", tensor, deterministic=True)
    assert_alike(usual, compact)
