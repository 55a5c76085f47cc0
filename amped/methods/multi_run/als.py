"""Several runs of small ranks at once: one pass over the elements serves all of them.

The columns of an MTTKRP do not depend on each other. So one operator holds the factor matrices of several runs side by
side. Each run takes part with columns of its own until it has converged; then others get its place.
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
    """Runs side by side. Its methods are collective.

    Parameters
    ----------
    operator : Operator
        Of so many columns as the runs have together, or as a pass is to have.
    start : callable
        Returns the method that runs in some columns, with the factor matrices to start from in place. Collective.

    Attributes
    ----------
    seconds : dict
        Of each run, its share of those of all iterations that it took part in, by its columns.
    """

    def __init__(self, operator: Operator, start: Callable[[Columns, Key], Run]) -> None:
        self._operator, self._start = operator, start
        self.seconds: dict[Key, float] = defaultdict(float)

    def run(
        self, ranks: Mapping[Key, int], rule: StopRule, stop: Callable[[], bool] = never
    ) -> Iterator[tuple[Key, Run]]:
        """Run all of what has these ranks; yield each when it has ended.

        Its state lasts until the next one is asked for. Large ones come first: the small ones fit between them. Once
        `stop`, called between iterations, returns True, those that still run are given up.
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
        """Compute an iteration of all runs again and again; yield those that have ended."""
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
        """Start runs in the columns that are free."""
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
        """Leave the state of a run that has ended in the method."""

    @abstractmethod
    def _place(self, rank: int) -> Columns | None:
        """Return columns that are free, now taken; None if there are not so many."""

    @abstractmethod
    def _leave(self, columns: Columns) -> None:
        """Let others have columns."""

    @abstractmethod
    def _iterate(self, methods: Sequence[Run]) -> None:
        """Compute one iteration of each."""


class AlsRuns(MultiRun[Key, CpAls]):
    """CP-ALS side by side: MTTKRPs are computed for all, and each run solves its rows. See `MultiRun`."""

    def __init__(self, operator: Operator, start: Callable[[Columns, Key], CpAls]) -> None:
        super().__init__(operator, start)
        self._taken = np.zeros(operator.ranks[0], bool)  # columns

    def _place(self, rank: int) -> Columns | None:
        """See `MultiRun`: the first ones in a row."""
        taken = np.flatnonzero(np.append(self._taken, True))
        begins = np.append(0, taken[:-1] + 1)
        fitting = begins[taken - begins >= rank]
        if not fitting.size:
            return None
        result = Columns(self._operator, int(fitting[0]), rank)
        self._taken[result.columns] = True
        return result

    def _leave(self, columns: Columns) -> None:
        self._taken[columns.columns] = False

    def _iterate(self, methods: Sequence[CpAls]) -> None:
        steps = [method.passes() for method in methods]
        wanted = {k: next(each) for k, each in enumerate(steps)}
        while wanted:
            # What few ask for besides comes first, so that they catch up with the others.
            kind = max(map(_kind, wanted.values()))
            group = [k for k, each in wanted.items() if _kind(each) == kind]
            parts = [columns_of(methods[k]) for k in group]
            result = self._pass(parts, [wanted.pop(k) for k in group], [steps[k] for k in group])
            for k, part in zip(group, parts, strict=True):
                with suppress(StopIteration):
                    wanted[k] = steps[k].send(part.of(result))

    def _pass(self, parts: Sequence[Columns], wanted: Sequence[Pass], steps: Sequence[Passes[bool]]) -> Array:
        """Compute an MTTKRP that several ask for."""
        operator, first = self._operator, wanted[0]
        joint = _Joint(operator, [each.sums for each in wanted if each.sums is not None])

        def solve(source: Array, target: Array) -> None:
            for part, each, step in zip(parts, wanted, steps, strict=True):
                assert each.solve is not None
                try:
                    each.solve(part.of(source), part.of(target))
                except DivergedError as error:
                    step.throw(error)  # which says more
            joint.wait_comm()

        result = operator.mttkrp(first.mode, solve if first.solve else None, first.then, first.double, joint.sums)
        joint.divide()
        return result


class _Joint:
    """The sums of several runs, to be added up over the ranks at once; nothing where there is one rank alone."""

    def __init__(self, operator: Operator, parts: Sequence[Array]) -> None:
        self._operator, self._parts = operator, parts if operator.machine.comm.size > 1 else ()
        size = sum(part.size for part in self._parts)
        self.sums = operator.machine.device.empty((size,), np.float64) if size else None

    def wait_comm(self) -> None:
        """Bring them together."""
        if self.sums is not None:
            self._operator.machine.device.wait_side()
            for place, part in self._places():
                self.sums[place] = part.reshape(-1)

    def divide(self) -> None:
        """Give each run its own."""
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
    """Return the columns that a run has."""
    result: Any = method.operator
    assert isinstance(result, Columns)
    return result
