"""Multiple runs of CP-ALS on a device that solves the normal equations of all runs by one launch per step."""

from __future__ import annotations

from collections.abc import Callable, Sequence

from ...backend.device import Replay
from ...backend.ops.equations import NEAR, RANGE, EquationsProvider, EquationsStatus, RunStart
from ...operators.base import Operator
from ...operators.columns import Columns
from ..als import CpAls
from ..captured import captured
from ..constraints import Constraints
from ..updates import LeastSquares, case_of, grams_of, run_passes
from .als import AlsRuns, Key, columns_of


class BatchedAlsRuns(AlsRuns[Key]):
    """Multiple runs of CP-ALS in a batch; see `MultiRun`.

    A run that raises a flag leaves the batch and is computed as in `AlsRuns` for some iterations.

    Parameters
    ----------
    operator, start
        See `MultiRun`.
    provider : EquationsProvider
        Must support several runs.
    rank, runs : int
        The largest number of columns of a run, and the number of runs.
    constraints : Constraints
    """

    def __init__(
        self,
        operator: Operator,
        start: Callable[[Columns, Key], CpAls],
        provider: EquationsProvider,
        rank: int,
        runs: int,
        constraints: Constraints,
    ) -> None:
        super().__init__(operator, start)
        places = places_of(runs, operator.ranks[0])
        self._batch = provider.make(case_of(operator, rank, constraints, places))
        update = LeastSquares(operator, constraints.solved(operator.order), self._batch)
        self._iterations = _Iterations(operator, update)
        self._free, self._places = list(range(places)), dict[CpAls, int]()

    def _begin(self, columns: Columns, key: Key) -> CpAls:
        method = super()._begin(columns, key)
        method.checked = 0  # the batch needs no iteration on the host first
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
        """Move a run into the batch."""
        columns = columns_of(method)
        self._places[method] = self._free.pop()
        status, best, weights = method.standing()
        self._batch.put(self._places[method], columns.columns, RunStart(status, best, grams_of(columns), weights))

    def _take_out(self, method: CpAls, raised: bool) -> None:
        """Move a run out of the batch."""
        place = self._places.pop(method)
        self._free.append(place)
        method.stand(self._operator.machine.comm.bcast(self._batch.take(place)), raised)

    def _advance(self, methods: Sequence[CpAls]) -> list[CpAls]:
        """Compute an iteration of the batch; remove and return the runs that raised a flag."""
        status, raised = self._iterations.next(), list[CpAls]()
        for method in methods:
            facts = status[self._places[method]]
            if facts.flags:
                raised.append(method)
                self._take_out(method, raised=True)
            else:
                method.advance(facts.fit, facts.squares)
        return raised


class _Iterations:
    """Iterations of a batch of runs.

    From the second iteration on, when all code is compiled, iterations are captured and launched as a whole if the
    device supports it.
    """

    def __init__(self, operator: Operator, update: LeastSquares) -> None:
        self._operator, self._update, self._several = operator, update, operator.machine.comm.size > 1
        self._pipelined = operator.plan.pipelined and update.equations.memory is not None and not self._several
        self._computed = 0
        self._replay: Replay | None = None

    def next(self) -> list[EquationsStatus]:
        """Compute an iteration; return rank 0's status of each place on all ranks."""
        self._computed += 1
        if self._pipelined and self._computed > 1:
            self._replay = self._replay or self._captured()
            self._replay.launch()
            self._operator.forget()  # the operator does not know the effects of the launch
            status = self._update.equations.read(self._replay.wait())
        else:
            self._compute()
            status = self._status()
        if any(each.flags & NEAR for each in status):
            run_passes(self._operator, self._update.refit())
            status = self._status()
        return status

    def _status(self) -> list[EquationsStatus]:
        status = self._update.statuses()
        return self._operator.machine.comm.bcast(status) if self._several else status

    def _captured(self) -> Replay:
        operator, equations = self._operator, self._update.equations
        computed = _Iterations(operator, self._update)  # the replay must not refer to `self`

        def iteration() -> None:
            operator.forget()  # partial results kept between iterations are not captured
            computed._compute()
            operator.wait_comm()
            equations.report()

        return captured(operator, iteration, equations.reported)

    def _compute(self) -> None:
        """Queue an iteration."""
        for mode in self._update.modes:
            self._solve(mode)
        self._update.fit()

    def _solve(self, mode: int) -> None:
        """Compute, solve and publish the rows of a mode of all runs."""
        solved = run_passes(self._operator, self._update.queue(mode))
        # An unnecessary launch is cheaper than a query of the flags, but an exchange between ranks is not.
        if not self._several or any(each.flags & RANGE for each in self._status()):
            self._update.queue_again(mode, solved)


def places_of(runs: int, columns: int) -> int:
    """Return the number of places of a batch, at least two: a single run's flags are handled by the host."""
    return max(2, min(runs, columns))
