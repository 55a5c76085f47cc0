"""Exchange of the rows of a mode on a grid of ranks: within a layer, and of rows that are split between layers."""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from partitioner.shards.process_grid import ProcessGrid

from ...backend.device import Array, Collectives
from ...backend.exchange import Machine
from ..modes import ModePlan


class Layer:
    """The ranks whose blocks have the same rows of a mode."""

    def __init__(self, exchange: Collectives, owners: NDArray[np.int64], everyone: bool) -> None:
        self._exchange, self._owners, self._everyone = exchange, owners, everyone

    @classmethod
    def of(cls, grid: ProcessGrid, mode: int, machine: Machine) -> Layer | None:
        """Return the layer of this rank in a mode; None if it has no other rank. Collective."""
        comm = machine.comm
        ranks = grid.layer(mode, comm.rank)
        if len(ranks) == 1:
            return None
        everyone = len(ranks) == comm.size
        exchange = machine.exchange if everyone else machine.exchange.part(comm.part(ranks))
        return cls(exchange, grid.owners(mode, comm.rank), everyone)

    def reduce(self, out: Array) -> None:
        """Sum the rows of all ranks of the layer, each on its owner."""
        self._exchange.reduce_rows(out, self._owners)

    def gather(self, matrix: Array, sums: Array | None) -> Array | None:
        """All-gather the owned rows of a matrix; return `sums` unless they were summed over all ranks with the rows."""
        begin, end = self._owners[:-1], self._owners[1:]
        self._exchange.gather_rows(matrix, begin, end, sums if self._everyone else None)
        return None if self._everyone else sums


class SplitRows:
    """The rows of a mode whose nonzeros are in several layers. The layer that owns a row gets its sum from the others.

    All ranks take part in each exchange: there are few such rows.
    """

    def __init__(self, grid: ProcessGrid, mode: int, machine: Machine, plan: ModePlan) -> None:
        rank, split = machine.comm.rank, grid.cuts[mode].split_rows
        held, owned, head = grid.rows(mode, rank), grid.owned(mode, rank), grid.head(mode, rank)
        self._exchange = machine.exchange
        self._sums = machine.device.zeros((split.size, plan.width), np.float64)
        self._solved = machine.device.zeros((split.size, plan.rank), plan.share.dtype)
        self._head = None if head is None else int(np.searchsorted(split, head))
        mine = np.flatnonzero((split >= owned.start) & (split < owned.stop)).tolist()
        self._owned = [(k, int(split[k]) - held.start) for k in mine]

    def sum(self, out: Array) -> None:
        """Sum the rows of the layers that do not own them, before those of a layer are summed."""
        self._sums.fill(0)
        if self._head is not None:
            self._sums[self._head] = out[0]
        self._exchange.reduce(self._sums, "sum")

    def add(self, out: Array) -> None:
        """Add the sums of other layers to owned rows."""
        for k, row in self._owned:
            out[row] += self._sums[k]

    def share(self, matrix: Array) -> None:
        """Copy solved rows to the layers that do not own them."""
        self._solved.fill(0)
        for k, row in self._owned:
            self._solved[k] = matrix[row, : self._solved.shape[1]]
        self._exchange.reduce(self._solved, "sum")
        if self._head is not None:
            matrix[0, : self._solved.shape[1]] = self._solved[self._head]
