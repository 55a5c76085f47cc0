"""Multiple runs of small ranks at once: one pass over the elements serves all of them.

The columns of an MTTKRP are independent of each other. Therefore one operator can hold the factor matrices of several
runs side by side. Each run has its own columns until it ends; then another run takes its place.
"""

from __future__ import annotations

import time
from abc import ABC, abstractmethod
from collections import defaultdict
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import suppress
from typing import Any, Generic, TypeVar

import numpy as np

from ...backend.device import Array
from ...operators.base import Operator
from ...operators.columns import Columns
from ...parallel.step_timeout import paced
from ..als import CpAls
from ..driver import StopRule, never
from ..starts import Restartable
from ..updates import DivergedError, Pass, Passes

Key = TypeVar("Key")
Run = TypeVar("Run", bound=Restartable)


class MultiRun(ABC, Generic[Key, Run]):
    """Runs a method several times at once. All methods are collective.

    Parameters
    ----------
    operator : Operator
        Has as many columns as all runs together, or as one pass should have.
    start : callable
        Returns the method for a run in the given columns, whose initial factor matrices it sets. Collective.

    Attributes
    ----------
    seconds : dict
        Seconds of each run: its share, by columns, of the iterations in which it took part.
    """

    def __init__(self, operator: Operator, start: Callable[[Columns, Key], Run]) -> None:
        self._operator, self._start = operator, start
        self.seconds: dict[Key, float] = defaultdict(float)

    def run(
        self, ranks: Mapping[Key, int], rule: StopRule, stop: Callable[[], bool] = never
    ) -> Iterator[tuple[Key, Run]]:
        """Run all keys with these ranks; yield each run when it has ended.

        Its state is valid until the next one is requested. Runs of large rank start first, as small ones fit into the
        gaps. Once `stop`, called between iterations, returns True, the remaining runs are abandoned.
        """
        waiting = sorted(ranks, key=lambda key: -ranks[key])
        going = dict[Key, Run]()
        for ended in paced(self._rounds(waiting, going, ranks, rule), 0, rule.first_limit, rule.deadline):
            for key in ended:
                method = going.pop(key)
                self._end(method)
                yield key, method
                self._leave(columns_of(method))
            self._operator.clock.collect()
            if stop():
                return

    def _rounds(
        self, waiting: list[Key], going: dict[Key, Run], ranks: Mapping[Key, int], rule: StopRule
    ) -> Iterator[list[Key]]:
        """Compute iterations of all current runs; yield the keys that ended after each."""
        ended = list[Key](ranks)
        while waiting or going:
            began = time.perf_counter()
            if ended:
                self._fill(waiting, going, ranks)
            self._iterate(list(going.values()))
            ended = list[Key]()
            for key, method in going.items():
                method.state.converged = rule.tol > 0 and method.settled(rule.tol)
                if method.state.converged or method.state.iterations >= rule.max_iters:
                    ended.append(key)
            each = (time.perf_counter() - began) / sum(ranks[key] for key in going)
            for key in going:
                self.seconds[key] += each * ranks[key]
            yield ended

    def _fill(self, waiting: list[Key], going: dict[Key, Run], ranks: Mapping[Key, int]) -> None:
        """Start runs in the free columns."""
        for rank in sorted(set(map(ranks.__getitem__, waiting)), reverse=True):
            for key in [key for key in waiting if ranks[key] == rank]:
                columns = self._place(rank)
                if columns is None:
                    break
                waiting.remove(key)
                going[key] = self._begin(columns, key)

    def _begin(self, columns: Columns, key: Key) -> Run:
        return self._start(columns, key)

    def _end(self, method: Run) -> None:
        """Complete the state of a run that has ended."""

    @abstractmethod
    def _place(self, rank: int) -> Columns | None:
        """Reserve and return `rank` free columns; None if there are not enough."""

    @abstractmethod
    def _leave(self, columns: Columns) -> None:
        """Release columns."""

    @abstractmethod
    def _iterate(self, methods: Sequence[Run]) -> None:
        """Compute one iteration of each."""


class AlsRuns(MultiRun[Key, CpAls]):
    """Multiple runs of CP-ALS: MTTKRPs are shared, and each run solves its own rows. See `MultiRun`."""

    def __init__(self, operator: Operator, start: Callable[[Columns, Key], CpAls]) -> None:
        super().__init__(operator, start)
        self._taken = np.zeros(operator.ranks[0], bool)  # columns

    def _place(self, rank: int) -> Columns | None:
        """See `MultiRun`: reserves the first gap of adjacent columns."""
        taken = np.flatnonzero(np.append(self._taken, True))
        begins = np.append(0, taken[:-1] + 1)
        fitting = begins[taken - begins >= rank]
        if not fitting.size:
            return None
        columns = Columns(self._operator, int(fitting[0]), rank)
        self._taken[columns.columns] = True
        return columns

    def _leave(self, columns: Columns) -> None:
        self._taken[columns.columns] = False

    def _iterate(self, methods: Sequence[CpAls]) -> None:
        steps = [method.passes() for method in methods]
        wanted = {k: next(each) for k, each in enumerate(steps)}
        while wanted:
            # Additional passes of a few runs come first, so that these catch up with the others.
            kind = max(map(_kind, wanted.values()))
            group = [k for k, each in wanted.items() if _kind(each) == kind]
            parts = [columns_of(methods[k]) for k in group]
            result = self._pass(parts, [wanted.pop(k) for k in group], [steps[k] for k in group])
            for k, part in zip(group, parts, strict=True):
                with suppress(StopIteration):
                    wanted[k] = steps[k].send(part.of(result))

    def _pass(self, parts: Sequence[Columns], wanted: Sequence[Pass], steps: Sequence[Passes[bool]]) -> Array:
        """Compute an MTTKRP that several runs requested."""
        operator, first = self._operator, wanted[0]
        joint = _Joint(operator, [each.sums for each in wanted if each.sums is not None])

        def solve(source: Array, target: Array) -> None:
            for part, each, step in zip(parts, wanted, steps, strict=True):
                assert each.solve is not None
                try:
                    each.solve(part.of(source), part.of(target))
                except DivergedError as error:
                    step.throw(error)  # which adds the iteration and the cause
            joint.collect()

        result = operator.mttkrp(first.mode, solve if first.solve else None, first.then, first.double, joint.sums)
        joint.distribute()
        return result


class _Joint:
    """The sums of several runs in one array, so that one reduction over the ranks serves all; empty for one rank."""

    def __init__(self, operator: Operator, parts: Sequence[Array]) -> None:
        self._operator, self._parts = operator, parts if operator.machine.comm.size > 1 else ()
        size = sum(part.size for part in self._parts)
        self.sums = operator.machine.device.empty((size,), np.float64) if size else None

    def collect(self) -> None:
        """Copy the runs' sums into the array."""
        if self.sums is not None:
            self._operator.machine.device.wait_side()
            for place, part in self._places():
                self.sums[place] = part.reshape(-1)

    def distribute(self) -> None:
        """Copy the reduced sums back to the runs."""
        if self.sums is not None:
            self._operator.wait_comm()
            for place, part in self._places():
                part[...] = self.sums[place].reshape(part.shape)

    def _places(self) -> Iterator[tuple[slice, Array]]:
        begin = 0
        for part in self._parts:
            yield slice(begin, begin + part.size), part
            begin += part.size


def _kind(wanted: Pass) -> tuple[bool, int, bool]:
    return wanted.double, -wanted.mode, wanted.solve is None


def columns_of(method: Restartable) -> Columns:
    """Return the columns of a run."""
    operator: Any = method.operator
    assert isinstance(operator, Columns)
    return operator
