"""Speeds of all ranks at once."""

from __future__ import annotations

import numpy as np

from amped.backend import choose
from amped.operators.prediction import measure
from amped.parallel.exchange import connect
from amped.parallel.mpi import Comm


def test_every_rank_has_the_speeds_of_the_slowest(comm: Comm, device: str) -> None:
    backend = choose(device, comm)  # type: ignore[arg-type]
    speeds = measure(backend, connect(backend, comm), comm, (1000, 3), 16, np.dtype(np.float32))
    assert all(other == speeds for other in comm.allgather(speeds))
    if comm.size > 1:
        assert 0 < speeds.message < 60
        assert 0 < speeds.exchange < np.inf
