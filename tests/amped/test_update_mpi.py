"""Updates of models on several ranks: all ranks return the model of one rank."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

import amped
from amped.parallel.mpi import Comm

CPU: dict[str, Any] = {"device": "cpu", "precision": "fp64"}


def counts_of(shape: tuple[int, ...], seed: int) -> np.ndarray:
    return np.random.default_rng(seed).poisson(0.8, shape).astype(float)


@pytest.mark.parametrize("loss", ["gaussian", "poisson"])
def test_the_model_of_one_rank(comm: Comm, loss: str) -> None:
    model = amped.cp(counts_of((6, 5, 4), 0), 2, loss=loss, max_iters=3, **CPU)
    data = counts_of((6, 5, 3), 1)
    found = model.update(data if comm.rank == 0 else None, 2, step=2, forgetting=0.9, **CPU)
    alone = comm.allgather([found.weights, *found.factors])
    for each in alone[1:]:
        for one, other in zip(alone[0], each, strict=True):
            np.testing.assert_array_equal(one, other)
    assert found.run["updates"] == 2
    distance = np.linalg.norm(data - found.full()[:, :, 4:])
    assert distance < np.linalg.norm(data)


def test_rank_0_s_data_and_errors(comm: Comm) -> None:
    model = amped.cp_als(counts_of((6, 5, 4), 0), 2, max_iters=3, **CPU)
    few = np.zeros((6, 5, 1))
    few[2, 3, 0] = 1.0  # fewer elements than ranks
    slices = iter([few, few]) if comm.rank == 0 else iter(())
    assert model.update(slices, 2, **CPU).shape == (6, 5, 6)
    with pytest.raises(amped.InputError, match="NaN"):
        model.update(np.full((6, 5, 1), np.nan) if comm.rank == 0 else None, 2, **CPU)
    with pytest.raises(amped.InputError, match="mode"):
        model.update(few, 2 if comm.rank == 0 else 1, **CPU) if comm.size > 1 else model.update(few, 7, **CPU)


@pytest.mark.ranks(1, 2)
def test_other_losses(comm: Comm) -> None:
    data = (counts_of((5, 4, 6), 2) > 0).astype(float)
    model = amped.cp(data[:, :, :4], 1, loss="bernoulli-logit", max_iters=5, **CPU)
    found = model.update(data[:, :, 4:] if comm.rank == 0 else None, 2, step=1, **CPU)
    assert found.loss == "bernoulli-logit"
    assert found.shape == (5, 4, 6)
    for each in comm.allgather(found.full()):
        np.testing.assert_array_equal(each, found.full())
