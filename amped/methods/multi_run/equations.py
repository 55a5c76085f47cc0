"""CP-ALS side by side on a device that computes the small matrices of all runs, and their rows, by one launch each."""

from __future__ import annotations

from collections.abc import Callable, Sequence

import numpy as np

from ...backend.device import Array, Replay
from ...backend.ops.batch import Batch, BatchProvider, Case, RunStart, RunStatus
from ...backend.ops.equations import NEAR, RANGE
from ...operators.base import Operator, in_turn
from ...operators.columns import Columns
from ..als import CpAls
from ..constrained import bounds_of, sweeps_of
from ..constraints import Constraints
from ..updates import gram_of, terms_of
from .als import Alternating, Key, columns_of


class Batched(Alternating[Key]):
    """See `SideBySide`. A run that raises a flag is taken out of the batch, and is one of `Alternating` for a while.

    Parameters
    ----------
    operator, start
        See `SideBySide`.
    provider : BatchProvider
        Of batches.
    rank, runs : int
        The most columns of a run, and how many runs there are.
    constraints : Constraints
    """

    def __init__(
        self,
        operator: Operator,
        start: Callable[[Columns, Key], CpAls],
        provider: BatchProvider,
        rank: int,
        runs: int,
        constraints: Constraints,
    ) -> None:
        super().__init__(operator, start)
        places = min(runs, operator.ranks[0])
        self._batch = provider.make(case_of(operator, rank, places, constraints))
        self._update = _Update(operator, self._batch, constraints.solved(operator.order))
        self._free, self._places = list(range(places)), dict[CpAls, int]()

    def _begin(self, columns: Columns, key: Key) -> CpAls:
        method = super()._begin(columns, key)
        method.checked = 0  # the batch does what the host does in the first iteration
        return method

    def _end(self, method: CpAls) -> None:
        if method in self._places:
            self._take_out(method, raised=False)

    def _iterate(self, methods: Sequence[CpAls]) -> None:
        for method in methods:
            if method not in self._places and not method.checked:
                self._put(method)
        within = [method for method in methods if method in self._places]
        others = [method for method in methods if method not in self._places]
        if within:
            others += self._advance(within)
        if others:
            super()._iterate(others)

    def _put(self, method: CpAls) -> None:
        """Let a run go on in the batch."""
        columns, comm = columns_of(method), self._operator.machine.comm
        grams = np.stack([gram_of(columns, mode) for mode in range(columns.order)])
        if comm.size > 1:
            comm.all_reduce(grams, "sum")
        self._places[method] = self._free.pop()
        told, best, weights = method.standing()
        self._batch.put(self._places[method], columns.columns, RunStart(told, best, grams, weights))

    def _take_out(self, method: CpAls, raised: bool) -> None:
        """Let a run go on by itself, or end."""
        place = self._places.pop(method)
        self._free.append(place)
        method.stand(self._operator.machine.comm.bcast(self._batch.take(place)), raised)

    def _advance(self, methods: Sequence[CpAls]) -> list[CpAls]:
        """Compute an iteration of runs in the batch; return those that have raised a flag, and are taken out."""
        told, raised = self._update.iteration(), list[CpAls]()
        for method in methods:
            facts = told[self._places[method]]
            if facts.flags:
                raised.append(method)
                self._take_out(method, raised=True)
            else:
                method.advance(facts.fit, facts.squares)
        return raised


class _Update:
    """Iterations of the runs in a batch: see `LeastSquares`.

    Once all that an iteration takes is compiled, it is noted down and launched as a whole, where the device can.
    """

    def __init__(self, operator: Operator, batch: Batch, modes: Sequence[int]) -> None:
        self._operator, self._batch, self._modes = operator, batch, modes
        self._several = operator.machine.comm.size > 1
        self._ahead = operator.plan.ahead and batch.facts is not None and not self._several
        self._iterations = 0
        self._replay: Replay | None = None

    def iteration(self) -> list[RunStatus]:
        """Compute an iteration; return what is told of each place, by rank 0: all ranks do the same."""
        self._iterations += 1
        if self._ahead and self._iterations > 1:
            self._replay = self._replay or self._noted()
            self._replay.launch()
            self._operator.forget()  # it was told nothing of what the launch leaves
            told = self._batch.read(self._replay.wait())
        else:
            self._compute()
            told = self._told()
        if any(each.flags & NEAR for each in told):
            self._compute_exactly()
            told = self._told()
        return told

    def _told(self) -> list[RunStatus]:
        told = self._batch.told()
        return self._operator.machine.comm.bcast(told) if self._several else told

    def _noted(self) -> Replay:
        operator, batch = self._operator, self._batch
        update = _Update(operator, batch, self._modes)  # the replay holds it, and would hold this one

        def iteration() -> None:
            operator.forget()  # what is kept from one iteration to the next is not noted down
            update._compute()
            operator.wait_comm()
            batch.tell()

        operator.synchronize()
        replay = operator.machine.device.capture(iteration, batch.facts, operator.clock)
        assert replay is not None
        return replay

    def _compute(self) -> None:
        """Queue an iteration."""
        for mode in self._modes:
            solved = self._solve(mode)
            # To launch what nothing needs takes less than to ask, but not where ranks would exchange rows for it.
            if not self._several or any(each.flags & RANGE for each in self._told()):
                self._solve_again(mode, solved)
        with self._operator.machine.device.side_stream():
            self._batch.fit()

    def _solve(self, mode: int) -> Array:
        """Compute, solve and publish the rows of a mode of all runs; return the MTTKRP's rows."""
        operator, batch, device = self._operator, self._batch, self._operator.machine.device
        with device.side_stream():
            batch.prepare(mode)

        def solve(source: Array, target: Array) -> None:
            device.wait_side()
            with operator.span("solve", mode):
                batch.solve(mode, source, target)

        solved = operator.mttkrp(mode, solve, self._then(mode), False, batch.totals)
        self._finish(mode)
        return solved

    def _then(self, mode: int) -> list[int]:
        """Return the modes whose MTTKRPs follow."""
        return in_turn(mode, self._operator.order, self._modes)

    def _finish(self, mode: int, again: bool = False) -> None:
        machine = self._operator.machine
        with machine.device.side_stream():
            machine.exchange.wait_comm(forget=False)
            self._batch.finish(mode, again)

    def _solve_again(self, mode: int, solved: Array) -> None:
        """Solve the rows of runs whose numbers are out of range, divided by others."""
        operator, device = self._operator, self._operator.machine.device
        device.wait_side()
        self._batch.widen(mode)
        self._batch.solve(mode, solved, operator.owned(mode), again=True)
        device.wait_side()
        operator.publish(mode, self._batch.totals)
        self._finish(mode, again=True)

    def _compute_exactly(self) -> None:
        """Compute the fits that are near 1 once more, from inner products in double precision."""
        operator, batch, device = self._operator, self._batch, self._operator.machine.device
        source = operator.mttkrp(0, None, self._then(self._modes[-1]), True)
        device.wait_side()
        with operator.span("solve", 0):
            batch.multiply(source, operator.owned(0))
        with device.side_stream():
            operator.reduce(batch.dots, "sum", 0)
            batch.fit(exact=True)


def case_of(operator: Operator, rank: int, places: int, constraints: Constraints) -> Case:
    """Return what a batch is made for: runs of so many columns, at most."""
    rows, order = max(len(operator.owned(mode)) for mode in range(operator.order)), operator.order
    bounds = bounds_of(constraints, order) if constraints else None
    return Case(terms_of(operator, rank), operator.options.dtype, places, rows, bounds, sweeps_of(constraints, order))
