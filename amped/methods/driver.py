"""The driver loop of all methods: iterate, observe, save, stop.

A method provides a step, a state of named arrays and numbers, and a model.
"""

from __future__ import annotations

import math
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from types import MappingProxyType
from typing import ClassVar, Generic, NamedTuple, Protocol, TypeVar

import numpy as np
from numpy.typing import NDArray

from partitioner.array_types import Floats

from ..models.history import AnyModel
from ..operators.base import Placed
from ..parallel.progress import LOADING_SECONDS
from ..parallel.step_timeout import paced
from .constraints import Constraints
from .stopping import expected_gain

HELD_OUT = {"holdout_rmse": "RMSE", "holdout_deviance": "deviance"}
"""Names of series of errors on held-out elements, of which a method has at most one, and what they measure."""
LEAST_DECREASE = 1e-4  # relative decrease of that error that counts as an improvement

Spans = dict[tuple[str, int], float]
"""Seconds of this rank by kind of work and mode; see `Clock.collect`."""


@dataclass
class MethodState:
    """State of a decomposition: together with the factor matrices, all that is needed to continue it."""

    collective: ClassVar[bool] = False  # whether `copy` is
    arrays: dict[str, NDArray[np.float64]]  # data that the method keeps between modes
    series: dict[str, list[float]]  # one number per iteration; the measure of convergence comes first
    iterations: int = 0  # complete ones
    mode: int = 0  # number of modes already solved in the next iteration
    converged: bool = False

    def copy(self) -> MethodState:
        """Return an independent copy."""
        arrays = {name: array.copy() for name, array in self.arrays.items()}
        series = {name: list(numbers) for name, numbers in self.series.items()}
        return MethodState(arrays, series, self.iterations, self.mode, self.converged)


class Method(Protocol):
    """A decomposition that improves the factor matrices of an operator. All methods are collective."""

    name: str
    state: MethodState  # new, or that of an earlier run whose factor matrices the operator holds
    on_device: bool  # whether `model` may leave factor matrices in device memory

    @property
    def operator(self) -> Placed:
        """The holder of the factor matrices, which may already be those of the next iteration."""

    @property
    def order(self) -> int:
        """The number of modes of the model. An operator of weighted elements has one more."""

    @property
    def rank(self) -> int | list[int]:
        """The number of components, or the number of columns per mode, as shown in records."""

    @property
    def norm(self) -> int:
        """The p of the p-norm by which the model's columns are normalised."""

    @property
    def facts(self) -> dict[str, object]:
        """Parameters of the method to store in records and checkpoints, by name."""

    @property
    def own_start(self) -> Sequence[Floats] | None:
        """Initial factor matrices that the method computed itself; None if the caller provides them."""

    @property
    def unread_start(self) -> Sequence[int]:
        """Modes whose initial factor matrices are replaced before anything reads them."""

    def started(self, factors: Sequence[Floats], how: str | None) -> Sequence[Floats]:
        """Return the initial factor matrices, in host memory, in the form that the operator holds.

        `how` is None for random matrices, "nvecs" for eigenvectors, and any other string for matrices of the caller.
        Raise `InputError` if the method cannot start from them.
        """

    @property
    def draws(self) -> bool:
        """Whether it can begin with random matrices of [0, 1) that were drawn in device memory; see `drawn`."""

    def drawn(self) -> None:
        """Bring random matrices in device memory into the form that the method needs. Called instead of `started`."""

    def draw_by(self, seed: int) -> None:
        """Use a seed for what is drawn at random during a run that begins."""

    def step(self, stop: Callable[[], bool], left: int = 1) -> bool:
        """Compute an iteration, or the rest of one; return False if `stop`, called between modes, ended it.

        At most `left` iterations remain; a method may compute the next one while it waits for this one.
        """

    def change(self) -> float | None:
        """Return the last change of the measure of convergence, with its sign; None before the second iteration."""

    @property
    def quiet(self) -> int:
        """How many iterations in a row must each change the measure little for the run to end."""

    def settled(self, tol: float) -> bool:
        """Return whether the last `quiet` iterations changed so little that the decomposition has converged."""

    def factor(self, mode: int) -> Floats:
        """Return a copy, in host memory, of the factor matrix that belongs to the state."""

    def model(self) -> AnyModel:
        """Return the decomposition, in host memory unless `on_device`."""


P = TypeVar("P", bound=Placed)


class BaseMethod(Generic[P]):
    """Defaults of `Method`: the operator's modes are those of the model, and a series measures convergence."""

    measure = "fit"
    quiet = 1
    on_device = False
    operator: P
    state: MethodState
    unread_start: Sequence[int] = ()
    draws = False

    @property
    def order(self) -> int:
        """See `Method`."""
        return self.operator.order

    def change(self) -> float | None:
        """See `Method`: the change of the series `measure`."""
        numbers = self.state.series[self.measure]
        return numbers[-1] - numbers[-2] if len(numbers) > 1 else None

    def settled(self, tol: float) -> bool:
        """See `Method`: whether the measure changed by less than `tol`, in each of the last `quiet` iterations."""
        if self.quiet > 1:
            numbers = self.state.series[self.measure][-self.quiet - 1 :]
            return len(numbers) > self.quiet and bool((np.abs(np.diff(numbers)) < tol).all())
        change = self.change()
        return change is not None and abs(change) < tol

    def drawn(self) -> None:
        """See `Method`: any matrices will do."""

    def draw_by(self, seed: int) -> None:
        """See `Method`: nothing is drawn."""

    def factor(self, mode: int) -> Floats:
        """See `Method`."""
        return self.operator.factor(mode)


class ConstrainedCp(BaseMethod[P]):
    """The part of `Method` that CP decompositions under constraints share.

    Attributes
    ----------
    constraints : Constraints
    used : mapping of int to int32 array
        By mode, the indices with elements, ascending: rows of others start at zero, which is best for them.
    """

    constraints: Constraints
    used: Mapping[int, NDArray[np.int32]] = MappingProxyType({})

    def without_unused(self, mode: int, factor: Floats) -> Floats:
        """Return an initial factor matrix whose rows of unused indices are zero."""
        used = self.used.get(mode)
        if used is None or used.size == len(factor):
            return factor
        result = np.zeros_like(factor)
        result[used] = factor[used]
        return result

    @property
    def rank(self) -> int:
        """See `Method`."""
        return self.operator.ranks[0]

    @property
    def norm(self) -> int:
        """See `Method`."""
        return self.constraints.norm

    @property
    def facts(self) -> dict[str, object]:
        """See `Method`: the constraints."""
        return self.constraints.facts


class StopRule(NamedTuple):
    """Conditions that end a decomposition."""

    max_iters: int  # in total, including those of an earlier run
    tol: float  # see `Method.settled`; 0 runs all iterations
    first_limit: float = LOADING_SECONDS  # seconds without progress in the first iteration before the job is aborted
    deadline: float | None = None  # the same limit for all iterations
    patience: int | None = None  # iterations without improvement on held-out elements
    forecast: bool = False  # whether `tol` limits the expected gain of the measure of convergence


Observer = Callable[[Method, Spans, float], object]
"""Called after each iteration on all ranks, with this rank's spans and the seconds of the whole iteration."""


class Saving(Protocol):
    """Saves the state of a run. Collective."""

    def save(self) -> None:
        """Called after each iteration: save the state if it is due."""

    def finish(self) -> None:
        """Wait until the last state is saved."""


def never() -> bool:
    """Return False: the `stop` of a run that is never stopped."""
    return False


def run(
    method: Method,
    rule: StopRule,
    observers: Sequence[Observer] = (),
    stop: Callable[[], bool] = never,
    saving: Saving | None = None,
) -> None:
    """Run a method until its rule or `stop` ends it. Collective."""
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
    state.converged = _is_done(method, rule)
    while state.iterations < rule.max_iters and not state.converged:
        if not method.step(stop, rule.max_iters - state.iterations):
            return
        state.converged = _is_done(method, rule)
        yield state


def _is_done(method: Method, rule: StopRule) -> bool:
    if rule.forecast:
        settled = expected_gain(next(iter(method.state.series.values()))) < rule.tol
    else:
        settled = rule.tol > 0 and method.settled(rule.tol)
    return settled or is_stale(method.state, rule.patience)


def held_out_errors(state: MethodState) -> list[float]:
    """Return the error on held-out elements after each iteration; empty if there are none."""
    return next((state.series[name] for name in HELD_OUT if name in state.series), [])


def held_out_measure(state: MethodState) -> str:
    """Return what `held_out_errors` are."""
    return next((measure for name, measure in HELD_OUT.items() if name in state.series), "")


def is_stale(state: MethodState, patience: int | None) -> bool:
    """Return whether the error on held-out elements has not decreased by `LEAST_DECREASE` in `patience` iterations."""
    if patience is None:
        return False
    least, since = math.inf, 0
    for error in held_out_errors(state):
        since += 1
        if error < least * (1 - LEAST_DECREASE):
            least, since = error, 0
    return since >= patience


def best_iteration(state: MethodState) -> int | None:
    """Return the iteration, from 1, with the lowest error on held-out elements, if there are any."""
    errors = held_out_errors(state)
    return errors.index(min(errors)) + 1 if errors else None
