"""The model of the machine at hand: constants of known devices, and links as a short measurement finds them."""

from __future__ import annotations

import math
from dataclasses import replace
from itertools import pairwise

import numpy as np

from ...backend.device import Array
from ...backend.exchange import Machine
from ..tuning_cache import load_timings, store_timings
from .machine_model import CARDS, H100, NVLINK, SHARED_MEMORY, DeviceSpeed, Links, MachineModel, cpu_speed
from .traffic import node_count

KIND = "links"  # name in the tuning cache
COLUMNS = 32  # of the matrices that are exchanged
LARGE = {True: 8 << 20, False: 64 << 20}  # bytes of the large ones, on the host and on a device
CALLS, RUNS = 8, 3  # calls that are timed together, and how often; the fastest counts
MOST_SUMMING = 50.0


def machine_model(machine: Machine, measure: bool = True) -> MachineModel:
    """Return the model of a machine, equal on all ranks. Collective.

    Parameters
    ----------
    machine : Machine
    measure : bool
        Whether links may be measured; the result is stored in the tuning cache. Otherwise constants are used.
    """
    usual = replace(SHARED_MEMORY if machine.device.on_host else NVLINK, ranks_per_node=ranks_per_node(machine))
    links = calibrated(usual, machine.comm.size, _seconds(machine)) if measure and machine.comm.size > 1 else usual
    return MachineModel(device_speed(machine), links, replicates=machine.exchange.overlaps)


def ranks_per_node(machine: Machine) -> int:
    """Return the largest number of ranks on a node. Collective."""
    return max(machine.comm.allgather(machine.comm.local_size))


def device_speed(machine: Machine) -> DeviceSpeed:
    """Return the speed of a rank's device; GPUs that are not known count as H100s. Collective."""
    if machine.device.on_host:
        return cpu_speed(min(machine.comm.allgather(machine.device.cores)))
    name: str = machine.comm.allgather(machine.device.model)[0]
    return next((card for card in CARDS.values() if card.name in name), H100)


def calibrated(usual: Links, ranks: int, seconds: dict[str, float]) -> Links:
    """Return links that agree with measured seconds of a small all-gather and of a large one and its reverse.

    `seconds` has "small", "gather" and "reduce", and "bytes", the size of the large matrix. Ranks on several nodes
    calibrate the network, others the links within a node.
    """
    nodes, small = node_count(ranks, usual.ranks_per_node), seconds["small"]
    large, there = (max(seconds[name] - small, 0.01 * seconds[name]) for name in ("gather", "reduce"))
    links = replace(usual, summing=min(MOST_SUMMING, there / large))
    doublings = 1 + math.log2(max(1.0, ranks / nodes))
    if nodes == 1:
        local = seconds["bytes"] / ranks * (ranks - 1 + usual.start) / large
        return replace(links, local=local, hop=small / doublings)
    network = seconds["bytes"] * (nodes - 1) / ranks / large
    return replace(links, network=network, node_hop=max(usual.hop, (small - usual.hop * doublings) / math.log2(nodes)))


def _seconds(machine: Machine) -> dict[str, float]:
    """Return measured seconds, from the tuning cache if they are there; see `calibrated`. Collective."""
    comm, device = machine.comm, machine.device
    facts = {"ranks": comm.size, "ranks_per_node": ranks_per_node(machine), "exchange": machine.exchange.name}
    known = comm.bcast(load_timings(KIND, facts, device) if comm.rank == 0 else {})
    if {"small", "gather", "reduce", "bytes"} <= known.keys():
        return known
    rows = max(1, LARGE[device.on_host] // (COLUMNS * 8) // comm.size)
    large, small = (device.zeros((comm.size * each, COLUMNS), np.float64) for each in (rows, 1))
    found = {
        "small": _fastest(machine, small, reverse=False),
        "gather": _fastest(machine, large, reverse=False),
        "reduce": _fastest(machine, large, reverse=True),
        "bytes": float(large.nbytes),
    }
    if comm.rank == 0:
        store_timings(KIND, facts, device, found)
    return found


def _fastest(machine: Machine, matrix: Array, reverse: bool) -> float:
    """Return the seconds of an all-gather of equal shares of a matrix, or of the reverse. Collective."""
    comm, exchange, clock = machine.comm, machine.exchange, machine.device.clock()
    offsets = np.arange(comm.size + 1, dtype=np.int64) * (len(matrix) // comm.size)
    begin, end = (np.array(each, np.int64) for each in zip(*pairwise(offsets), strict=True))
    times = []
    for _ in range(1 + RUNS):
        comm.allgather(None)  # all ranks begin together
        with clock.span("exchange", 0):
            for _ in range(CALLS):
                if reverse:
                    exchange.reduce_rows(matrix, offsets)
                else:
                    exchange.gather_rows(matrix, begin, end)
        times.append(clock.collect()["exchange", 0] / CALLS)
    of_ranks: list[list[float]] = comm.allgather(times[1:])
    return float(min(max(each) for each in zip(*of_ranks, strict=True)))
