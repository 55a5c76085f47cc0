"""Tests of the choice of how ranks share a tensor."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from eager import EagerExchange

import amped
from amped.backend.byte_count import Counted
from amped.operators.distributions.machine_model import H100, NVLINK, MachineModel
from amped.operators.placement import GridParts
from amped.operators.sources.sparse import TensorSource
from amped.options import Options
from amped.parallel.mpi import Comm
from amped.runs import distributing
from amped.runs.assembly import bring_up, setting_for
from amped.runs.distributing import distribution_for

pytestmark = [pytest.mark.mpi, pytest.mark.ranks(2)]


def _tensor(shape: tuple[int, ...]) -> amped.SparseTensor:
    rng, nonzeros = np.random.default_rng(0), 20_000
    return amped.SparseTensor(np.stack([rng.integers(0, n, nonzeros) for n in shape], 1), np.ones(nonzeros), shape)


@pytest.mark.parametrize(
    ("shape", "replicates", "repeats", "expected"),
    [
        ((50, 40, 30), True, 50, "replicated"),
        ((20, 30, 4_000_000), False, 100_000, GridParts((1, 1, 2), (1, 1, 1))),
        ((20, 30, 4_000_000), False, 1, "all-gather"),  # distributing the blocks would take longer
        ((50, 40, 30), True, None, "all-gather"),
    ],
)
def test_choice(
    comm: Comm, monkeypatch: pytest.MonkeyPatch, shape: Any, replicates: bool, repeats: int | None, expected: object
) -> None:
    monkeypatch.setattr(
        distributing, "machine_model", lambda machine, measure: MachineModel(H100, NVLINK, replicates=replicates)
    )
    options = Options(device="cpu")
    machine = bring_up(options, comm)
    source = TensorSource(_tensor(shape) if comm.rank == 0 else None, comm)
    setting = setting_for(source, 16, machine, options)
    gpus = machine._replace(exchange=Counted(EagerExchange(comm), comm))
    assert distribution_for(source, gpus, setting, repeats) == expected
    assert distribution_for(source, machine, setting, repeats) == "all-gather"  # CPUs of one host
