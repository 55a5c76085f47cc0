"""Runs exchange exactly the bytes that plans state, in each distribution."""

from __future__ import annotations

import math
from typing import Any

import numpy as np
import pytest

import amped
from amped.backend.byte_count import ByteCount
from amped.operators.distributions.forecast import Candidate
from amped.parallel.mpi import Comm

pytestmark = pytest.mark.mpi
SHAPE, SMALL = (60, 35, 8), (9, 7, 5)


def recorded(monkeypatch: pytest.MonkeyPatch) -> list[int]:
    """Return a list to which the bytes of each iteration will be added."""
    taken, take = list[int](), ByteCount.take

    def take_and_keep(count: ByteCount) -> int:
        taken.append(take(count))
        return taken[-1]

    monkeypatch.setattr(ByteCount, "take", take_and_keep)
    return taken


@pytest.mark.parametrize("method", ["observed", "counts", "constrained"])
def test_iterations_of_other_methods_exchange_the_same_bytes(
    comm: Comm, device: str, method: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Also those that a device repeats as captured work."""
    rng, taken = np.random.default_rng(3), recorded(monkeypatch)
    x = amped.SparseTensor(np.argwhere(np.ones(SMALL)), rng.uniform(0.5, 1, math.prod(SMALL)), SMALL)
    how: dict[str, Any] = {"device": device, "max_iters": 6, "tol": 0, "seed": 1, "grid": "all-gather"}
    if method == "counts":
        amped.cp_apr(x, 2, **how)
    elif method == "observed":
        amped.cp_als(x, 2, mask="stored", ridge=0.1, accelerate=False, **how)
    else:
        amped.cp_als(x, 2, constraints={1: "l1:0.1"}, **how)
    assert len(set(taken[-5:])) == 1
    assert comm.size == 1 or taken[-1] > 0


@pytest.mark.ranks(2, 3, 4, 6, 8)
def test_iterations_exchange_the_planned_bytes(comm: Comm, device: str, monkeypatch: pytest.MonkeyPatch) -> None:
    rng = np.random.default_rng(3)
    columns = np.unique([np.minimum(rng.zipf(1.8, 4000), n) - 1 for n in SHAPE], axis=1).astype(np.int32)
    x = amped.SparseTensor.from_columns(columns, np.ones(columns.shape[1]), SHAPE)
    given: dict[str, Any] = {"device": device}
    planned = comm.bcast(amped.plan(x, 3, **given))
    taken = recorded(monkeypatch)
    assert len(planned.candidates) > 2

    def check(each: Candidate, **options: Any) -> None:
        grid = str(each.distribution).removeprefix("grid ")
        amped.cp_als(x, 3, grid=grid, max_iters=5, tol=0, seed=1, **given, **options)
        assert comm.allgather(taken[-1]) == each.bytes, each.distribution

    for each in planned.candidates:
        check(each)
    one_copy = comm.bcast(amped.plan(x, 3, kernel="permuted", **given))
    check(next(each for each in one_copy.candidates if each.distribution.name == "all-gather"), kernel="permuted")
