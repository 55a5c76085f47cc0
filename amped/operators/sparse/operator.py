"""A sparse tensor on all ranks: place the nonzeros, stream what is not resident, compute, exchange.

Algorithm 1 of AMPED: each rank computes the output rows of its own shards for one mode after the other, from its
own copy of all factor matrices, and the ranks all-gather the new rows.
"""

from __future__ import annotations

from collections.abc import Callable, Hashable, Sequence
from itertools import islice
from typing import Any

import numpy as np

from partitioner.shards.partition import Cut
from partitioner.tensors.sparse import norm

from ...backend.device import Array
from ...backend.exchange import Machine, RowRanges, agree
from ...backend.ops.phi import Groups, InterleavedPhi, Phi
from ...backend.ops.rowproblems import RowLimits
from ...parallel.mpi import together
from ...parallel.progress import CURRENT
from ..base import Solve
from ..factors import Factors
from ..limits import check_range
from ..memory import ModePlan
from ..placement import Plan, Setting, make_plan
from ..sources.protocols import SparseSource
from ..workspace import Workspace
from .row_solver import RowSolver
from .stream import ModeShards, Step, Stream
from .tuning import Budget, Tuner

RECUTS = 2
LEAST_MESSAGE = 1 << 20  # bytes of the largest block: smaller ones wait for the next shard


class SparseOperator(Factors):
    """MTTKRP of one sparse tensor. See `Operator`; making one is collective."""

    def __init__(self, source: SparseSource, machine: Machine, setting: Setting, budget: Budget | None = None) -> None:
        """Load this rank's share of `source`; choose kernels within a budget, if there is one."""
        options = setting.options
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
        self.norm = self._held_norm(source)
        source.placed()
        self.work.reserve(self.stream.scratch_bytes(self.plan))
        self.kernels = self.stream.kernels
        self._blocks = list(map(self._agree, self.plan.modes, self.stream.steps))
        self._split = [_SplitRows(mode, machine) for mode in self.plan.modes]
        self._rows = RowSolver(self.plan.modes, machine, self.stream, self.work) if setting.rows else None
        self._systems = list(map(_rows_of_shards, self.plan.modes, self.stream.modes))
        for mode in range(self.order):
            self.work.changed(mode)
        self.clock.collect()

    def _planned(self, source: SparseSource, cuts: Sequence[Cut]) -> Plan:
        comm, device = self.machine.comm, self.machine.device
        loading = source.loading(comm.size, self.options.dtype, device.on_host)
        plan = together(comm, lambda: make_plan(cuts, comm.rank, self._setting, loading))
        if loading.device is None or all(comm.allgather(plan.on_device)):
            return plan
        source.leave_device()
        return self._planned(source, cuts)

    def _even_out(self, source: SparseSource, cuts: list[Cut], tuner: Tuner) -> None:
        """Load modes anew that ranks computed for unequal times, cut where the times would have been equal."""
        for _ in range(RECUTS):
            uneven = tuner.uneven(self.plan, [shards.resident for shards in self.stream.modes])
            if not uneven:
                return
            for mode, targets in uneven.items():
                cuts[mode] = source.cut(mode, self.machine.comm.size, targets)
            self.plan = self._planned(source, cuts)
            self.work.allocate(self.plan)
            self.stream.load(self.plan, source, uneven)

    def _held_norm(self, source: SparseSource) -> float:
        """Return the tensor's norm after its values were rounded: what a fit near 1 has to be compared with."""
        if source.value_dtype == self.options.dtype or source.value_range.exact_in(self.options.dtype):
            return source.norm
        sums = self.machine.comm.allgather(self.stream.modes[0].squares)
        return norm(source.value_range[:2], [x for of_rank in sums for x in of_rank])

    def forget(self) -> None:
        """See `Operator`: nothing is kept."""

    def kept(self) -> None:
        """See `Operator`: nothing is."""

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
        CURRENT.mode = mode
        self.machine.exchange.wait_comm()
        work, steps = self.work, self.stream.steps[mode]
        shards = zip(self.stream.shards(mode, then), steps, strict=True)
        if not steps:
            work.outs[mode].fill(0)
        for block in self._blocks[mode]:
            for shard, step in shards if block.last else islice(shards, block.shards):
                with self.clock.span("compute", mode):
                    work.compute(shard, mode, step.new, double)
            if block.last and self._split[mode].there:
                with self.clock.span("exchange", mode):
                    self._split[mode].add(work.outs[mode])
            if solve:
                rows = block.rows(self.machine.comm.rank, self.plan.modes[mode].owned.start)
                solve(work.sums[mode][rows], work.owned[mode][rows])
                self._send(mode, block.begin, block.end, sums if block.last else None)
        return work.sums[mode]

    def phi(
        self, mode: int, floor: float, then: Sequence[int] = (), skip: Array = None, groups: Groups | None = None
    ) -> Array:
        CURRENT.mode = mode
        self.machine.exchange.wait_comm()
        work, steps = self.work, self.stream.steps[mode]
        if not steps:
            work.outs[mode].fill(0)
        for shard, step in zip(self.stream.shards(mode, then), steps, strict=True):
            with self.clock.span("compute", mode):
                work.add_phi(self._phi(mode), shard, mode, floor, step.new, skip, groups)
        if self._split[mode].there:
            how, dtype = self._phi(mode), self.plan.dtype
            with self.clock.span("exchange", mode):
                self._split[mode].share(work.outs[mode], lambda one, to: how.copy(one, to, skip, groups, dtype))
        return work.outs[mode][:, : self.ranks[mode]]

    @property
    def interleaved(self) -> InterleavedPhi:
        found: Any = self.plan.modes[0].phis[0]
        assert found.several
        several: InterleavedPhi = found
        return several

    def solve_rows(self, mode: int, limits: RowLimits, seen: Array, then: Sequence[int] = ()) -> None:
        CURRENT.mode = mode
        self.machine.exchange.wait_comm()
        assert self._rows is not None
        self._rows.solve(mode, self.clock, limits, seen, then)

    def row_systems(self, mode: int, then: Sequence[int] = ()) -> Array:
        CURRENT.mode = mode
        self.machine.exchange.wait_comm()
        work, steps, plan = self.work, self.stream.steps[mode], self.plan.modes[mode]
        if not steps:
            work.outs[mode].fill(0)
        shards = zip(self._systems[mode], self.stream.shards(mode, then), steps, strict=True)
        for made, shard, step in shards:
            with self.clock.span("compute", mode):
                work.add_systems(plan, made, shard, step.new)
        if self._split[mode].there:
            with self.clock.span("exchange", mode):
                self._split[mode].add(work.outs[mode])
        return work.sums[mode]

    @property
    def summed(self) -> int:
        return max(mode.ttmc.summed for mode in self.plan.modes if mode.ttmc)

    def ttmc(self, mode: int, then: Sequence[int] = (), double: bool = False) -> Array:
        CURRENT.mode = mode
        self.machine.exchange.wait_comm()
        work, steps, plan = self.work, self.stream.steps[mode], self.plan.modes[mode]
        if not steps:
            work.outs[mode].fill(0)
        for shard, step in zip(self.stream.shards(mode, then), steps, strict=True):
            with self.clock.span("compute", mode):
                work.add_ttmc(plan, shard, step.new, double)
        if self._split[mode].there:
            with self.clock.span("exchange", mode):
                self._split[mode].add(work.outs[mode])
        return work.sums[mode]

    def spare(self, mode: int) -> Array:
        return self.work.outs[mode][:, : self.ranks[mode]]

    def add_logs(
        self, mode: int, floor: float, total: Array, then: Sequence[int] = (), groups: Groups | None = None
    ) -> None:
        self.machine.exchange.wait_comm()
        for shard in self.stream.shards(mode, then):
            with self.clock.span("compute", mode):
                self.work.add_logs(self._phi(mode), shard, mode, floor, total, groups)
        self.reduce(total, "sum", mode)

    def _phi(self, mode: int) -> Phi:
        """Return what computes a mode's Phi."""
        kernel = self.stream.modes[mode].kernel
        assert kernel is not None
        return self.plan.modes[mode].phi(kernel)

    def _agree(self, mode: ModePlan, steps: Sequence[Step]) -> list[RowRanges]:
        """Agree with all ranks on the blocks of rows that are sent after some of the shards of a mode."""
        comm, exchange = self.machine.comm, self.machine.exchange
        done = comm.allgather([min(max(step.done, mode.owned.start), mode.owned.stop) for step in steps])
        row = mode.share.stride * self.plan.dtype.itemsize
        return agree(done, mode.cut.rows, -(-LEAST_MESSAGE // row) if exchange.overlaps else None)


def _rows_of_shards(mode: ModePlan, shards: ModeShards) -> list[Any]:
    """Return where the rows of each shard are, if row systems are computed; see `RowSystems.make`."""
    every = (*shards.resident, *shards.streamed)
    return [mode.systems.make(shard, mode.share) for shard in every] if mode.systems else []


class _SplitRows:
    """The rows of a mode that several ranks compute: their owners get the sums of the parts."""

    def __init__(self, mode: ModePlan, machine: Machine) -> None:
        self._exchange, self._any, self._rows = machine.exchange, mode.any_row, mode.cut.rows
        split = mode.cut.split_rows
        self._parts = machine.device.zeros((split.size, mode.width), np.float64) if split.size else None
        head = int(mode.cut.heads[machine.comm.rank])
        self._mine = int(np.searchsorted(split, head)) if head >= 0 else None
        owned = np.flatnonzero((split >= mode.owned.start) & (split < mode.owned.stop)).tolist()
        self._owned = [(k, int(split[k]) - mode.rows.start) for k in owned]

    @property
    def there(self) -> bool:
        """Whether there are such rows."""
        return self._any or self._parts is not None

    def add(self, out: Array) -> None:
        """Give owned rows of the output what other ranks have computed of them."""
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
        """Give the sums of such rows to all ranks that compute them, the same to the last bit, by `copy`.

        It leaves out what was not computed: `out` has these sums already.
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
