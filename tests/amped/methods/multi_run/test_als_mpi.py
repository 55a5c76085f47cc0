"""Runs side by side, over all ranks."""

from __future__ import annotations

from itertools import product
from typing import Any

import numpy as np
import pytest
from densecases import low_rank
from forms import exhaustive
from oracle import PRECISIONS
from severalruns import assert_as_single_runs, multi_run

import amped
from amped.methods.driver import StopRule
from amped.parallel.mpi import Comm
from partitioner.tensors.dense import DenseTensor

pytestmark = pytest.mark.mpi
CASES = [("sparse", "fp32", True), ("dense", "fp32", False), ("exact", "fp32", False), ("sparse", "fp64", False)]
COLUMNS = {"fp32": 7, "fp64": 9}  # of runs side by side: one vector a row, and four
KINDS = ("sparse", "dense", "exact")


@pytest.mark.parametrize(
    ("kind", "precision", "nonnegative"),
    [*CASES, *(exhaustive(*case) for case in product(KINDS, PRECISIONS, [False, True]) if case not in CASES)],
)
def test_as_alone(comm: Comm, device: str, kind: str, precision: str, nonnegative: bool) -> None:
    array = np.abs(low_rank((13, 10, 2), 3, 0.0 if kind == "exact" else 0.4, 5))
    nonzeros = amped.SparseTensor(np.argwhere(array), array[array != 0], array.shape)
    given = DenseTensor(array) if kind == "dense" else nonzeros
    tensor, rule = given if comm.rank == 0 else None, StopRule(12, 0)
    ranks = {(rank, start): rank for rank in (1, 2, 4) for start in range(2)}
    how: dict[str, Any] = {"device": device, "precision": precision}
    found = multi_run(tensor, COLUMNS[precision], comm, rule, nonnegative, ranks, **how)
    mine = [(key, model.fits, *(f.tobytes() for f in model.factors)) for key, model in found.items()]
    assert all(other == mine for other in comm.allgather(mine)), "on all ranks"
    assert_as_single_runs(found, tensor, rule, {"fp32": 1e-5, "fp64": 1e-9}[precision], nonnegative, **how)
