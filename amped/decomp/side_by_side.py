"""Several runs of small ranks at once: one pass over the elements serves all of them.

The columns of an MTTKRP do not depend on each other. So one operator holds the factor matrices of several runs side by
side. Each run takes part with columns of its own until it has converged; then others get its place.
"""

from __future__ import annotations

import time
from collections import defaultdict
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import suppress
from typing import Any, Generic, Protocol, TypeVar

import numpy as np

from ..backend.base import Array
from ..operators.base import Operator
from ..operators.columns import Columns
from ..parallel.pace import paced
from .driver import Rule
from .starts import Restartable
from .updates import DivergedError, Pass, Passes


class Stepping(Restartable, Protocol):
    """A method whose passes over the elements others may compute for it."""

    def passes(self) -> Passes[bool]:
        """Do what `step` does, but for the passes."""


Key = TypeVar("Key")
Start = Callable[[Columns, Key], Stepping]
"""Return the method that runs in some columns, with the factor matrices to start from in place. Collective."""


class SideBySide(Generic[Key]):
    """Runs side by side. Its methods are collective.

    Parameters
    ----------
    operator : Operator
        Of so many columns as the runs have together, or as a pass is to have.
    start : callable
        See `Start`.

    Attributes
    ----------
    seconds : dict
        Of each run, its share of those of all iterations that it took part in, by its columns.
    """

    def __init__(self, operator: Operator, start: Start[Key]) -> None:
        self._operator, self._start = operator, start
        self.seconds: dict[Key, float] = defaultdict(float)
        self._taken = np.zeros(operator.ranks[0], bool)  # columns

    def run(self, ranks: Mapping[Key, int], rule: Rule) -> Iterator[tuple[Key, Stepping]]:
        """Run all of what has these ranks; yield each when it has ended.

        Its state lasts until the next one is asked for. Large ones come first: the small ones fit between them.
        """
        waiting = sorted(ranks, key=lambda key: -ranks[key])
        going = dict[Key, Stepping]()
        for ended in paced(self._rounds(waiting, going, ranks, rule), 0, rule.first_limit, rule.deadline):
            for key in ended:
                method = going.pop(key)
                yield key, method
                self._taken[_columns(method).columns] = False
            self._operator.clock.collect()

    def _rounds(
        self, waiting: list[Key], going: dict[Key, Stepping], ranks: Mapping[Key, int], rule: Rule
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

    def _fill(self, waiting: list[Key], going: dict[Key, Stepping], ranks: Mapping[Key, int]) -> None:
        """Start runs in the columns that are free."""
        least = self._taken.size + 1  # of the ranks that did not fit
        for key in list(waiting):
            columns = self._place(ranks[key]) if ranks[key] < least else None
            if columns is None:
                least = min(least, ranks[key])
                continue
            waiting.remove(key)
            going[key] = self._start(columns, key)

    def _place(self, rank: int) -> Columns | None:
        """Return the first columns in a row that are free; None if there are not so many."""
        taken = np.flatnonzero(np.append(self._taken, True))
        begins = np.append(0, taken[:-1] + 1)
        fitting = begins[taken - begins >= rank]
        if not fitting.size:
            return None
        found = Columns(self._operator, int(fitting[0]), rank)
        self._taken[found.columns] = True
        return found

    def _iterate(self, methods: Sequence[Stepping]) -> None:
        """Compute one iteration of each."""
        steps = [method.passes() for method in methods]
        wanted = {k: next(each) for k, each in enumerate(steps)}
        while wanted:
            # What few ask for besides comes first, so that they catch up with the others.
            kind = max(map(_kind, wanted.values()))
            group = [k for k, each in wanted.items() if _kind(each) == kind]
            parts = [_columns(methods[k]) for k in group]
            found = self._pass(parts, [wanted.pop(k) for k in group], [steps[k] for k in group])
            for k, part in zip(group, parts, strict=True):
                with suppress(StopIteration):
                    wanted[k] = steps[k].send(part.of(found))

    def _pass(self, parts: Sequence[Columns], wanted: Sequence[Pass], steps: Sequence[Passes[bool]]) -> Array:
        """Compute an MTTKRP that several ask for."""
        first, alone = wanted[0], self._operator.machine.comm.size == 1
        sums = [each.sums for each in wanted if each.sums is not None]
        joint = None if alone or not sums else self._operator.machine.device.empty((sum(s.size for s in sums),), float)

        def solve(source: Array, target: Array) -> None:
            for part, each, step in zip(parts, wanted, steps, strict=True):
                assert each.solve is not None
                try:
                    each.solve(part.of(source), part.of(target))
                except DivergedError as error:
                    step.throw(error)  # which says more
            if joint is not None:
                self._operator.machine.device.meet()
                at = 0
                for each in sums:
                    joint[at : at + each.size] = each.reshape(-1)
                    at += each.size

        found = self._operator.mttkrp(first.mode, solve if first.solve else None, first.then, first.double, joint)
        if joint is not None:
            self._operator.join()
            at = 0
            for each in sums:
                each[...] = joint[at : at + each.size].reshape(each.shape)
                at += each.size
        return found


def _kind(wanted: Pass) -> tuple[bool, int, bool]:
    return wanted.double, -wanted.mode, wanted.solve is None


def _columns(method: Stepping) -> Columns:
    found: Any = method.operator
    assert isinstance(found, Columns)
    return found
