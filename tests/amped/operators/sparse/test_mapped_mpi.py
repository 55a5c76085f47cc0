"""Losses of sparse tensors, their gradients and L-BFGS-B over all ranks, on each device."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from gcp import model_array, oracle, values_for
from oracle import random_factors

import amped
from amped.parallel.mpi import Comm

pytestmark = pytest.mark.mpi
SHAPE = (40, 9, 30)


def sparse(array: np.ndarray) -> amped.SparseTensor:
    """Return the nonzeros of an array."""
    return amped.SparseTensor(np.argwhere(array), array[array != 0], array.shape)


@pytest.mark.parametrize("placement", ["auto", "stream"])
@pytest.mark.parametrize("name", ["poisson", "gaussian"])
def test_values_and_gradients(comm: Comm, device: str, name: str, placement: str) -> None:
    """A row has a third of the nonzeros, so that ranks share it."""
    factors = random_factors(0, SHAPE, 5)
    array = values_for(name, model_array(factors))
    array[1:] *= np.random.default_rng(1).random((SHAPE[0] - 1, *SHAPE[1:])) < 0.05
    value, gradients = amped.objective(
        sparse(array) if comm.rank == 0 else None, factors, loss=name, device=device, placement=placement
    )  # type: ignore[misc]
    want, expected = oracle(array, factors, name)
    assert value == pytest.approx(want, rel=1e-11)
    for gradient, right in zip(gradients, expected, strict=True):
        np.testing.assert_allclose(gradient, right, atol=1e-11 * np.linalg.norm(right))


@pytest.mark.parametrize("dense", [False, True])
def test_a_rank_without_entries(comm: Comm, device: str, dense: bool) -> None:
    """The only mode that is not fixed has fewer rows than there may be ranks."""
    start = random_factors(0, (8, 7, 2), 3)
    array = values_for("poisson", model_array([3 * f for f in start]))
    tensor: Any = array if dense else sparse(array)
    given: dict[str, Any] = {"loss": "poisson", "method": "lbfgs", "max_iters": 3, "fixed_modes": [0, 1], "init": start}
    model = amped.cp(tensor if comm.rank == 0 else None, 3, device=device, precision="fp64", tol=0, **given)
    assert len(set(comm.allgather(repr(model.series)))) == 1
    assert np.all(np.diff(model.series["objective"]) <= 0)


def test_hypersparse_modes(comm: Comm, device: str) -> None:
    """Whose unused rows a CPU leaves out, also of the vectors that are planned."""
    rng, shape = np.random.default_rng(0), (3_000_000, 6, 5)
    indices = np.stack(
        [rng.choice(np.arange(0, shape[0], 9000), 400), *(rng.integers(0, n, 400) for n in shape[1:])], 1
    )
    tensor = amped.SparseTensor(indices, rng.poisson(2.0, 400) + 1.0, shape)
    start = random_factors(3, shape, 2)
    given: dict[str, Any] = {"loss": "poisson", "method": "lbfgs", "max_iters": 4, "tol": 0, "precision": "fp64"}
    model = amped.cp(tensor if comm.rank == 0 else None, 2, init=start, device=device, **given)
    factors = [model.factors[0] * model.weights, *model.factors[1:]]
    value = amped.objective(tensor if comm.rank == 0 else None, factors, loss="poisson", gradient=False, device="cpu")
    assert value == pytest.approx(model.series["objective"][-1], rel=1e-9)
    plan = comm.bcast(amped.plan(tensor if comm.rank == 0 else None, 2, loss="poisson", device=device))
    if device == "cpu":  # a GPU keeps all rows
        assert max(plan.device_bytes[0].values()) < 1 << 24
