"""MTTKRPs of a sparse tensor in blocks on a grid of ranks.

Each rank computes the MTTKRPs of its block as if it were a whole tensor. The ranks of a layer sum their rows. Each then
solves the rows that it owns, and all gather the solved rows. Rows of a mode do not leave their layer.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

import numpy as np

from partitioner.array_types import Floats
from partitioner.shards.process_grid import ProcessGrid

from ...backend.device import Array
from ...backend.exchange import Machine
from ..base import Solve
from ..factors import Factors
from ..limits import check_range
from ..placement import Plan, Setting
from ..sources.blocks import block_of
from ..sources.protocols import ModeCopies
from ..sparse.tuning import Budget
from .layers import Layer, SplitRows
from .one_rank import on_one_rank


class GridOperator(Factors):
    """MTTKRPs of a sparse tensor on a grid of ranks; construction is collective. See `Operator`.

    Factor matrices have the rows of the rank's block: those of its layers.
    """

    whole = False

    def __init__(self, source: ModeCopies, machine: Machine, setting: Setting, budget: Budget | None = None) -> None:
        """Distribute `source` over the grid of the setting; choose kernels within a budget, if given."""
        comm, options, parts = machine.comm, setting.options, setting.grid
        assert parts is not None
        check_range(source.value_range, options.dtype, source.path)
        self.machine, self.options, self.shape, self.ranks = machine, options, source.shape, setting.ranks
        self.distribution = "x".join(map(str, parts.layers))
        self.grid, block = block_of(source, parts, comm, options.dtype)
        self.norm = block.norm
        self._block = on_one_rank(source, block, machine, setting, budget)
        self.work, self.clock, self.kernels = self._block.work, self._block.clock, self._block.kernels
        self.plan = _with_owners(self._block.plan, self.grid, comm.rank)
        self._layers = [Layer.of(self.grid, mode, machine) for mode in range(self.order)]
        self._split = [
            SplitRows(self.grid, mode, machine, self.plan.modes[mode]) if self.grid.spans[mode].size else None
            for mode in range(self.order)
        ]
        self._owned = [self.work.factors[m.mode][m.owned, : m.rank] for m in self.plan.modes]
        # By mode: whether all rows of the block are complete and owned. A block has a row even if its layer is empty.
        lengths = zip(self._layers, self._split, map(len, self._owned), block.shape, strict=True)
        self._complete = [layer is None and split is None and owned == n for layer, split, owned, n in lengths]

    def set_factor(self, mode: int, factor: Floats, columns: slice | None = None) -> None:
        self.machine.exchange.wait_comm()
        super().set_factor(mode, factor[self.held(mode)], columns)

    def held(self, mode: int) -> slice:
        return self.grid.rows(mode, self.machine.comm.rank)

    def stored(self, mode: int, matrices: Array | None = None) -> Array:
        self.machine.exchange.wait_comm()
        return super().stored(mode, matrices)

    def factor(self, mode: int, matrices: Array | None = None, columns: slice | None = None) -> Floats:
        """See `Operator`. Collective."""
        self.machine.exchange.wait_comm()
        return self._gathered(mode, self.work.factor(mode, matrices, columns)[self.plan.modes[mode].owned])

    def rows(self, mode: int, matrices: Array | None = None) -> Floats:
        self.machine.exchange.wait_comm()
        return super().rows(mode, matrices)

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

    def owned(self, mode: int) -> Array:
        return self._owned[mode]

    def publish(self, mode: int, sums: Array | None = None) -> None:
        layer, split, exchange = self._layers[mode], self._split[mode], self.machine.exchange
        if sums is not None:  # may be computed on the side stream
            self.machine.device.wait_side()
        with exchange.comm_stream(), self.clock.span("exchange", mode):
            left = layer.gather(self.work.factors[mode], sums) if layer else sums
            if split:
                split.share(self.work.factors[mode])
            if left is not None and self.machine.comm.size > 1:
                exchange.reduce(left, "sum")
        self.changed(mode)

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
        if self._complete[mode]:
            rows = block.mttkrp(mode, solve, then, double)
        else:
            rows = block.mttkrp(mode, None, then, double)[owned]
            with self.clock.span("exchange", mode):
                if split:
                    split.sum(self.work.outs[mode])
                if layer:
                    layer.reduce(self.work.outs[mode])
                if split:
                    split.add(self.work.outs[mode])
            if solve:
                solve(rows, self._owned[mode])
        if solve:
            self.publish(mode, sums)
        return rows


def _with_owners(plan: Plan, grid: ProcessGrid, rank: int) -> Plan:
    """Return the plan of a block in which the rank owns its part of the rows, and gathers models in host memory."""
    modes, gathered = [], 0
    for m in plan.modes:
        first, owned = grid.rows(m.mode, rank).start, grid.owned(m.mode, rank)
        modes.append(replace(m, owned=slice(owned.start - first, owned.stop - first)))
        gathered += m.rank * int(grid.cuts[m.mode].rows[-1] - m.cut.rows[-1]) * plan.dtype.itemsize
    return replace(plan, modes=tuple(modes), host_bytes=plan.host_bytes + max(0, gathered))
