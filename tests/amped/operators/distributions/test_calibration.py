"""Tests of the measurement of links."""

from __future__ import annotations

from dataclasses import replace

import pytest

from amped.operators.distributions.calibration import calibrated, machine_model
from amped.operators.distributions.machine_model import NVLINK, Links
from amped.options import Options
from amped.parallel.mpi import world
from amped.runs.assembly import bring_up

BYTES = 64e6


def _times(links: Links, ranks: int) -> dict[str, float]:
    """Return what a measurement would find."""
    nodes = -(-ranks // links.ranks_per_node)
    return {
        "small": links.latency(ranks, nodes),
        "gather": links.all_gather(BYTES, ranks, nodes),
        "reduce": links.reduce_scatter(BYTES, ranks, nodes),
        "bytes": BYTES,
    }


@pytest.mark.parametrize("ranks", [2, 3, 8])
def test_links_within_a_node_are_found_from_their_times(ranks):
    actual = replace(NVLINK, local=20e9, hop=35e-6, summing=2.5)
    found = calibrated(NVLINK, ranks, _times(actual, ranks))
    assert (found.local, found.hop, found.summing) == pytest.approx((20e9, 35e-6, 2.5))
    assert found.network == NVLINK.network


def test_several_nodes_calibrate_the_network():
    actual = replace(NVLINK, network=3e9, node_hop=90e-6)
    found = calibrated(NVLINK, 32, _times(actual, 32))
    assert (found.network, found.node_hop) == pytest.approx((3e9, 90e-6))
    assert found.local == NVLINK.local


def test_a_large_message_that_is_not_slower_is_no_error():
    links = calibrated(NVLINK, 2, {"small": 2e-5, "gather": 1e-5, "reduce": 1e-5, "bytes": 1e6})
    assert links.local > 0
    assert links.all_gather(1e6, 2, 1) > 0


def test_a_single_rank_measures_nothing(monkeypatch):
    monkeypatch.setattr("amped.operators.distributions.calibration.store_timings", None)
    model = machine_model(bring_up(Options(device="cpu"), world()))
    assert not model.replicates
    assert model.device.name.startswith("CPU")
