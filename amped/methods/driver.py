"""The one loop of all methods: iterate, stop, observe, save.

A method gives a step, a state of named arrays and numbers, and a model.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple, Protocol

import numpy as np
from numpy.typing import NDArray

from ..models.history import AnyModel
from ..operators.base import Placed
from ..parallel.progress import LOADING_SECONDS
from ..parallel.step_timeout import paced

Spans = dict[tuple[str, int], float]
"""Seconds of this rank by kind of work and mode; see `Clock.collect`."""


@dataclass
class MethodState:
    """Where a decomposition stands: what it takes, with the factor matrices, to go on."""

    arrays: dict[str, NDArray[np.float64]]  # what the method keeps from one mode to the next
    series: dict[str, list[float]]  # a number for each iteration, the most telling one first
    iterations: int = 0  # whole ones so far
    mode: int = 0  # modes that are solved already in the next iteration
    converged: bool = False

    def copy(self) -> MethodState:
        """Return a state that does not change when the run goes on."""
        arrays = {name: array.copy() for name, array in self.arrays.items()}
        series = {name: list(numbers) for name, numbers in self.series.items()}
        return MethodState(arrays, series, self.iterations, self.mode, self.converged)


class Method(Protocol):
    """A decomposition that improves the factor matrices of an operator. Its methods are collective."""

    name: str
    state: MethodState  # new, or that of an earlier run whose factor matrices the operator holds

    @property
    def operator(self) -> Placed:
        """What holds the factor matrices, perhaps those of an iteration that is yet to be reported."""

    @property
    def rank(self) -> int | list[int]:
        """The number of components, or that of each mode's columns, as records show it."""

    @property
    def norm(self) -> int:
        """Which norm of the model's columns is 1."""

    @property
    def facts(self) -> dict[str, Any]:
        """What records and checkpoints say of what was asked for, by name."""

    @property
    def own_start(self) -> Sequence[NDArray[Any]] | None:
        """Factor matrices that the method has computed to start from; None: it starts where the caller says."""

    def started(self, factors: Sequence[NDArray[Any]], how: str | None) -> Sequence[NDArray[Any]]:
        """Return factor matrices to start from, in host memory, as the operator is to hold them.

        `how`: None if they are random, "nvecs" for eigenvectors, else they were given. Raise `InputError` if the method
        cannot start there.
        """

    def step(self, stop: Callable[[], bool], left: int = 1) -> bool:
        """Compute an iteration, or what is left of it; return False if `stop`, asked between modes, ended it.

        At most `left` iterations are wanted: a method may compute the next one while it waits for this one.
        """

    def change(self) -> float | None:
        """Return by how much the most telling number has changed, with its sign; None if there is no other yet."""

    def settled(self, tol: float) -> bool:
        """Tell whether the last iteration has changed so little that the decomposition has converged."""

    def factor(self, mode: int) -> NDArray[Any]:
        """Return a copy of a factor matrix in host memory, as it belongs to the state."""

    def model(self) -> AnyModel:
        """Return the decomposition in host memory."""


class StopRule(NamedTuple):
    """When a decomposition ends."""

    max_iters: int  # in all, those of an earlier run included
    tol: float  # see `Method.settled`; 0 runs all iterations
    first_limit: float = LOADING_SECONDS  # of a step in the first iteration, before its rank is taken to be hung
    deadline: float | None = None  # the same for all iterations


Observer = Callable[[Method, Spans, float], object]
"""Hears of each iteration, on all ranks: this rank's spans, and the seconds of the whole iteration."""


class Saving(Protocol):
    """Saves the state of a run. Collective."""

    def save(self) -> None:
        """Save the state, or not, after an iteration."""

    def finish(self) -> None:
        """Return when the state is saved."""


def never() -> bool:
    """Return that nobody asks to stop."""
    return False


def run(
    method: Method,
    rule: StopRule,
    observers: Sequence[Observer] = (),
    stop: Callable[[], bool] = never,
    saving: Saving | None = None,
) -> None:
    """Run a method until its rule, or `stop`, ends it. Collective."""
    last = time.perf_counter()
    state, clock = method.state, method.operator.clock
    for _ in paced(iterate(method, rule, stop), state.iterations, rule.first_limit, rule.deadline):
        spans = clock.collect()
        now = time.perf_counter()
        for observe in observers:
            observe(method, spans, now - last)
        last = now
        if stop():
            break
        if saving:
            saving.save()
    if saving:
        saving.finish()


def iterate(method: Method, rule: StopRule, stop: Callable[[], bool] = never) -> Iterator[MethodState]:
    """Yield the state after each iteration. Collective."""
    state = method.state
    state.converged = rule.tol > 0 and method.settled(rule.tol)
    while state.iterations < rule.max_iters and not state.converged:
        if not method.step(stop, rule.max_iters - state.iterations):
            return
        state.converged = rule.tol > 0 and method.settled(rule.tol)
        yield state
