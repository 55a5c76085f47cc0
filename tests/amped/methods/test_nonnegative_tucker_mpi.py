"""Non-negative and partly uncompressed Tucker decompositions over all ranks."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from oracle import random_nonzeros
from tuckers import relative_error

import amped
from amped.parallel.mpi import Comm

pytestmark = pytest.mark.mpi

SHAPE, RANKS = (8, 6, 7), (3, 2, 3)
FITS = 0.9040473026702647, 0.9206080075538468, 0.9227086808529581, 0.9235152741905911  # of one rank


def tensors(dense: bool) -> tuple[Any, np.ndarray]:
    columns, values = random_nonzeros(3, SHAPE, 150)
    array = np.zeros(SHAPE)
    np.add.at(array, tuple(columns), np.abs(values))
    return array if dense else amped.SparseTensor(np.argwhere(array), array[array != 0], SHAPE), array


@pytest.mark.parametrize(
    "how",
    [
        {"rank": RANKS, "nonnegative": True},
        {"rank": (None, 2, 3), "nonnegative": True},
        {"rank": (3, 2, None)},
        {"rank": (None, 2, 3)},
        {"rank": RANKS, "fixed_modes": (2,)},
        {"error": 0.6},
    ],
)
@pytest.mark.parametrize("dense", [False, True])
def test_all_ranks_have_the_model_of_one(comm: Comm, device: str, dense: bool, how: dict[str, Any]) -> None:
    tensor, array = tensors(dense)
    drawn = [np.random.default_rng([n, 1]).random((n, r)) for n, r in zip(SHAPE, RANKS, strict=True)]
    if "rank" in how:
        ranks = how["rank"]
        how = {**how, "init": [np.eye(len(f)) if r is None else f for f, r in zip(drawn, ranks, strict=True)]}
    options: dict[str, Any] = {"max_iters": 4, "tol": 0, "precision": "fp64", "device": device}
    model = amped.tucker(tensor if comm.rank == 0 else None, **how, **options)
    assert 1 - relative_error(array, model) == pytest.approx(model.fits[-1], abs=1e-9)
    mine = (model.core.tobytes(), *(factor.tobytes() for factor in model.host_factors), str(model.fits))
    assert all(other == mine for other in comm.allgather(mine))
    if how.get("rank") == RANKS and "nonnegative" in how:
        np.testing.assert_allclose(model.fits, FITS, atol=1e-10)
