"""Speeds of all ranks at once."""

from __future__ import annotations

import numpy as np
from oracle import machine_of

from amped.operators.prediction import measure
from amped.options import Options
from amped.parallel.mpi import Comm


def test_every_rank_has_the_speeds_of_the_slowest(comm: Comm, device: str) -> None:
    speeds = measure(machine_of(device, comm), (1000, 3), 16, Options())
    assert all(other == speeds for other in comm.allgather(speeds))
    if comm.size > 1:
        assert 0 < speeds.message < 60
        assert 0 < speeds.exchange < np.inf
