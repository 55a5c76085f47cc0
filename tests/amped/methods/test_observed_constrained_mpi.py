"""CP-ALS over observed elements under constraints over all ranks."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from oracle import random_factors
from proximal import observed_ao_admm

import amped
from amped.parallel.mpi import Comm

pytestmark = pytest.mark.mpi

HOW: dict[str, Any] = {"tol": 0, "precision": "fp64", "device": "cpu", "threads": 1}
RNG = np.random.default_rng(0)
DENSE = RNG.random((8, 7, 6)) + 0.2
MASK = RNG.random(DENSE.shape) < 0.7
WEIGHTS = np.where(MASK, RNG.integers(1, 4, DENSE.shape), 0).astype(float)
KINDS: list[dict[int, Any]] = [
    {0: ["nonnegative", "l1:0.1"], 1: "simplex:rows", 2: "smooth:0.1"},
    {0: "monotone", 1: "orthonormal"},
]


@pytest.mark.parametrize("constraints", KINDS)
def test_the_path_of_the_oracle(comm: Comm, constraints: dict[int, Any]) -> None:
    start = random_factors(0, DENSE.shape, 3)
    given = (DENSE, WEIGHTS) if comm.rank == 0 else (None, None)
    model = amped.cp_als(given[0], 3, init=start, max_iters=6, constraints=constraints, weights=given[1], **HOW)
    factors, objectives = observed_ao_admm(DENSE, WEIGHTS, start, 6, constraints)
    np.testing.assert_allclose(model.series["objective"], objectives, rtol=1e-9)
    np.testing.assert_allclose(model.full(), np.einsum("ir,jr,kr->ijk", *factors), atol=1e-9)
    parts = (model.weights.tobytes(), *(f.tobytes() for f in model.factors), str(model.series))
    assert all(other == parts for other in comm.allgather(parts))
