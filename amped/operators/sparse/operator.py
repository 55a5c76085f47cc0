"""A sparse tensor on all ranks: place the nonzeros, stream what is not resident, compute, exchange.

Algorithm 1 of AMPED: each rank computes the output rows of its shards for one mode after the other, from its
own copy of all factor matrices, and the ranks all-gather the new rows.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from itertools import islice
from typing import Any

import numpy as np

from partitioner.shards.partition import Cut
from partitioner.tensors.value_range import NO_NORM, norm

from ...backend.device import Array
from ...backend.exchange import Machine, RowRanges, agree
from ...backend.ops.mttkrp import Kernel
from ...parallel.mpi import together
from ...parallel.progress import CURRENT
from ..base import Solve
from ..factors import Factors
from ..kept_rows import KeptRows
from ..limits import check_range
from ..modes import ModePlan, Product, Summed
from ..placement import Plan, Setting, make_plan
from ..products import Mttkrp
from ..sources.lengths import unused_named
from ..sources.protocols import ModeCopies
from ..workspace import Workspace
from .stream import Step, Stream
from .tuning import Budget, Tuner

RECUTS = 2
LEAST_MESSAGE = 1 << 20  # bytes of the largest block: smaller ones wait for the next shard


class SparseOperator(Factors):
    """Products of a sparse tensor; construction is collective. See `Operator`."""

    def __init__(
        self,
        source: ModeCopies,
        machine: Machine,
        setting: Setting,
        budget: Budget | None = None,
        kept: Mapping[int, KeptRows] | None = None,
    ) -> None:
        """Load this rank's share of `source`; choose kernels within a budget, if given.

        `kept` are the rows of the modes that `source` has renumbered.
        """
        options, self.kept_rows = setting.options, kept or {}
        self.machine, self.options, self.shape = machine, options, source.shape
        self.ranks = setting.ranks
        check_range(source.value_range, options.dtype, source.path)
        self.clock, self._setting = machine.device.clock(), setting
        cuts = [source.cut(mode, machine.comm.size) for mode in range(self.order)]
        self.plan = self._planned(source, cuts)
        self.work = Workspace(self.plan, machine, options)
        tuner = Tuner(self.work, machine, self.clock, options, budget or Budget())
        tuner.prepare(self.plan.modes)
        self.stream = Stream(machine.device, self.clock, tuner.choose)
        self.stream.load(self.plan, source, range(self.order))
        self._even_out(source, cuts, tuner)
        self.norm = self._rounded_norm(source)
        source.placed()
        self.work.reserve(self.stream.scratch_bytes(self.plan))
        self.kernels = self.stream.kernels
        self._blocks = list(map(self._agree, self.plan.modes, self.stream.steps))
        self._split = [_SplitRows(mode, machine) for mode in self.plan.modes]
        self._prepared = [
            [m.product.make(shard, m) for shard in self.stream.modes[m.mode].shards] for m in self.plan.modes
        ]
        for mode in range(self.order):
            self.work.changed(mode)
        self.clock.collect()

    def _planned(self, source: ModeCopies, cuts: Sequence[Cut]) -> Plan:
        comm, device = self.machine.comm, self.machine.device
        loading = source.loading(comm.size, self.options.dtype, device.on_host)
        with unused_named(source):
            plan = together(comm, lambda: make_plan(cuts, comm.rank, self._setting, loading))
        if loading.device is None or all(comm.allgather(plan.on_device)):
            return plan
        source.leave_device()
        return self._planned(source, cuts)

    def _even_out(self, source: ModeCopies, cuts: list[Cut], tuner: Tuner) -> None:
        """Reload modes whose times differ between ranks, with cuts that would have equalised the times."""
        for _ in range(RECUTS):
            uneven = tuner.uneven(self.plan, [shards.resident for shards in self.stream.modes])
            if not uneven:
                return
            for mode, targets in uneven.items():
                cuts[mode] = source.cut(mode, self.machine.comm.size, targets)
            self.plan = self._planned(source, cuts)
            self.work.allocate(self.plan)
            self.stream.load(self.plan, source, uneven)

    def _rounded_norm(self, source: ModeCopies) -> float:
        """Return the norm of the tensor with rounded values, as fits near 1 must refer to it."""
        if not source.value_range.largest:
            return NO_NORM
        if source.value_dtype == self.options.dtype or source.value_range.exact_in(self.options.dtype):
            return source.norm
        sums = self.machine.comm.allgather(self.stream.modes[0].squares)
        return norm(source.value_range[:2], [x for of_rank in sums for x in of_rank])

    def compute(
        self,
        product: Product[Any],
        mode: int,
        then: Sequence[int] = (),
        solve: Solve | None = None,
        sums: Array | None = None,
    ) -> Array:
        """Queue a product of a mode; return without waiting. Collective.

        Parameters
        ----------
        product : Product
            An instance of the class for which the operator was placed.
        mode : int
        then : sequence of int
        solve : callable, optional
        sums : float64 device array, optional
            See `Operator.mttkrp`.

        Returns
        -------
        (rows, columns) float64 device array
            The owned rows or, for a replicated product, the rows of `computed`; valid until the next call.
        """
        CURRENT.mode = mode
        self.machine.exchange.wait_comm()
        work, plan, steps = self.work, self.plan.modes[mode], self.stream.steps[mode]
        shards = zip(self.stream.shards(mode, then), steps, self._prepared[mode], strict=True)
        if not steps:
            work.outs[mode].fill(0)
        for block in self._blocks[mode]:
            for shard, step, prepared in shards if block.last else islice(shards, block.shards):
                with self.clock.span("compute", mode):
                    product.run(shard, plan, work.operands(mode), step.new, prepared)
            if block.last and self._split[mode].exist:
                with self.clock.span("exchange", mode):
                    self._exchange_split(product, mode)
            if solve:
                rows = block.rows(self.machine.comm.rank, plan.owned.start)
                solve(work.sums[mode][rows], work.owned[mode][rows])
                self._send(mode, block.begin, block.end, sums if block.last else None)
        return self.spare(mode) if product.replicated else work.sums[mode]

    def _exchange_split(self, product: Product[Any], mode: int) -> None:
        """Combine the contributions to rows whose nonzeros are on several ranks."""
        split, out, plan, kernel = self._split[mode], self.work.outs[mode], self.plan.modes[mode], self._kernel(mode)
        if product.replicated:
            split.share(out, lambda source, target: product.copy(source, target, kernel, plan))
        else:
            split.add(out)

    def mttkrp(
        self,
        mode: int,
        solve: Solve | None = None,
        then: Sequence[int] = (),
        double: bool = False,
        sums: Array | None = None,
    ) -> Array:
        return self.compute(Mttkrp(double), mode, then, solve, sums)

    def add(self, summed: Summed, mode: int, total: Array, then: Sequence[int] = ()) -> None:
        """Queue the addition to `total` of a sum over the nonzeros of all ranks, in the order of `mode`."""
        self.machine.exchange.wait_comm()
        for shard in self.stream.shards(mode, then):
            with self.clock.span("compute", mode):
                summed.add(shard, self.plan.modes[mode], self.work.operands(mode), total)
        self.reduce(total, "sum", mode)

    @property
    def summed(self) -> int:
        return max(mode.product.summed(mode) for mode in self.plan.modes)

    def spare(self, mode: int) -> Array:
        """Return an uninitialised float64 array of the shape of `computed`, valid until the next call."""
        return self.work.outs[mode][:, : self.ranks[mode]]

    def _kernel(self, mode: int) -> Kernel:
        """Return the kernel of the shards of a mode."""
        kernel = self.stream.modes[mode].kernel
        assert kernel is not None
        return kernel

    def _agree(self, mode: ModePlan, steps: Sequence[Step]) -> list[RowRanges]:
        """Return the blocks of rows that all ranks send after some of the shards of a mode. Collective."""
        comm, exchange = self.machine.comm, self.machine.exchange
        done = comm.allgather([min(max(step.done, mode.owned.start), mode.owned.stop) for step in steps])
        row = mode.share.stride * self.plan.dtype.itemsize
        return agree(done, mode.cut.rows, -(-LEAST_MESSAGE // row) if exchange.overlaps else None)


class _SplitRows:
    """The rows of a mode whose nonzeros are on several ranks: combines the ranks' sums."""

    def __init__(self, mode: ModePlan, machine: Machine) -> None:
        self._exchange, self._any, self._rows = machine.exchange, mode.any_row, mode.cut.rows
        split = mode.cut.split_rows
        self._parts = machine.device.zeros((split.size, mode.width), np.float64) if split.size else None
        head = int(mode.cut.heads[machine.comm.rank])
        self._mine = int(np.searchsorted(split, head)) if head >= 0 else None
        owned = np.flatnonzero((split >= mode.owned.start) & (split < mode.owned.stop)).tolist()
        self._owned = [(k, int(split[k]) - mode.rows.start) for k in owned]

    @property
    def exist(self) -> bool:
        """Whether any rows are split."""
        return self._any or self._parts is not None

    def add(self, out: Array) -> None:
        """Add other ranks' sums to the owned rows of the output."""
        if self._any:
            self._exchange.reduce_rows(out, self._rows)
        if self._parts is None:
            return
        self._parts.fill(0)
        if self._mine is not None:
            self._parts[self._mine] = out[0]
        self._exchange.reduce(self._parts, "sum")
        for k, row in self._owned:
            out[row] += self._parts[k]

    def share(self, out: Array, copy: Callable[[Array, Array], None]) -> None:
        """Give the total of each split row, bitwise equal, to all ranks that contribute to it.

        Totals are written by `copy`, which skips sums that were not computed and whose totals are in `out` already.
        """
        if self._parts is None:
            return
        self._parts.fill(0)
        places = [*self._owned, *([] if self._mine is None else [(self._mine, 0)])]
        for k, row in places:
            self._parts[k] = out[row]
        self._exchange.reduce(self._parts, "sum")
        for k, row in places:
            copy(self._parts[k], out[row])
