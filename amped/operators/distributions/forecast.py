"""The forecast time of an iteration of CP-ALS under a distribution, and its bytes."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import NamedTuple

import numpy as np

from partitioner.shards.partition import Cut

from .machine_model import FUSED, DeviceSpeed, MachineModel
from .traffic import SUM_BYTES, RankDistribution, RowFormat, Traffic, exchange_traffic, held_rows, node_count

LEAST = 0.05  # fraction of measured kernels that is not launches
INDEX_BYTES, VALUE_BYTES = 2, 4  # of a packed nonzero: per input mode, and its value


class Measured(NamedTuple):
    """Measured seconds of an iteration on one device."""

    kernels: float  # that read nonzeros
    rest: float | None = None  # everything else, if known


@dataclass(frozen=True)
class Workload:
    """The facts of a decomposition on which forecasts depend.

    Attributes
    ----------
    shape : tuple of int
    nnz : int
    rows : RowFormat
    cut : callable
        Returns the cut of a mode into a number of parts. It may be collective: candidates are examined in an order
        that depends only on this object and the machine model.
    measured : Measured, optional
        By default times are estimated.
    one_copy : bool
        See `RankDistribution`.
    """

    shape: tuple[int, ...]
    nnz: int
    rows: RowFormat
    cut: Callable[[int, int], Cut]
    measured: Measured | None = None
    one_copy: bool = False

    @property
    def order(self) -> int:
        """The number of modes."""
        return len(self.shape)

    def cuts(self, distribution: RankDistribution) -> list[Cut]:
        """Return the cuts of all modes."""
        parts = [distribution.parts_of(mode) for mode in range(self.order)]
        return [self.cut(mode, p) if p > 1 else self._whole(mode) for mode, p in enumerate(parts)]

    def _whole(self, mode: int) -> Cut:
        """Return the cut of a mode into one part."""
        ends = ([0, self.nnz], [0, self.shape[mode]], [-1])
        return Cut(*(np.array(each, np.int64) for each in ends))


class Layers(NamedTuple):
    """The layers, or parts, of a mode."""

    longest: float  # rows of the longest one
    split: int  # rows in more than one
    fullest: float  # nonzeros of the fullest one, relative to the mean

    @classmethod
    def even(cls, length: int, parts: int) -> Layers:
        """Return equal layers."""
        return cls(length / parts, 0, 1.0)

    @classmethod
    def of(cls, cut: Cut) -> Layers:
        """Return the layers of a cut."""
        fullest = 1 + cut.imbalance if cut.nonzeros[-1] else 1.0
        return cls(float(np.diff(cut.rows).max()), cut.split_rows.size, fullest)


class Seconds(NamedTuple):
    """Forecast seconds of an iteration on the slowest rank."""

    kernels: float  # that read nonzeros
    exchange: float  # that is not hidden behind kernels
    solve: float
    fixed: float  # launches and small matrices

    @property
    def total(self) -> float:
        """Seconds of the whole iteration."""
        return sum(self)


class Candidate(NamedTuple):
    """A distribution with its exact bytes and its forecast."""

    distribution: RankDistribution
    traffic: Traffic
    seconds: Seconds
    factor_bytes: int  # of the factor matrices of the rank that has most
    fullest: float  # nonzeros of the fullest rank relative to the mean

    @property
    def bytes(self) -> list[int]:
        """Bytes that each rank sends and receives in an iteration."""
        result: list[int] = self.traffic.both.tolist()
        return result


def forecast(
    distribution: RankDistribution, work: Workload, machine: MachineModel, fullest: float | None = None
) -> Candidate:
    """Return the exact bytes and the forecast time of an iteration. Collective if ``work.cut`` is.

    `fullest` are the nonzeros of the fullest block relative to the mean; by default those of the fullest layer.
    """
    cuts = work.cuts(distribution)
    traffic = exchange_traffic(distribution, cuts, work.rows)
    layers = [Layers.of(cut) for cut in cuts]
    fullest = fullest or max(each.fullest for each in layers)
    model = CostModel(work, machine, distribution.ranks)
    held = int(held_rows(distribution, cuts, work.shape).max()) * work.rows.nbytes
    return Candidate(distribution, traffic, model.seconds(distribution, layers, fullest), held, fullest)


class CostModel:
    """Forecasts of one workload on one machine; the modes of a distribution are independent of each other."""

    def __init__(self, work: Workload, machine: MachineModel, ranks: int) -> None:
        self._work, self._machine, self._ranks = work, machine, ranks
        self.nodes = node_count(ranks, machine.links.ranks_per_node)

    def seconds(self, distribution: RankDistribution, layers: Sequence[Layers], fullest: float = 1.0) -> Seconds:
        """Return the seconds of an iteration; `fullest`: nonzeros of the largest block relative to the mean."""
        modes = [self.mode(distribution, mode, layer, fullest) for mode, layer in enumerate(layers)]
        return Seconds(*(sum(part) for part in zip(*modes, strict=True)))

    def mode(self, distribution: RankDistribution, mode: int, layer: Layers, fullest: float = 1.0) -> Seconds:
        """Return the seconds of a mode."""
        work, device = self._work, self._machine.device
        kernels_of_one, solve_of_one = self._corrections
        owned = layer.longest
        if distribution.name == "grid":
            owned *= distribution.parts[mode] / self._ranks
        nnz = work.nnz * (1.0 if distribution.name == "replicated" else fullest / self._ranks)
        kernels = device.launch + kernels_of_one * kernel_seconds(work, device, mode, nnz, layer.longest)
        exchange = self.exchange(distribution, mode, layer)
        hidden = min(self._machine.overlap * exchange, kernels)
        step = device.mode_step(work.rows.rank)
        return Seconds(
            kernels, exchange - hidden, solve_of_one * solve_seconds(work, device, owned), step * solve_of_one
        )

    def exchange(self, distribution: RankDistribution, mode: int, layer: Layers) -> float:
        """Return the seconds of exchanging the rows and sums of a mode."""
        links, rows, ranks = self._machine.links, self._work.rows, self._ranks
        if distribution.name == "replicated" or ranks == 1:
            return 0.0
        sums = links.all_reduce(rows.small_sums(ranks) * SUM_BYTES, ranks, self.nodes)
        split = links.all_reduce(layer.split * rows.sum_bytes, ranks, self.nodes) if layer.split else 0.0
        if distribution.name == "all-gather":  # rows and sums travel in one message
            length = self._work.shape[mode]
            whole = links.all_gather(length * rows.nbytes, ranks, self.nodes)
            if distribution.summed(mode):
                split = links.reduce_scatter(length * rows.sum_bytes, ranks, self.nodes)
            return whole + split + sums - links.latency(ranks, self.nodes)
        size = ranks // distribution.parts[mode]
        nodes = min(size, max(1, self.nodes // distribution.nodes[mode]))
        there = links.reduce_scatter(layer.longest * rows.sum_bytes, size, nodes)
        back = links.all_gather(layer.longest * rows.nbytes, size, nodes)
        together = links.latency(ranks, self.nodes) if size == ranks else 0.0  # rows and sums, as above
        return there + back + 2 * split + sums - together  # of split rows: sums, and solved rows

    @cached_property
    def _corrections(self) -> tuple[float, float]:
        """Measured seconds on one device relative to estimates: of kernels, and of the rest."""
        work, device = self._work, self._machine.device
        if work.measured is None:
            return 1.0, 1.0
        kernels = sum(kernel_seconds(work, device, mode, work.nnz, length) for mode, length in enumerate(work.shape))
        rest = sum(solve_seconds(work, device, length) + device.mode_step(work.rows.rank) for length in work.shape)
        variable = max(work.measured.kernels - device.launch * work.order, LEAST * work.measured.kernels)
        known = work.measured.rest
        return variable / kernels, 1.0 if known is None else known / rest


def kernel_seconds(work: Workload, device: DeviceSpeed, mode: int, nnz: float, summed: float) -> float:
    """Return the estimated seconds of the MTTKRP of a mode, without launches.

    The nonzeros are read once, a row of each other mode for each nonzero, and a row of sums is written for each row. In
    the blocks of a grid, rows are counted as if they were read from the whole matrix: that the matrices of blocks are
    smaller may help, but so far no measurement shows it.

    Parameters
    ----------
    work : Workload
    device : DeviceSpeed
    mode : int
    nnz : float
        Nonzeros of the rank.
    summed : float
        Rows of the mode to which they belong.
    """
    inputs = [m for m in range(work.order) if m != mode]
    seconds = nnz * (VALUE_BYTES + INDEX_BYTES * len(inputs)) + summed * work.rows.sum_bytes
    seconds /= device.streamed * device.memory
    for m in inputs:
        accesses = work.nnz / max(1, work.shape[m])
        seconds += device.rows_read(nnz, work.rows.nbytes, work.shape[m], accesses, 1 / len(inputs))
    return seconds


def solve_seconds(work: Workload, device: DeviceSpeed, owned: float) -> float:
    """Return the estimated seconds of solving rows: sums are read, and rows are written."""
    speed = device.solved if work.rows.rank <= FUSED else device.products
    return owned * (work.rows.sum_bytes + work.rows.nbytes) / speed
