"""CP-ALS by default on several ranks: all have the same start, and the fits of one rank."""

from __future__ import annotations

import numpy as np
import pytest

import amped
from amped.parallel.mpi import Comm

HOW = {"device": "cpu", "precision": "fp64", "threads": 1}


@pytest.mark.parametrize("dense", [True, False])
@pytest.mark.parametrize("seed", [None, 7])
def test_ranks_agree(comm: Comm, dense: bool, seed: int | None, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("AMPED_COMPILE", "never")
    rng = np.random.default_rng(0)
    array = np.einsum("ir,jr,kr->ijk", *[rng.normal(size=(length, 3)) for length in (10, 9, 8)])
    array += 0.05 * rng.normal(size=array.shape)
    X = array if dense else amped.SparseTensor(np.argwhere(array), array[array != 0], array.shape)
    model = amped.cp_als(X if comm.rank == 0 else None, 3, seed=seed, **HOW)
    assert len(set(comm.allgather((model.fits, model.run["init"], float(model.weights[0]))))) == 1
    assert np.diff(model.fits[2:]).min() > -1e-12
    assert model.fits[-1] == pytest.approx(1 - np.linalg.norm(array - model.full()) / np.linalg.norm(array), abs=1e-9)
    assert model.fits[-1] > 0.9
