"""CP-ALS under constraints by AO-ADMM over all ranks."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from oracle import random_factors
from proximal import dense_ao_admm

import amped
from amped.errors import InputError
from amped.parallel.mpi import Comm
from partitioner.shards.sorters import probe

pytestmark = pytest.mark.mpi

RNG = np.random.default_rng(0)
DENSE = np.where(RNG.random((8, 7, 6)) < 0.6, RNG.random((8, 7, 6)) + 0.2, 0)
TENSOR = amped.SparseTensor(np.argwhere(DENSE), DENSE[DENSE != 0], DENSE.shape)
HOW: dict[str, Any] = {"tol": 0, "precision": "fp64", "device": "cpu", "threads": 1}
KINDS: list[dict[int, Any]] = [
    {0: ["nonnegative", "l1:0.1"], 1: "smooth:0.1", 2: "monotone"},
    {0: "simplex:rows", 1: "orthonormal", 2: "bounds:-0.5:1.5"},
    {1: ["unimodal", "nonnegative"], 2: "sparse:3"},
]


@pytest.mark.parametrize("tensor", [DENSE, TENSOR], ids=["dense", "sparse"])
@pytest.mark.parametrize("constraints", KINDS)
def test_the_path_of_the_oracle(comm: Comm, tensor: Any, constraints: dict[int, Any]) -> None:
    start = random_factors(0, DENSE.shape, 3)
    given = tensor if comm.rank == 0 else None
    model = amped.cp_als(given, 3, init=start, max_iters=8, constraints=constraints, **HOW)
    factors, objectives = dense_ao_admm(DENSE, start, 8, constraints)
    np.testing.assert_allclose(model.series["objective"], objectives, rtol=1e-10)
    np.testing.assert_allclose(model.full(), np.einsum("ir,jr,kr->ijk", *factors), atol=1e-10)
    parts = (model.weights.tobytes(), *(f.tobytes() for f in model.factors), str(model.series))
    assert all(other == parts for other in comm.allgather(parts))


def test_a_resumed_run_is_the_uninterrupted_one(comm: Comm, tmp_path: Any) -> None:
    folder = comm.bcast(tmp_path) / "c"
    how = HOW | {"constraints": KINDS[0]}
    given = TENSOR if comm.rank == 0 else None
    whole = amped.cp_als(given, 3, max_iters=6, **how)
    amped.cp_als(given, 3, max_iters=3, checkpoint=folder, **how)
    rest = amped.cp_als(given, 3, max_iters=6, checkpoint=folder, resume=True, **how)
    assert rest.series == whole.series


def test_a_function_that_fails(comm: Comm) -> None:
    """The error of rank 0, which solves the mode, is raised on all ranks."""

    def fail(matrix: np.ndarray, step: float) -> np.ndarray:
        return matrix if step < 1e-6 else matrix[:1]

    with pytest.raises(InputError, match="its result is of shape"):
        amped.cp_als(TENSOR if comm.rank == 0 else None, 3, max_iters=2, constraints={1: fail}, **HOW)


def test_ranks_with_different_constraints(comm: Comm) -> None:
    if comm.size == 1:
        pytest.skip("needs several ranks")
    with pytest.raises(InputError, match="constraints"):
        amped.cp_als(TENSOR, 3, constraints={1: "unimodal" if comm.rank else "monotone"}, **HOW)


def test_fixed_elements(comm: Comm) -> None:
    """Of a mode whose rows are solved on their ranks, and of one whose rows constraints relate."""
    start, mask = random_factors(0, DENSE.shape, 3), np.zeros((8, 3), bool)
    mask[[1, 6]] = True
    how = HOW | {"init": start, "max_iters": 5, "fixed": {0: mask}}
    constraints = {1: ["monotone", "fixed:columns:2"]}
    model = amped.cp_als(TENSOR if comm.rank == 0 else None, 3, constraints=constraints, **how)
    kept = [c for c in start[0].T if any(np.array_equal(c[mask[:, 0]], d[mask[:, 0]]) for d in model.factors[0].T)]
    assert len(kept) == 3
    assert any(np.array_equal(column, start[1][:, 2]) for column in model.factors[1].T)
    assert (np.diff(model.series["objective"]) <= 1e-12 * model.series["objective"][0]).all()


@pytest.mark.gpu
@pytest.mark.parametrize("constraints", [*KINDS, {1: "nonnegative"}])
def test_on_gpus(comm: Comm, constraints: dict[int, Any]) -> None:
    if missing := probe():
        pytest.skip(missing)
    given, how = TENSOR if comm.rank == 0 else None, HOW | {"init": random_factors(0, DENSE.shape, 3), "max_iters": 40}
    model = amped.cp_als(given, 3, constraints=constraints, **how | {"device": "cuda", "threads": None})
    wanted = amped.cp_als(given, 3, constraints=constraints, **how)
    objectives = np.array(model.series["objective"])
    assert (np.diff(objectives) <= 1e-12 * objectives[0]).all()
    assert objectives[-1] <= 1.02 * wanted.series["objective"][-1]
    parts = (model.weights.tobytes(), *(f.tobytes() for f in model.factors), str(model.series))
    assert all(other == parts for other in comm.allgather(parts))
