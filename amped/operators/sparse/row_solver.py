"""Solver of row problems over shards and ranks: whole rows shard by shard, then shared rows in step."""

from __future__ import annotations

from collections.abc import Callable, Hashable, Sequence
from dataclasses import dataclass
from typing import Any

from ...backend.device import Array
from ...backend.ops.mttkrp import Kernel
from ...backend.ops.rowproblems import (
    ITERATIONS,
    KKT,
    ROWPROBLEMS,
    RowLimits,
    RowMethod,
    RowProblemsProvider,
    RowTerms,
    Shared,
)
from ...parallel.progress import CURRENT
from ..memory import PIECES
from ..modes import ModePlan, Planned
from .operator import SparseOperator
from .stream import ModeShards, Step

Places = list[tuple[int, int]]  # (index among the shared rows, row of the rank) of each row


@dataclass(frozen=True)
class Group:
    """Rows that are solved in step: rows shared by ranks, or rows shared by shards of this rank.

    `every` are all of them, `places` those that this rank computes, `of_shards` those of each shard, and `owned` those
    that it owns.
    """

    shared: Shared
    over_ranks: bool
    every: Places
    places: Places
    owned: Places
    of_shards: Sequence[Places]

    def take(self, matrix: Array, which: Places, first: int = 0) -> None:
        """Read rows of B from a matrix, of which this rank's rows begin at `first`."""
        for k, row in which:
            self.shared.rows[k] = matrix[first + row]

    def give(self, matrix: Array) -> None:
        """Write the rows of B that this rank computes to a matrix."""
        for k, row in self.places:
            matrix[row] = self.shared.rows[k]


@dataclass(frozen=True)
class RowProblems(Planned[RowProblemsProvider[Any]]):
    """Problems of the rows of a mode; see `backend.ops.rowproblems` and `RowSolver`."""

    method: RowMethod

    op, keeps, reading = ROWPROBLEMS, "row problems", "row problems require gather 'full'"
    instead = "; methods 'mu' and 'pqnr' support any number"

    @property
    def label(self) -> str:  # type: ignore[override]
        """See `Planned`."""
        return f"row problems by method {self.method!r}"

    def refusal(self, kernels: str) -> str:
        return f"does not support {self.method!r}: {kernels} do"

    def suits(self, provider: RowProblemsProvider[Any], kernel: Kernel, mode: ModePlan) -> bool:
        return provider.method == self.method and provider.suits(kernel, mode.share)

    def prepare(self, kernel: Kernel, mode: ModePlan) -> None:
        self.of(kernel, mode).prepare(kernel, mode.share, mode.rank)

    def bytes(self, kernel: Kernel, mode: ModePlan, nnz: int) -> int:
        return self.of(kernel, mode).bytes(kernel, mode.share, nnz).running

    def kept(self, mode: ModePlan) -> int:
        """See `Planned`: the order of rows, and the shared rows."""
        (kernel,) = mode.kernels
        provider = self.of(kernel, mode)
        shared = (mode.cut.split_rows.size + PIECES) * provider.shared_bytes(mode.rank)
        return provider.bytes(kernel, mode.share, mode.nnz).kept + shared

    def codes(self, mode: ModePlan) -> int:
        return self.of(mode.kernels[0], mode).codes


class ModeRows:
    """The rows of one mode: their positions in each shard, which are whole there, and which are shared."""

    def __init__(self, mode: ModePlan, shards: ModeShards, provider: RowProblemsProvider[Any], rank: int) -> None:
        split = {int(row) - mode.rows.start: k for k, row in enumerate(mode.cut.split_rows)}
        edges = _edges(shards.steps, mode.rows.start)
        between = {row for row in edges if row is not None}
        local = {row: k for k, row in enumerate(sorted(between - set(split)))}
        self.whole = [_whole(step.new, {*split, *local}) for step in shards.steps]
        self.made = [provider.make(s, mode.share, whole) for s, whole in zip(shards.shards, self.whole, strict=True)]
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
                every, shared = [(k, row) for row, k in rows.items()], provider.share_rows(len(rows), rank)
                self.groups.append(Group(shared, over_ranks, every, mine, own, of_shards))


def _edges(steps: Sequence[Step], begin: int) -> list[int | None]:
    """Return the last row of each shard if the next shard has nonzeros of it too, else None."""
    return [step.new.stop - 1 if step.done - begin < step.new.stop else None for step in steps]


def _whole(new: slice, shared: set[int]) -> slice:
    """Return the rows, of the new rows of a shard, that only this shard has; shared rows are at the ends."""
    start, stop = new.start, new.stop
    while start < stop and start in shared:
        start += 1
    while start < stop and stop - 1 in shared:
        stop -= 1
    return slice(start, stop)


class RowSolver:
    """Solves the rows of modes, for which the operator was placed. Construction and all methods are collective.

    Attributes
    ----------
    repeats : bool
        Whether the same work is queued each time, without waiting for the device: all nonzeros are resident, and shared
        rows are solved in one pass, if there are any.
    """

    def __init__(self, operator: SparseOperator, problems: RowProblems) -> None:
        modes, stream, machine = operator.plan.modes, operator.stream, operator.machine
        provider = problems.of(modes[0].kernels[0], modes[0])
        self._provider, self._machine, self._stream, self._work = provider, machine, stream, operator.work
        self._plans, self._clock = modes, operator.clock
        self._modes = [ModeRows(m, shards, provider, m.rank) for m, shards in zip(modes, stream.modes, strict=True)]
        # The host polls whether shared rows are solved if polling is cheap or saves much work: on all ranks or none.
        self._polls = machine.device.on_host or any(machine.comm.allgather(bool(stream.slots)))
        self._one_pass = problems.method == "als"
        polls = not self._one_pass and any(rows.groups for rows in self._modes)
        self.repeats = not any(machine.comm.allgather(bool(stream.slots) or polls))

    def solve(self, mode: int, limits: RowLimits | RowTerms, seen: Array, then: Sequence[int] = ()) -> None:
        """Queue the solution of the row problems of a mode, in place in its factor matrix.

        The statistics of the rows that this rank solves are added to `seen`, a float64 device array; one rank adds
        those of rows shared by ranks. `then`: see `SparseOperator.compute`.
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
                    self._provider.run(prepared, shard, inputs, matrix, plan.rank, limits, seen, whole, scratch)
        if not rows.made:
            self._clear(matrix, seen)
        if rows.groups:
            self._solve_shared(mode, rows, limits, [mode, *then])
        for group in rows.groups:
            with self._clock.span("compute", mode):
                group.give(matrix[:, : plan.rank])
                self._see(group, seen)

    def residual(self, mode: int, squares: float) -> float:
        """Return the sum of squared residuals, which is complete."""
        return squares

    def kept(self) -> Hashable:
        """Return None: there are no partial results."""
        return None

    def resume(self, kept: Hashable) -> None:
        """See `kept`."""

    def _clear(self, matrix: Array, seen: Array) -> None:
        """Set the rows of a rank without nonzeros to zero."""
        if matrix.size:
            xp = self._machine.device.xp
            seen[KKT] = xp.maximum(seen[KKT], xp.minimum(matrix.max(), 1.0))
            matrix.fill(0)

    def _see(self, group: Group, seen: Array) -> None:
        """Add the statistics of shared rows, on one rank."""
        xp, result = self._machine.device.xp, group.shared.seen
        if not self._one_pass:
            seen[KKT] = xp.maximum(seen[KKT], result[KKT])
        if not group.over_ranks or self._machine.comm.rank == 0:
            seen[ITERATIONS:] += result[ITERATIONS:]

    def _solve_shared(self, mode: int, rows: ModeRows, limits: RowLimits | RowTerms, then: Sequence[int]) -> None:
        """Solve shared rows in step. All ranks perform the same number of reductions."""
        for group in rows.groups:
            self._begin(mode, group)
        provider, left = self._provider, rows.groups
        for number in range(1 + limits.inner):
            self._add(provider.add_sums, mode, rows, left, limits, then, [g.shared.sums for g in left])
            for group in left:
                provider.step(group.shared, limits, number)
            left = [group for group in left if self._goes_on(group.shared)]
            if not left:
                break
            self._add(provider.add_changes, mode, rows, left, limits, then, [g.shared.changes for g in left])
            for group in left:
                provider.advance(group.shared, limits, number)

    def _goes_on(self, shared: Shared) -> bool:
        """Return whether a step needs the changes of the objective, and rows may be unsolved."""
        return shared.changes is not None and (not self._polls or shared.left() > 0)

    def _begin(self, mode: int, group: Group) -> None:
        """Read the rows of a group on all ranks."""
        plan, shared = self._plans[mode], group.shared
        if not group.over_ranks or self._one_pass:  # otherwise only the owners have changed them
            group.take(self._work.factors[mode][:, : plan.rank], group.every, plan.rows.start)
        else:
            shared.rows.fill(0)
            group.take(self._work.computed[mode][:, : plan.rank], group.owned)
            self._reduce(mode, shared.rows)
        shared.begin()

    def _add(
        self,
        add: Callable[..., None],
        mode: int,
        rows: ModeRows,
        groups: Sequence[Group],
        limits: RowLimits | RowTerms,
        then: Sequence[int],
        targets: Sequence[Array],
    ) -> None:
        """Sum contributions of the nonzeros of shared rows over all shards and ranks."""
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
