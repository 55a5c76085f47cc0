"""A scan on several ranks equals one on a single rank."""

from __future__ import annotations

import numpy as np
import pytest
from densecases import low_rank

import amped
from amped.parallel.mpi import Comm


@pytest.mark.ranks(2)
@pytest.mark.parametrize("kind", ["sparse", "dense"])
def test_all_ranks_tell_the_same(comm: Comm, kind: str) -> None:
    array = low_rank((12, 10, 8), 2, 0.05, 4)
    tensor = array if kind == "dense" else amped.SparseTensor(np.argwhere(array), array[array != 0], array.shape)
    given = tensor if comm.rank == 0 else None
    found = amped.scan(given, "1-3", starts=2, device="cpu", precision="fp64")  # type: ignore[arg-type]
    assert found.suggestion.rank == 2
    assert len(set(comm.allgather([each.explained for each in found.tried].__repr__()))) == 1
    assert found.tried[1].halves == pytest.approx(1, abs=0.05)
