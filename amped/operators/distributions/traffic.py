"""The bytes that each rank sends and receives in an iteration, exactly, from the cuts of the modes.

Collectives are rings: an all-gather of parts with ``B`` bytes in total brings each rank ``B`` less its own part, and a
rank passes on all parts but that of the next rank. A reduce-scatter is the same in reverse. An all-reduce is a
reduce-scatter followed by an all-gather of equal parts.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Literal, NamedTuple

import numpy as np
from numpy.typing import NDArray

from partitioner.shards.partition import Cut
from partitioner.shards.process_grid import places

DistributionName = Literal["all-gather", "grid", "replicated"]
SUM_BYTES = 8  # sums have double precision

Counts = NDArray[np.int64]


@dataclass(frozen=True)
class RankDistribution:
    """How nonzeros and factor matrices are distributed over ranks.

    Attributes
    ----------
    name : {"all-gather", "grid", "replicated"}
        all-gather: in each mode a rank has the nonzeros of a range of rows; all ranks gather all rows. grid: a rank
        has a block; rows travel within layers, see `partitioner.shards.process_grid`. replicated: each rank has all
        nonzeros and sends nothing.
    ranks : int
    parts, nodes : tuple of int
        Of a grid: the numbers of layers, and the numbers of ranges over which the nodes are distributed, by mode.
    one_copy : bool
        Of all-gather: whether the nonzeros of mode 0 serve all modes. Any rank may then contribute to any row.
    """

    name: DistributionName
    ranks: int
    parts: tuple[int, ...] = ()
    nodes: tuple[int, ...] = ()
    one_copy: bool = False

    def summed(self, mode: int) -> bool:
        """Return whether ranks sum all rows of a mode among all of them, although there is no grid."""
        return self.one_copy and mode > 0

    def parts_of(self, mode: int) -> int:
        """Return the number of parts into which the nonzeros of a mode are cut."""
        if self.name == "grid":
            return self.parts[mode]
        return self.ranks if self.name == "all-gather" else 1

    @cached_property
    def places(self) -> Counts:
        """The layer of each rank of a grid in each mode, (ranks, order)."""
        return places(self.parts, self.nodes)

    def __str__(self) -> str:
        return f"grid {'x'.join(map(str, self.parts))}" if self.name == "grid" else self.name


class RowFormat(NamedTuple):
    """The memory of a row of a factor matrix."""

    rank: int  # components
    columns: int  # numbers in memory, including padding
    itemsize: int  # bytes of a number

    @property
    def nbytes(self) -> int:
        """Bytes of a row."""
        return self.columns * self.itemsize

    @property
    def sum_bytes(self) -> int:
        """Bytes of a row of sums."""
        return self.columns * SUM_BYTES

    def small_sums(self, ranks: int) -> int:
        """Return the numbers that are summed over the ranks in each mode: Gram matrix, inner products, magnitudes."""
        return (self.rank + 2 + ranks) * self.rank


@dataclass(frozen=True)
class Traffic:
    """Bytes sent and received by each rank, (ranks,) or in the shape of the parts of a collective."""

    sent: Counts
    received: Counts

    @classmethod
    def none(cls, ranks: int) -> Traffic:
        """Return no traffic."""
        return cls(np.zeros(ranks, np.int64), np.zeros(ranks, np.int64))

    @property
    def both(self) -> Counts:
        """Bytes sent and received."""
        return self.sent + self.received

    def __add__(self, other: Traffic) -> Traffic:
        return Traffic(self.sent + other.sent, self.received + other.received)


def all_gather(parts: Counts) -> Traffic:
    """Return the traffic of all-gathers of parts, bytes by rank along the last axis."""
    total = parts.sum(axis=-1, keepdims=True)
    return Traffic(total - np.roll(parts, -1, axis=-1), total - parts)


def reduce_scatter(parts: Counts) -> Traffic:
    """Return the traffic of reduce-scatters after which ranks have parts, bytes by rank along the last axis."""
    total = parts.sum(axis=-1, keepdims=True)
    return Traffic(total - parts, total - np.roll(parts, 1, axis=-1))


def all_reduce(numbers: int, ranks: int, itemsize: int = SUM_BYTES) -> Traffic:
    """Return the traffic of an all-reduce of numbers of `itemsize` bytes."""
    parts = _shares(np.array(numbers, np.int64), ranks) * itemsize
    return reduce_scatter(parts) + all_gather(parts)


def mode_traffic(distribution: RankDistribution, mode: int, cut: Cut, rows: RowFormat) -> Traffic:
    """Return the traffic of solving a mode.

    Parameters
    ----------
    distribution : RankDistribution
    mode : int
    cut : Cut
        The cut of the mode into ``distribution.parts_of(mode)`` parts.
    rows : RowFormat
    """
    ranks = distribution.ranks
    if distribution.name == "replicated":
        return Traffic.none(ranks)
    sums = all_reduce(rows.small_sums(ranks), ranks)
    split = all_reduce(cut.split_rows.size * rows.columns, ranks)
    if distribution.name == "all-gather":
        owned = np.diff(cut.rows)
        partial = reduce_scatter(owned * rows.sum_bytes) if distribution.summed(mode) else split
        return all_gather(owned * rows.nbytes) + partial + sums
    solved = all_reduce(cut.split_rows.size * rows.rank, ranks, rows.itemsize)
    return _within_layers(distribution, mode, cut, rows) + split + solved + sums


def exchange_traffic(distribution: RankDistribution, cuts: Sequence[Cut], rows: RowFormat) -> Traffic:
    """Return the traffic of an iteration; see `mode_traffic`."""
    each = (mode_traffic(distribution, mode, cut, rows) for mode, cut in enumerate(cuts))
    return sum(each, Traffic.none(distribution.ranks))


def exchange_bytes(distribution: RankDistribution, cuts: Sequence[Cut], rows: RowFormat) -> list[int]:
    """Return the bytes that each rank sends and receives in an iteration; see `mode_traffic`."""
    result: list[int] = exchange_traffic(distribution, cuts, rows).both.tolist()
    return result


def held_rows(distribution: RankDistribution, cuts: Sequence[Cut], shape: Sequence[int]) -> Counts:
    """Return the rows of all factor matrices that each rank has in memory, (ranks,)."""
    if distribution.name != "grid":
        return np.full(distribution.ranks, sum(shape), np.int64)
    result = np.zeros(distribution.ranks, np.int64)
    for cut, layers in zip(cuts, distribution.places.T, strict=True):
        begin, end, head = cut.rows[:-1], cut.rows[1:], cut.heads
        result += np.where(head < 0, end - begin, np.maximum(end, head + 1) - head)[layers]
    return result


def _within_layers(distribution: RankDistribution, mode: int, cut: Cut, rows: RowFormat) -> Traffic:
    """Return the traffic of reducing and gathering rows within the layers of a mode."""
    layers = distribution.parts[mode]
    size = distribution.ranks // layers
    members = np.argsort(distribution.places[:, mode], kind="stable").reshape(layers, size)
    shares = _shares(np.diff(cut.rows), size)
    of_layers = reduce_scatter(shares * rows.sum_bytes) + all_gather(shares * rows.nbytes)
    result = Traffic.none(distribution.ranks)
    result.sent[members], result.received[members] = of_layers.sent, of_layers.received
    return result


def _shares(counts: Counts, ranks: int) -> Counts:
    """Return equal shares of counts, as ranks own them, along a new last axis."""
    return np.diff(counts[..., None] * np.arange(ranks + 1) // ranks, axis=-1)


def node_count(ranks: int, ranks_per_node: int) -> int:
    """Return the number of nodes with these ranks."""
    return math.ceil(ranks / ranks_per_node)
