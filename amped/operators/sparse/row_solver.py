"""The row problems of CP-APR over shards and ranks: whole rows shard by shard, then those that are shared, in step."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass

from ...backend.device import Array
from ...backend.ops.mttkrp import Kernel
from ...backend.ops.rowproblems import ITERATIONS, KKT, ROWPROBLEMS, RowLimits, RowMethod, RowProblemsProvider, Shared
from ...parallel.progress import CURRENT
from ..memory import PIECES
from ..modes import ModePlan, Planned
from .operator import SparseOperator
from .stream import ModeShards, Step

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


@dataclass(frozen=True)
class RowProblems(Planned[RowProblemsProvider]):
    """The row problems of CP-APR; see `backend.ops.rowproblems` and `RowSolver`."""

    method: RowMethod

    op, keeps, reading = ROWPROBLEMS, "row problems", "row problems read factor matrices as they are"
    instead = "; methods 'mu' and 'pqnr' take any"

    @property
    def label(self) -> str:  # type: ignore[override]
        """See `Planned`."""
        return f"row problems by method {self.method!r}"

    def refusal(self, kernels: str) -> str:
        return f"has no {self.method!r}: {kernels} have"

    def suits(self, provider: RowProblemsProvider, kernel: Kernel, mode: ModePlan) -> bool:
        return provider.method == self.method and provider.suits(kernel, mode.share)

    def bytes(self, kernel: Kernel, mode: ModePlan, nnz: int) -> int:
        return self.of(kernel, mode).bytes(kernel, mode.share, nnz).running

    def kept(self, mode: ModePlan) -> int:
        """See `Planned`: the order of rows, and rows that ranks or shards share."""
        (kernel,) = mode.kernels
        how = self.of(kernel, mode)
        shared = (mode.cut.split_rows.size + PIECES) * how.shared_bytes(mode.rank)
        return how.bytes(kernel, mode.share, mode.nnz).kept + shared

    def codes(self, mode: ModePlan) -> int:
        return self.of(mode.kernels[0], mode).codes


class ModeRows:
    """The rows of one mode: where they are in each shard, which are whole there, and who shares the others."""

    def __init__(self, mode: ModePlan, shards: ModeShards, how: RowProblemsProvider, rank: int) -> None:
        split = {int(row) - mode.rows.start: k for k, row in enumerate(mode.cut.split_rows)}
        edges = _edges(shards.steps, mode.rows.start)
        between = {row for row in edges if row is not None}
        local = {row: k for k, row in enumerate(sorted(between - set(split)))}
        self.whole = [_whole(step.new, {*split, *local}) for step in shards.steps]
        self.made = [how.make(s, mode.share, whole) for s, whole in zip(shards.shards, self.whole, strict=True)]
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
    """Solves the rows of modes, for which an operator was placed. Making one is collective, and so are its methods."""

    def __init__(self, operator: SparseOperator, problems: RowProblems) -> None:
        modes, stream, machine = operator.plan.modes, operator.stream, operator.machine
        how = problems.of(modes[0].kernels[0], modes[0])
        self._how, self._machine, self._stream, self._work = how, machine, stream, operator.work
        self._plans, self._clock = modes, operator.clock
        self._modes = [ModeRows(m, shards, how, m.rank) for m, shards in zip(modes, stream.modes, strict=True)]
        # Where that costs little, or spares much, the host asks whether shared rows are solved; all ranks do, or none.
        self._polls = machine.device.on_host or any(machine.comm.allgather(bool(stream.slots)))

    def solve(self, mode: int, limits: RowLimits, seen: Array, then: Sequence[int] = ()) -> None:
        """Queue the solution of the row problems of one mode, in its own factor matrix.

        `seen` is a (3,) float64 device array: what is seen of the rows that this rank solves is added to it, of a row
        that several ranks solve by one of them. `then`: see `Operator.compute`.
        """
        CURRENT.mode = mode
        self._machine.exchange.wait_comm()
        rows, plan = self._modes[mode], self._plans[mode]
        matrix, inputs = self._work.computed[mode], self._work.inputs(mode)
        coming = [mode, *then] if any(group.places for group in rows.groups) else then
        for shard, prepared, whole in zip(self._stream.shards(mode, coming), rows.made, rows.whole, strict=True):
            with self._clock.span("compute", mode):
                if whole.stop > whole.start:
                    scratch = self._work.scratch
                    self._how.run(prepared, shard, inputs, matrix, plan.rank, limits, seen, whole, scratch)
        if not rows.made:
            self._clear(matrix, seen)
        if rows.groups:
            self._solve_shared(mode, rows, limits, [mode, *then])
        for group in rows.groups:
            with self._clock.span("compute", mode):
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
        xp, result = self._machine.device.xp, group.shared.seen
        seen[KKT] = xp.maximum(seen[KKT], result[KKT])
        if not group.over_ranks or self._machine.comm.rank == 0:
            seen[ITERATIONS:] += result[ITERATIONS:]

    def _solve_shared(self, mode: int, rows: ModeRows, limits: RowLimits, then: Sequence[int]) -> None:
        """Solve shared rows in step. All ranks reduce the sums of rows that ranks share the same number of times."""
        matrix = self._work.computed[mode][:, : self._plans[mode].rank]
        for group in rows.groups:
            group.shared.rows.fill(0)
            group.take(matrix, group.owned if group.over_ranks else group.places)
            if group.over_ranks:
                self._reduce(mode, group.shared.rows)
            group.shared.begin()
        how, left = self._how, rows.groups
        for number in range(1 + limits.inner):
            self._add(how.add_sums, mode, rows, left, limits, then, [g.shared.sums for g in left])
            for group in left:
                how.step(group.shared, limits, number)
            left = [group for group in left if not self._polls or group.shared.left()]
            if not left:
                break
            self._add(how.add_changes, mode, rows, left, limits, then, [g.shared.changes for g in left])
            for group in left:
                how.advance(group.shared, limits, number)

    def _add(
        self,
        add: Callable[..., None],
        mode: int,
        rows: ModeRows,
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
                with self._clock.span("compute", mode):
                    for group in groups:
                        if places := group.of_shards[k]:
                            add(rows.made[k], shard, inputs, places, group.shared, limits, scratch)
        for group, target in zip(groups, targets, strict=True):
            if group.over_ranks:
                self._reduce(mode, target)

    def _reduce(self, mode: int, array: Array) -> None:
        if self._machine.comm.size > 1:
            with self._clock.span("exchange", mode):
                self._machine.exchange.reduce(array, "sum")
