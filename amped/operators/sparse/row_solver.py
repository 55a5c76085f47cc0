"""The row problems of CP-APR over shards and ranks: whole rows shard by shard, then those that are shared, in step."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass

from ...backend.device import Array, Clock
from ...backend.exchange import Machine
from ...backend.ops.rowproblems import ITERATIONS, KKT, RowLimits, RowProblems, Shared
from ..memory import ModePlan
from ..workspace import Workspace
from .stream import ModeShards, Step, Stream

Places = list[tuple[int, int]]  # of rows: which one of the shared ones, and which row of the rank's


@dataclass(frozen=True)
class Group:
    """Rows that are solved in step: those that ranks share, or those that shards of this rank share.

    `places` are this rank's, `of_shards` those of each shard, and `owned` those that this rank owns.
    """

    shared: Shared
    over_ranks: bool
    places: Places
    owned: Places
    of_shards: Sequence[Places]

    def take(self, matrix: Array, which: Places) -> None:
        """Take rows of B."""
        for k, row in which:
            self.shared.rows[k] = matrix[row]

    def give(self, matrix: Array) -> None:
        """Write rows of B where this rank computes them."""
        for k, row in self.places:
            matrix[row] = self.shared.rows[k]


class ModeRows:
    """The rows of one mode: where they are in each shard, which are whole there, and who shares the others."""

    def __init__(self, mode: ModePlan, shards: ModeShards, how: RowProblems, rank: int) -> None:
        split = {int(row) - mode.rows.start: k for k, row in enumerate(mode.cut.split_rows)}
        edges = _edges(shards.steps, mode.rows.start)
        between = {row for row in edges if row is not None}
        local = {row: k for k, row in enumerate(sorted(between - set(split)))}
        self.whole = [_whole(step.new, {*split, *local}) for step in shards.steps]
        all_shards = (*shards.resident, *shards.streamed)
        self.made = [how.make(s, mode.share, whole) for s, whole in zip(all_shards, self.whole, strict=True)]
        first = mode.owned.start - mode.rows.start
        owned = range(first, first + mode.owned.stop - mode.owned.start)
        self.groups = []
        for rows, over_ranks in ((split, True), (local, False)):
            of_shards = [
                [(k, row) for row, k in rows.items() if step.new.start <= row < step.new.stop or row == before]
                for step, before in zip(shards.steps, [None, *edges], strict=False)
            ]
            mine = [(k, row) for row, k in rows.items() if any((k, row) in of_shard for of_shard in of_shards)]
            own = [(k, row) for row, k in rows.items() if row in owned]
            if rows:
                self.groups.append(Group(how.share_rows(len(rows), rank), over_ranks, mine, own, of_shards))


def _edges(steps: Sequence[Step], begin: int) -> list[int | None]:
    """Return for each shard its last row, if the next shard has nonzeros of it too."""
    return [step.new.stop - 1 if step.done - begin < step.new.stop else None for step in steps]


def _whole(new: slice, shared: set[int]) -> slice:
    """Return the rows that a shard alone has, of those that it is the first to have: shared ones are at the ends."""
    start, stop = new.start, new.stop
    while start < stop and start in shared:
        start += 1
    while start < stop and stop - 1 in shared:
        stop -= 1
    return slice(start, stop)


class RowSolver:
    """Solves the rows of modes; see `Operator.solve_rows`."""

    def __init__(self, modes: Sequence[ModePlan], machine: Machine, stream: Stream, work: Workspace) -> None:
        how = modes[0].rows_by
        assert how is not None
        self._how, self._machine, self._stream, self._work = how, machine, stream, work
        self._plans = modes
        self._modes = [ModeRows(m, shards, how, m.rank) for m, shards in zip(modes, stream.modes, strict=True)]
        # Where that costs little, or spares much, the host asks whether shared rows are solved; all ranks do, or none.
        self._asks = machine.device.on_host or any(machine.comm.allgather(bool(stream.slots)))

    def solve(self, mode: int, clock: Clock, limits: RowLimits, seen: Array, then: Sequence[int]) -> None:
        """Queue the solution of the rows that this rank computes."""
        rows, plan = self._modes[mode], self._plans[mode]
        matrix, inputs = self._work.computed[mode], self._work.inputs(mode)
        coming = [mode, *then] if any(group.places for group in rows.groups) else then
        for shard, made, whole in zip(self._stream.shards(mode, coming), rows.made, rows.whole, strict=True):
            with clock.span("compute", mode):
                if whole.stop > whole.start:
                    scratch = self._work.scratch
                    self._how.run(made, shard, inputs, matrix, plan.rank, limits, seen, whole, scratch)
        if not rows.made:
            self._clear(matrix, seen)
        if rows.groups:
            self._solve_shared(mode, rows, clock, limits, [mode, *then])
        for group in rows.groups:
            with clock.span("compute", mode):
                group.give(matrix[:, : plan.rank])
                self._see(group, seen)

    def _clear(self, matrix: Array, seen: Array) -> None:
        """Make the rows of a rank without nonzeros zero."""
        if matrix.size:
            xp = self._machine.device.xp
            seen[KKT] = xp.maximum(seen[KKT], xp.minimum(matrix.max(), 1.0))
            matrix.fill(0)

    def _see(self, group: Group, seen: Array) -> None:
        """Add what is seen of shared rows: once."""
        xp, found = self._machine.device.xp, group.shared.seen
        seen[KKT] = xp.maximum(seen[KKT], found[KKT])
        if not group.over_ranks or self._machine.comm.rank == 0:
            seen[ITERATIONS:] += found[ITERATIONS:]

    def _solve_shared(self, mode: int, rows: ModeRows, clock: Clock, limits: RowLimits, then: Sequence[int]) -> None:
        """Solve shared rows in step. All ranks reduce the sums of rows that ranks share the same number of times."""
        matrix = self._work.computed[mode][:, : self._plans[mode].rank]
        for group in rows.groups:
            group.shared.rows.fill(0)
            group.take(matrix, group.owned if group.over_ranks else group.places)
            if group.over_ranks:
                self._reduce(mode, clock, group.shared.rows)
            group.shared.begin()
        how, left = self._how, rows.groups
        for number in range(1 + limits.inner):
            self._add(how.add_sums, mode, rows, clock, left, limits, then, [g.shared.sums for g in left])
            for group in left:
                how.step(group.shared, limits, number)
            left = [group for group in left if not self._asks or group.shared.left()]
            if not left:
                break
            self._add(how.add_changes, mode, rows, clock, left, limits, then, [g.shared.changes for g in left])
            for group in left:
                how.advance(group.shared, limits, number)

    def _add(
        self,
        add: Callable[..., None],
        mode: int,
        rows: ModeRows,
        clock: Clock,
        groups: Sequence[Group],
        limits: RowLimits,
        then: Sequence[int],
        targets: Sequence[Array],
    ) -> None:
        """Add up something over the nonzeros of shared rows, those of all ranks."""
        for target in targets:
            target.fill(0)
        if any(group.places for group in groups):
            inputs, scratch = self._work.inputs(mode), self._work.scratch
            for k, shard in enumerate(self._stream.shards(mode, then)):
                with clock.span("compute", mode):
                    for group in groups:
                        if places := group.of_shards[k]:
                            add(rows.made[k], shard, inputs, places, group.shared, limits, scratch)
        for group, target in zip(groups, targets, strict=True):
            if group.over_ranks:
                self._reduce(mode, clock, target)

    def _reduce(self, mode: int, clock: Clock, array: Array) -> None:
        if self._machine.comm.size > 1:
            with clock.span("exchange", mode):
                self._machine.exchange.reduce(array, "sum")
