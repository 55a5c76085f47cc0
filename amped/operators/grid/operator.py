"""MTTKRPs of a sparse tensor in blocks on a grid of ranks.

Each rank computes the MTTKRPs of its block as if it were a whole tensor. The ranks of a layer sum their rows. Each then
solves the rows that it owns, and all gather the solved rows. Rows of a mode do not leave their layer.
"""

from __future__ import annotations

from collections.abc import Hashable, Iterator, Sequence
from contextlib import AbstractContextManager
from dataclasses import replace

import numpy as np
from numpy.typing import NDArray

from partitioner.array_types import Floats
from partitioner.shards.process_grid import ProcessGrid

from ...backend.device import Array
from ...backend.exchange import Machine, RowRanges, connect
from ...parallel.mpi import Reduction, SingleComm, together
from ..base import Solve
from ..limits import check_range
from ..placement import Plan, Setting
from ..products import Mttkrp
from ..sources.blocks import Block, BlockSource, block_of
from ..sources.protocols import DeviceMemory, ModeCopies
from ..sparse.operator import SparseOperator
from ..sparse.tuning import Budget
from .chunks import RowChunks, chunk_count, chunk_edges, row_parts
from .layers import Layer, SplitRows


class GridOperator:
    """MTTKRPs of a sparse tensor on a grid of ranks; construction is collective. See `Operator`.

    Factor matrices have the rows of the rank's block: those of its layers.
    """

    whole = False
    distribution: str

    def __init__(self, source: ModeCopies, machine: Machine, setting: Setting, budget: Budget | None = None) -> None:
        """Distribute `source` over the grid of the setting; choose kernels within a budget, if given."""
        comm, options, parts = machine.comm, setting.options, setting.grid
        assert parts is not None
        check_range(source.value_range, options.dtype, source.path)
        self.machine, self.options, self.shape, self.ranks = machine, options, source.shape, setting.ranks
        self.distribution = "x".join(map(str, parts.layers))
        self.grid, block = block_of(source, parts, comm, options.dtype)
        self.norm = block.norm
        source.placed()
        self._layers = [Layer.of(self.grid, mode, machine) for mode in range(self.order)]
        edges = self._edges(block, setting)
        single = connect(machine.device, SingleComm())
        parts_of = {mode: row_parts(of_mode) for mode, of_mode in edges.items()}
        alone = setting._replace(overlaps=False, compaction=None, grid=None, row_parts=parts_of)
        memory = 0 if options.placement == "stream" else setting.memory
        mine = together(comm, lambda: BlockSource(source, block, DeviceMemory(single, memory)))
        self._block = together(comm, lambda: SparseOperator(mine, single, alone, budget))
        self.clock, self.kernels = self._block.clock, self._block.kernels
        self.plan = _with_owners(self._block.plan, self.grid, comm.rank)
        resident = all(comm.allgather(not self._block.stream.slots))
        self._chunks = {m: RowChunks(e, self._block.stream.modes[m].row_parts) for m, e in edges.items() if resident}
        self._split = [
            SplitRows(self.grid, mode, machine, self.plan.modes[mode]) if self.grid.spans[mode].size else None
            for mode in range(self.order)
        ]
        stored = self._block.work.factors
        self._owned = [stored[m.mode][m.owned, : m.rank] for m in self.plan.modes]
        # By mode: whether all rows of the block are complete and owned. A block has a row even if its layer is empty.
        lengths = zip(self._layers, self._split, map(len, self._owned), block.shape, strict=True)
        self._complete = [
            layer is None and split is None and owned == length for layer, split, owned, length in lengths
        ]

    def _edges(self, block: Block, setting: Setting) -> dict[int, NDArray[np.int64]]:
        """Return the edges of chunks for the modes whose rows are exchanged while others are computed. Collective."""
        result = dict[int, NDArray[np.int64]]()
        for mode, layer in enumerate(self._layers):
            length, row = block.shape[mode], setting.ranks[mode] * np.dtype(np.float64).itemsize
            count = chunk_count(length, row) if self.machine.exchange.overlaps else 1
            if layer is not None and count > 1:
                indices = block.nonzeros.columns[mode]
                result[mode] = chunk_edges(indices, length, layer.owners, count, layer.comm)
        return result

    @property
    def order(self) -> int:
        return len(self.shape)

    def set_factor(self, mode: int, factor: Floats, columns: slice | None = None) -> None:
        self.machine.exchange.wait_comm()
        self._block.set_factor(mode, factor[self.held(mode)], columns)

    def held(self, mode: int) -> slice:
        return self.grid.rows(mode, self.machine.comm.rank)

    @property
    def matrices(self) -> Array:
        return self._block.matrices

    def stored(self, mode: int, matrices: Array | None = None) -> Array:
        self.machine.exchange.wait_comm()
        return self._block.stored(mode, matrices)

    def factor(self, mode: int, matrices: Array | None = None, columns: slice | None = None) -> Floats:
        """See `Operator`. Collective."""
        self.machine.exchange.wait_comm()
        return self._gathered(mode, self._block.factor(mode, matrices, columns)[self.plan.modes[mode].owned])

    def rows(self, mode: int, matrices: Array | None = None) -> Floats:
        self.machine.exchange.wait_comm()
        return self._block.rows(mode, matrices)

    def expand(self, mode: int, rows: Floats) -> Floats:
        """See `Placed`. Collective."""
        return self._gathered(mode, rows[self.plan.modes[mode].owned])

    def gathered(self, mode: int, rows: Array) -> Floats:
        return self._gathered(mode, self.machine.device.to_host(rows).astype(self.plan.dtype, copy=False))

    def _gathered(self, mode: int, rows: Floats) -> Floats:
        """All-gather the owned rows of a matrix in host memory. Collective."""
        comm, whole = self.machine.comm, np.empty((self.shape[mode], rows.shape[1]), rows.dtype)
        owned = [self.grid.owned(mode, rank) for rank in range(comm.size)]
        whole[owned[comm.rank]] = rows
        begin, end = (np.array([getattr(each, name) for each in owned], np.int64) for name in ("start", "stop"))
        comm.all_gather_rows(whole, begin, end)
        return whole

    def changed(self, mode: int) -> None:
        self._block.changed(mode)

    def owned(self, mode: int) -> Array:
        return self._owned[mode]

    def computed(self, mode: int) -> Array:
        return self._block.computed(mode)

    def publish(self, mode: int, sums: Array | None = None, rows: RowRanges | None = None) -> None:
        """See `Placed`; `rows` are all by default."""
        layer, split, exchange, device = (
            self._layers[mode],
            self._split[mode],
            self.machine.exchange,
            self.machine.device,
        )
        if sums is not None:  # may be computed on the side stream
            device.wait_side()
        with exchange.comm_stream(), self.clock.span("exchange", mode):
            left = layer.gather(self._block.work.factors[mode], rows or layer.rows, sums) if layer else sums
            if split:
                split.share(self._block.stored(mode))
            if left is not None and self.machine.comm.size > 1:
                exchange.reduce(left, "sum")
        self.changed(mode)

    def reduce(self, array: Array, reduction: Reduction, mode: int) -> None:
        if self.machine.comm.size > 1:
            with self.clock.span("exchange", mode):
                self.machine.exchange.reduce(array, reduction)

    def span(self, kind: str, mode: int) -> AbstractContextManager[None]:
        return self.clock.span(kind, mode)

    def wait_comm(self) -> None:
        self.machine.exchange.wait_comm()
        self.machine.device.wait_side()

    def synchronize(self) -> None:
        self.wait_comm()
        self.machine.device.synchronize()

    def forget(self) -> None:
        """See `Operator`: a sparse tensor has no partial results."""

    def kept(self) -> None:
        """See `Operator`: a sparse tensor has no partial results."""

    def resume(self, kept: Hashable) -> None:
        """See `Operator`."""

    def mttkrp(
        self,
        mode: int,
        solve: Solve | None = None,
        then: Sequence[int] = (),
        double: bool = False,
        sums: Array | None = None,
    ) -> Array:
        """See `Operator`."""
        self.machine.exchange.wait_comm()
        block, layer, split, owned = self._block, self._layers[mode], self._split[mode], self.plan.modes[mode].owned
        if layer is not None and mode in self._chunks:
            chunks = self._chunks[mode]
            queued = block.in_blocks(Mttkrp(double), mode, chunks.rows, then)
            return self._in_chunks(mode, layer, chunks, queued, solve, sums)
        if self._complete[mode]:
            rows = block.mttkrp(mode, solve, then, double)
        else:
            rows = block.mttkrp(mode, None, then, double)[owned]
            with self.clock.span("exchange", mode):
                if split:
                    split.sum(block.work.outs[mode])
                if layer:
                    layer.reduce(block.work.outs[mode], layer.rows)
                if split:
                    split.add(block.work.outs[mode])
            if solve:
                solve(rows, self._owned[mode])
        if solve:
            self.publish(mode, sums)
        return rows

    def _in_chunks(
        self,
        mode: int,
        layer: Layer,
        chunks: RowChunks,
        queued: Iterator[RowRanges],
        solve: Solve | None,
        sums: Array | None,
    ) -> Array:
        """Sum and solve each chunk of rows while the next one is computed."""
        work, exchange, split = self._block.work, self.machine.exchange, self._split[mode]
        before: RowRanges | None = None
        for chunk, blank in zip(queued, chunks.blank, strict=True):
            for rows in blank:
                work.outs[mode][rows].fill(0)
            if before and solve:
                self._solve(mode, before, solve)
            with exchange.comm_stream(), self.clock.span("exchange", mode):
                layer.reduce(work.outs[mode], chunk)
                if before and solve:
                    layer.gather(work.factors[mode], before, None)
            before = chunk
        exchange.wait_comm()
        if split:
            with self.clock.span("exchange", mode):
                split.sum(work.outs[mode])
                split.add(work.outs[mode])
        if solve and before:
            self._solve(mode, before, solve)
            self.publish(mode, sums, before)
        return work.sums[mode][self.plan.modes[mode].owned]

    def _solve(self, mode: int, chunk: RowRanges, solve: Solve) -> None:
        """Solve the rows of a chunk that this rank owns, once their sums have arrived."""
        self.machine.exchange.wait_comm()
        layer, work = self._layers[mode], self._block.work
        assert layer is not None
        rows = chunk.rows(layer.comm.rank, 0)
        solve(work.sums[mode][rows], work.owned[mode][rows])


def _with_owners(plan: Plan, grid: ProcessGrid, rank: int) -> Plan:
    """Return the plan of a block in which the rank owns its part of the rows."""
    modes = []
    for m in plan.modes:
        first, owned = grid.rows(m.mode, rank).start, grid.owned(m.mode, rank)
        modes.append(replace(m, owned=slice(owned.start - first, owned.stop - first)))
    return replace(plan, modes=tuple(modes))
