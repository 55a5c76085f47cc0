"""Factor matrices that are found without the host, over all ranks."""

from __future__ import annotations

from unittest import mock

import numpy as np
import pytest
from oracle import random_nonzeros
from tuckers import assert_orthonormal, dense_hooi

import amped
from amped.backend.device import Array
from amped.backend.null.ops.eigh import NumpyEigh
from amped.methods import singular_vectors
from amped.parallel.mpi import Comm

pytestmark = pytest.mark.mpi
SHAPE, RANKS = (40, 30, 20), (3, 3, 4)


class Own(NumpyEigh):
    """Vectors whose signs differ by rank; one rank finds them all equal."""

    def __init__(self, rank: int, failing: int | None) -> None:
        self._rank, self._fails = rank, rank == failing

    def eigenvectors(self, gram: Array, out: Array, facts: Array) -> None:
        super().eigenvectors(gram, out, facts)
        out *= (-1) ** self._rank
        if self._fails:
            out[...] = out[:, :1]


@pytest.mark.parametrize("failing", [None, 0, 1])
def test_all_ranks_take_rank_0_s(comm: Comm, failing: int | None) -> None:
    columns, values = random_nonzeros(1, SHAPE, 2000)
    dense = np.zeros(SHAPE)
    np.add.at(dense, tuple(columns), values)
    tensor = amped.SparseTensor(columns.T, values, SHAPE)
    start = [np.random.default_rng([n, r]).random((n, r)) for n, r in zip(SHAPE, RANKS, strict=True)]
    _, fits = dense_hooi(dense, start, 4)
    with mock.patch.object(singular_vectors, "eigh_of", return_value=Own(comm.rank, failing)):
        model = amped.tucker(
            tensor if comm.rank == 0 else None, RANKS, init=start, max_iters=4, tol=0, precision="fp64", device="cpu"
        )
    np.testing.assert_allclose(model.fits, fits, atol=1e-12)
    assert_orthonormal(model, 1e-12)
    mine = (model.core.tobytes(), *(f.tobytes() for f in model.factors), str(model.fits))
    assert all(other == mine for other in comm.allgather(mine))


def test_where_one_rank_cannot_none_does(comm: Comm) -> None:
    columns, values = random_nonzeros(1, SHAPE, 500)
    way = NumpyEigh() if comm.rank == 0 or comm.size == 1 else None
    tensor = amped.SparseTensor(columns.T, values, SHAPE)
    with mock.patch.object(singular_vectors, "eigh_of", return_value=way):
        with mock.patch.object(NumpyEigh, "whiten", side_effect=AssertionError) as whitened:
            if comm.size == 1:
                pytest.skip("needs more than one rank")
            amped.tucker(tensor if comm.rank == 0 else None, RANKS, max_iters=1, precision="fp64", device="cpu")
        whitened.assert_not_called()
