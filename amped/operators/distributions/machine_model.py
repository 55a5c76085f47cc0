"""The machine of a forecast: how fast its devices read and its links send.

The constants of known cards are measurements of this package's kernels and of NCCL (docs/design/scaling.md).
"""

from __future__ import annotations

import math
from dataclasses import dataclass, replace

GPUS_PER_NODE = 8
ROW_BYTES = 16  # rows in a GPU's memory are padded to multiples
NETWORK = 50e9  # bytes per second of a network card of 400 Gb/s
NETWORK_EFFICIENCY = 0.8  # of large messages
SKEW = 0.4  # the most frequent fraction f of rows gets f**SKEW of the accesses (Zipf with exponent 0.6)
FUSED = 64  # components up to which a GPU solves rows in one pass
REUSED, REUSE = 40.0, 0.3  # accesses per row above which, and the power with which, the order of nonzeros saves reading


@dataclass(frozen=True)
class DeviceSpeed:
    """How fast a rank's device computes.

    Attributes
    ----------
    name : str
    memory : float
        Bytes per second of its memory.
    scattered : float
        Fraction of `memory` that reads of single rows reach.
    streamed : float
        Fraction of `memory` that consecutive reads reach.
    cached : float
        Bytes per second of rows in the cache.
    cache : float
        Bytes of rows that remain in the cache.
    launch : float
        Seconds that the kernels of a mode take at least.
    step : float
        Seconds of everything else per mode that do not depend on the number of rows, at up to 32 components.
    solved : float
        Bytes per second of sums that are read and rows that are written, while rows of up to `FUSED` components are
        solved.
    products : float
        The same with more components.
    """

    name: str
    memory: float
    cached: float
    cache: float
    launch: float
    step: float
    solved: float = 2.8e12
    products: float = 0.55e12
    scattered: float = 0.7
    streamed: float = 0.85

    def mode_step(self, rank: int) -> float:
        """Return the seconds of launches and small matrices per mode."""
        return self.step * max(1.0, rank / 32) ** 2

    def rows_read(self, count: float, nbytes: int, length: float, accesses: float, share: float) -> float:
        """Return the seconds for reading `count` rows of `nbytes` bytes of a matrix with `length` rows.

        `accesses` is the average number of nonzeros with the same row, in the whole tensor. The rows that are used most
        stay in the matrix's share of the cache.
        """
        popular = math.pow(min(1.0, self.cache * share / max(1.0, length * nbytes)), SKEW)
        missing = (1 - popular) * math.pow(min(1.0, REUSED / max(accesses, 1.0)), REUSE)
        return count * nbytes * (1 / self.cached + missing / (self.scattered * self.memory))


@dataclass(frozen=True)
class Links:
    """The connections between ranks.

    Attributes
    ----------
    local : float
        Bytes per second that a rank receives in a ring of many ranks within a node.
    network : float
        Bytes per second that a rank receives from other nodes.
    ranks_per_node : int
    hop : float
        Seconds of latency of a collective: once, and for each doubling of its ranks within a node.
    node_hop : float
        Seconds for each doubling of the nodes.
    start : float
        Share of a part's time that a ring needs in addition.
    summing : float
        Time of a reduce-scatter relative to that of an all-gather of as many bytes.
    """

    local: float
    network: float = NETWORK * NETWORK_EFFICIENCY
    ranks_per_node: int = GPUS_PER_NODE
    hop: float = 11.5e-6
    node_hop: float = 20e-6
    start: float = 0.3
    summing: float = 1.0

    def latency(self, ranks: int, nodes: int) -> float:
        """Return the latency of a collective of `ranks` ranks on `nodes` nodes."""
        if ranks == 1:
            return 0.0
        return self.hop * (1 + math.log2(max(1.0, ranks / nodes))) + self.node_hop * math.log2(nodes)

    def reduce_scatter(self, nbytes: float, ranks: int, nodes: int) -> float:
        """Return the seconds of a reduce-scatter of `nbytes` bytes in total."""
        latency = self.latency(ranks, nodes)
        return self.summing * (self.all_gather(nbytes, ranks, nodes) - latency) + latency

    def all_gather(self, nbytes: float, ranks: int, nodes: int) -> float:
        """Return the seconds of an all-gather of `nbytes` bytes in total.

        The ring enters and leaves each node once, through the network cards of all its ranks.
        """
        if ranks == 1:
            return 0.0
        local = nbytes / ranks * (ranks - 1 + self.start) / self.local if ranks > nodes else 0.0
        across = nbytes * (nodes - 1) / nodes / (self.network * ranks / nodes)
        return max(local, across) + self.latency(ranks, nodes)

    def all_reduce(self, nbytes: float, ranks: int, nodes: int) -> float:
        """Return the seconds of an all-reduce of `nbytes` bytes."""
        latency = self.latency(ranks, nodes)
        return 2 * (self.all_gather(nbytes, ranks, nodes) - latency) + latency


@dataclass(frozen=True)
class MachineModel:
    """The devices and links of all ranks.

    Attributes
    ----------
    device : DeviceSpeed
        Of a rank.
    links : Links
    overlap : float
        Fraction of the exchange of rows that can take place while the same mode is computed.
    replicates : bool
        Whether every rank may compute everything: each has a device to itself.
    """

    device: DeviceSpeed
    links: Links
    overlap: float = 0.0
    replicates: bool = True


H100 = DeviceSpeed("NVIDIA H100", 3.35e12, 23.3e12, 80e6, 20e-6, 15e-6)
H200 = replace(H100, name="NVIDIA H200", memory=4.8e12)
CARDS = {"h100": H100, "h200": H200}
NVLINK = Links(365e9)
CORE = DeviceSpeed("CPU core", 10e9, 58e9, 2e6, 5e-6, 20e-6, 4e9, 4e9)
SHARED_MEMORY = Links(3e9, 1e9, 1 << 20, 2e-6, 10e-6)  # MPI on one host


def cpu_speed(cores: int) -> DeviceSpeed:
    """Return the speed of a rank with `cores` cores."""
    each = {name: getattr(CORE, name) * cores for name in ("memory", "cached", "solved", "products")}
    return replace(CORE, name=f"CPU, {cores} cores", **each)
