"""Several runs of CP-APR at once, by multiplicative updates; see `apr` and `side_by_side`.

Models are interleaved (`backend.interleaved`), and all that is done row by row is done for all of them.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence

import numpy as np
from numpy.typing import NDArray

from ..backend.interleaved import Groups
from ..backend.providers import multiplies
from ..operators.base import CountsOperators, in_turn
from ..operators.columns import Columns
from .apr import CpApr
from .poisson import Poisson
from .side_by_side import Key, SideBySide, columns_of

Numbers = NDArray[np.float64]


class Counting(SideBySide[Key, CpApr]):
    """See `SideBySide`; groups of models have an equal number of columns."""

    def __init__(self, operator: CountsOperators, start: Callable[[Columns, Key], CpApr], asked: Poisson) -> None:
        super().__init__(operator, start)
        self._counts, self._asked, self._how = operator, asked, operator.interleaved
        self._dtype = operator.options.dtype
        self._width, self._columns = self._how.width(self._dtype), operator.ranks[0]
        device = operator.machine.device
        self._multiply = multiplies(device).make(device, self._columns, self._dtype)
        self._models: dict[int, list[bool]] = {}  # by a group's first column: which of its models are taken

    def _place(self, rank: int) -> Columns | None:
        """See `SideBySide`: those of a model of a group, or of a new one."""
        models = self._how.models(rank, self._dtype)
        for first, taken in self._models.items():
            if len(taken) == models and not all(taken):
                return self._take(first, taken.index(False), rank)
        free = [first for first in range(0, self._columns, self._width) if first not in self._models]
        if not free:
            return None
        self._models[free[0]] = [False] * models
        return self._take(free[0], 0, rank)

    def _take(self, first: int, model: int, rank: int) -> Columns:
        models = self._models[first]
        models[model] = True
        apart, every = len(models), self._width // len(models)
        for mode, length in enumerate(self._counts.shape):  # columns that a smaller model does not have are zero
            place = Columns(self._counts, first + model, every, apart)
            place.set_factor(mode, np.zeros((length, every), self._dtype))
        return Columns(self._counts, first + model, rank, apart)

    def _leave(self, columns: Columns) -> None:
        first = columns.columns.start // self._width * self._width
        self._models[first][columns.columns.start - first] = False
        if not any(self._models[first]):
            del self._models[first]

    def _groups(self, columns: Sequence[slice]) -> Groups:
        """Return the groups that these columns are in."""
        firsts = sorted({each.start // self._width * self._width for each in columns})
        sizes = {len(self._models[first]) for first in firsts}
        return {
            models: np.array([first for first in firsts if len(self._models[first]) == models], np.int64)
            for models in sizes
        }

    def _iterate(self, methods: Sequence[CpApr]) -> None:
        operator, places = self._counts, [columns_of(method).columns for method in methods]
        weights, kappa = np.zeros(self._columns), np.zeros(self._columns)
        for method, place in zip(methods, places, strict=True):
            weights[place] = method.state.arrays["weights"]
            kappa[place] = self._asked.kappa if method.state.iterations else 0.0
        facts, logs = np.zeros((len(methods), operator.order, 2)), np.zeros(self._columns)
        for mode in range(operator.order):
            operator.join()
            with operator.span("solve", mode):
                self._multiply.begin(operator.computed(mode), weights, kappa, self._asked.kappa_tol)  # type: ignore[arg-type]
            phi = self._update(mode, places, facts[:, mode])
            if mode == operator.order - 1:
                operator.add_logs_of(mode, self._asked.eps, self._groups(places), logs, in_turn(mode, operator.order))
            weights = np.zeros(self._columns)
            with operator.span("solve", mode):
                self._multiply.add_columns(operator.owned(mode), weights)
            operator.reduce(weights, "sum", mode)
            with operator.span("solve", mode):
                self._multiply.end(phi, operator.computed(mode), weights, self._asked.kappa_tol)
            operator.publish(mode)
        operator.join()
        for method, place, fact in zip(methods, places, facts, strict=True):
            method.take((float(logs[place.start]), weights[place].copy(), fact))

    def _update(self, mode: int, places: Sequence[slice], facts: Numbers) -> Numbers:
        """Multiply B with Phi until each run's violation is small; return the last Phi. See `Multiplicative.queue`."""
        operator, asked, others = self._counts, self._asked, in_turn(mode, self._counts.order)
        matrix, found = operator.computed(mode), np.zeros(self._columns)
        live = np.ones(len(places), bool)
        for inner in range(asked.inner_iters):
            groups = self._groups([place for place, each in zip(places, live, strict=True) if each])
            phi: Numbers = operator.phis(mode, asked.eps, groups, [mode] * (asked.inner_iters - inner - 1) + others)
            with operator.span("solve", mode):
                self._how.measure(phi, matrix, groups, found)
            violations = np.array([found[place].max() for place in places])
            operator.reduce(violations, "max", mode)
            facts[live, 0] = violations[live]
            live &= ~(violations < asked.tol)
            facts[live, 1] += 1
            columns = np.zeros(self._columns, bool)
            for place in (place for place, each in zip(places, live, strict=True) if each):
                columns[place] = True
            with operator.span("solve", mode):
                self._how.apply(phi, matrix, groups, columns)
            if not live.any():
                break
        return phi
