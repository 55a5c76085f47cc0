"""Runs in a batch, over all ranks."""

from __future__ import annotations

from itertools import product
from typing import Any

import numpy as np
import pytest
from densecases import low_rank
from forms import exhaustive
from hostbatch import HostBatches
from oracle import PRECISIONS
from severalruns import assert_as_single_runs, multi_run

import amped
from amped.methods.driver import StopRule
from amped.parallel.mpi import Comm
from amped.runs import assembly

pytestmark = pytest.mark.mpi
CASES = [("small", "fp32", False), ("large", "fp64", True), ("exact", "fp32", True)]
COLUMNS = {"fp32": 7, "fp64": 9}  # of runs side by side: one vector a row, and four
KINDS = ("small", "large", "exact")


@pytest.mark.parametrize(
    ("kind", "precision", "nonnegative"),
    [*CASES, *(exhaustive(*case) for case in product(KINDS, PRECISIONS, [False, True]) if case not in CASES)],
)
def test_as_alone(
    comm: Comm, device: str, monkeypatch: pytest.MonkeyPatch, kind: str, precision: str, nonnegative: bool
) -> None:
    """Small and large values are out of range, and rows are sent again; exact fits are computed in double precision."""
    if device == "cpu":
        monkeypatch.setattr(assembly, "batch_equations", HostBatches)
    noise, size = (0.0, 1.0) if kind == "exact" else (0.4, {"small": 1e-6, "large": 3e7}[kind])
    array = np.abs(low_rank((13, 10, 2), 3, noise, 5)) * size
    tensor = amped.SparseTensor(np.argwhere(array), array[array != 0], array.shape) if comm.rank == 0 else None
    rule, ranks = StopRule(12, 0), {(rank, start): rank for rank in (1, 2, 4) for start in range(2)}
    how: dict[str, Any] = {"device": device, "precision": precision}
    found = multi_run(tensor, COLUMNS[precision], comm, rule, nonnegative, ranks, **how)
    mine = [(key, model.fits, *(f.tobytes() for f in model.factors)) for key, model in found.items()]
    assert all(other == mine for other in comm.allgather(mine)), "on all ranks"
    assert_as_single_runs(found, tensor, rule, {"fp32": 1e-5, "fp64": 1e-9}[precision], nonnegative, **how)
