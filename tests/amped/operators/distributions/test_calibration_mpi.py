"""Tests of the measurement of links by several ranks."""

from __future__ import annotations

import pytest

from amped.operators.distributions import calibration
from amped.options import Options
from amped.parallel.mpi import world
from amped.runs.assembly import bring_up


@pytest.mark.mpi
@pytest.mark.ranks(2, 3)
def test_ranks_agree_on_links_which_are_measured_once(monkeypatch):
    machine = bring_up(Options(device="cpu"), world())
    stored: dict[str, float] = {}
    monkeypatch.setattr(calibration, "load_timings", lambda *_: dict(stored))
    monkeypatch.setattr(calibration, "store_timings", lambda kind, facts, device, found: stored.update(found))
    model = calibration.machine_model(machine)
    assert model.links.local != calibration.SHARED_MEMORY.local
    assert machine.comm.allgather(model) == [model] * machine.comm.size
    monkeypatch.setattr(calibration, "_fastest", None)
    assert calibration.machine_model(machine) == model
