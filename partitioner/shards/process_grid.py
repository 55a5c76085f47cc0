"""Distribution of a sparse tensor over a grid of ranks: each rank has a block, by ranges of the indices of all modes.

This is the medium-grained decomposition of Smith and Karypis (A medium-grained algorithm for distributed sparse tensor
factorization, IPDPS 2016). The ranks whose blocks have the same range in a mode form a layer of that mode. They compute
partial sums of the same output rows, so rows of a mode travel within layers only.

Ranges have equal numbers of nonzeros. As in `partition`, a row that is too long for that is split: its nonzeros belong
to several layers, by a hash of their indices.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property

import numpy as np
from numpy.typing import NDArray

from .partition import Cut

TOGETHER = 1 << 20  # nonzeros
HASHED = np.uint64(0x9E3779B97F4A7C15)  # 2**64 divided by the golden ratio
MIXED = np.uint64(0xBF58476D1CE4E5B9)
COMPARED = 32  # ranges up to which comparing with each takes less time than bisection
SHIFT, DROPPED, UNIT = np.uint64(32), np.uint64(11), 2.0**-53


@dataclass(frozen=True)
class ProcessGrid:
    """The blocks of all ranks of a grid.

    Attributes
    ----------
    cuts : tuple of Cut
        For each mode its cut into layers.
    spans : tuple of (splits, 2) int64 arrays
        For each mode, the begin and end of the nonzeros of its split rows, `Cut.split_rows`, in the order of the mode.
    nodes : tuple of int
        For each mode, the number of ranges over which the nodes are distributed: a divisor of the number of layers.
        Ranks of a node have consecutive numbers, and share as many layers as possible.
    """

    cuts: tuple[Cut, ...]
    spans: tuple[NDArray[np.int64], ...]
    nodes: tuple[int, ...]

    @cached_property
    def parts(self) -> tuple[int, ...]:
        """The number of layers of each mode."""
        return tuple(cut.heads.size for cut in self.cuts)

    @property
    def ranks(self) -> int:
        """The number of ranks."""
        return math.prod(self.parts)

    @cached_property
    def _places(self) -> NDArray[np.int64]:
        """The layer of each rank in each mode, (ranks, order)."""
        return places(self.parts, self.nodes)

    @cached_property
    def _rank_of_block(self) -> NDArray[np.uint16]:
        """The rank of each block, counted with the last mode varying fastest."""
        result = np.empty(self.ranks, np.uint16)
        result[np.ravel_multi_index(tuple(self._places.T), self.parts)] = np.arange(self.ranks)
        return result

    def layer(self, mode: int, rank: int) -> tuple[int, ...]:
        """Return the ranks in the layer of a rank, ascending."""
        of_mode = self._places[:, mode]
        return tuple(np.flatnonzero(of_mode == of_mode[rank]).tolist())

    def rows(self, mode: int, rank: int) -> slice:
        """Return the rows of a mode in a rank's block: those of its layer, after a row split with an earlier layer."""
        cut, layer = self.cuts[mode], int(self._places[rank, mode])
        begin, end, head = int(cut.rows[layer]), int(cut.rows[layer + 1]), int(cut.heads[layer])
        return slice(begin, end) if head < 0 else slice(head, max(end, head + 1))

    def head(self, mode: int, rank: int) -> int | None:
        """Return the first row of a rank's block if an earlier layer owns it, else None."""
        head = int(self.cuts[mode].heads[self._places[rank, mode]])
        return None if head < 0 else head

    def owners(self, mode: int, rank: int) -> NDArray[np.int64]:
        """Return which rows each rank of a rank's layer owns, counted from the block's first row.

        The ``k``-th rank of the layer owns rows ``owners[k]`` to ``owners[k + 1]``, equal shares of the layer's.
        """
        cut, layer = self.cuts[mode], int(self._places[rank, mode])
        size, first = len(self.layer(mode, rank)), self.rows(mode, rank).start
        begin, end = int(cut.rows[layer]) - first, int(cut.rows[layer + 1]) - first
        return np.array([begin + (end - begin) * k // size for k in range(size + 1)], np.int64)

    def owned(self, mode: int, rank: int) -> slice:
        """Return the rows that a rank owns."""
        first, k = self.rows(mode, rank).start, self.layer(mode, rank).index(rank)
        begin, end = self.owners(mode, rank)[k : k + 2]
        return slice(first + int(begin), first + int(end))

    def ranks_of(self, columns: Sequence[NDArray[np.int32]]) -> NDArray[np.uint16]:
        """Return the rank whose block has each nonzero; `columns` are the indices, one array per mode."""
        result = np.zeros(columns[0].size, np.uint16)
        for begin in range(0, result.size, TOGETHER):  # in bounded memory
            piece = [column[begin : begin + TOGETHER] for column in columns]
            block = result[begin : begin + TOGETHER]
            for mode, parts in enumerate(self.parts):
                if parts > 1:
                    block *= np.uint16(parts)
                    block += self._layers_of(mode, piece)
            block[:] = self._rank_of_block[block]
        return result

    def _layers_of(self, mode: int, columns: Sequence[NDArray[np.int32]]) -> NDArray[np.uint16]:
        """Return the layer of each nonzero in a mode."""
        cut, rows = self.cuts[mode], columns[mode]
        begins = cut.rows[1:-1]
        if begins.size > COMPARED:
            layers = np.searchsorted(begins, rows, "right").astype(np.uint16)
        else:
            layers = np.zeros(rows.size, np.uint16)
            for begin in begins:
                layers += rows >= begin
        if cut.split_rows.size:
            split = np.minimum(np.searchsorted(cut.split_rows, rows), cut.split_rows.size - 1)
            spread = np.flatnonzero(cut.split_rows[split] == rows)
            begin, end = self.spans[mode][split[spread]].T
            position = begin + np.floor((end - begin) * _hash(mode, [column[spread] for column in columns]))
            layers[spread] = np.searchsorted(cut.nonzeros[1:-1], position, "right")
        return layers


def places(parts: Sequence[int], nodes: Sequence[int]) -> NDArray[np.int64]:
    """Return the layer of each rank in each mode, (ranks, order); see `ProcessGrid.nodes`."""
    within = [part // node for part, node in zip(parts, nodes, strict=True)]
    node = np.array(np.unravel_index(np.arange(math.prod(nodes)), nodes)).T
    local = np.array(np.unravel_index(np.arange(math.prod(within)), within)).T
    return np.asarray(node[:, None, :] * np.array(within) + local[None, :, :], np.int64).reshape(-1, len(parts))


def _hash(mode: int, columns: Sequence[NDArray[np.int32]]) -> NDArray[np.float64]:
    """Return a number in [0, 1) for each nonzero, from the indices of all modes but one."""
    # High bits distinguish modes: indices, which change the low ones, cannot make the states of two modes equal.
    state = np.full(columns[0].size, (mode + 1) * int(HASHED) % (1 << 64), np.uint64)
    for m, column in enumerate(columns):
        if m != mode:
            state = (state ^ column.astype(np.uint64)) * HASHED
            state = (state ^ (state >> SHIFT)) * MIXED
    return np.asarray((state >> DROPPED) * UNIT, np.float64)
