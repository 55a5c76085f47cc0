"""Losses of dense tensors and their gradients over all ranks, on each device."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from gcp import check_gradients, model_array, oracle, values_for
from oracle import random_factors

import amped
from amped.parallel.mpi import Comm

pytestmark = pytest.mark.mpi


@pytest.mark.parametrize("placement", ["auto", "stream"])
@pytest.mark.parametrize("case", [((6, 5, 4), 3, "poisson"), ((1, 5, 6), 7, "huber:0.5")])
def test_values_and_gradients(comm: Comm, device: str, case: Any, placement: str) -> None:
    """There may be more ranks than rows."""
    check_gradients(comm, case, device=device, placement=placement, precision="fp64")


def test_a_decomposition(comm: Comm, device: str) -> None:
    """The same on all ranks, and the loss of the model is the one that was reported."""
    shape = (12, 10, 8)
    start = random_factors(0, shape, 2)
    array = values_for("poisson", model_array([4 * f for f in start]))
    given: dict[str, Any] = {"method": "lbfgs", "max_iters": 5, "tol": 0, "precision": "fp64", "device": device}
    model = amped.cp(array if comm.rank == 0 else None, 2, loss="poisson", init=start, **given)
    assert len(set(comm.allgather(repr(model.series)))) == 1
    ends = [model.factors[0] * model.weights, *model.factors[1:]]
    assert oracle(array, ends, "poisson")[0] == pytest.approx(model.series["objective"][-1], rel=1e-10)
    assert np.all(np.diff(model.series["objective"]) <= 0)
