"""A forecast of all ranks at once."""

from __future__ import annotations

import numpy as np
from command import random_tensor
from oracle import machine_of

from amped.methods.prediction import foretell
from amped.operators.placement import make_plan
from amped.operators.sources.sparse import TensorSource
from amped.options import Options
from amped.parallel.mpi import Comm
from amped.runs.assembly import setting_for, solving_bytes
from partitioner.tensors.sparse import SparseTensor


def test_every_rank_has_the_same_forecast(comm: Comm, device: str) -> None:
    machine, options = machine_of(device, comm), Options()
    indices, values = random_tensor((100, 3, 20), 2000)
    source = TensorSource(SparseTensor(indices, values, (100, 3, 20)) if comm.rank == 0 else None, comm)
    setting = setting_for(source, 4, machine, options, solving_bytes(machine, options, len(source.shape)))
    cuts = [source.cut(mode, comm.size) for mode in range(3)]
    found = foretell(source, make_plan(cuts, comm.rank, setting), machine, setting)
    assert np.isfinite(found.seconds)
    assert all(other == found for other in comm.allgather(found))
