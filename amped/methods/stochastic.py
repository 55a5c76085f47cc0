"""Generalised CP by stochastic gradients: Adam, AdaGrad or SGD, with samples of the elements.

Kolda and Hong, Stochastic gradients for large-scale tensor decomposition, 2020. An iteration is an epoch of many steps.
The objective is estimated from samples that stay the same. If an epoch does not decrease it, the factor matrices and
moments from before the epoch are restored, and the rate is reduced.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import Literal, NamedTuple, get_args

import numpy as np
from numpy.typing import NDArray

from partitioner.validate import real, whole

from ..backend.counter_rng import key_of
from ..backend.device import Array
from ..backend.losses import Loss
from ..backend.ops.lbfgs import Point
from ..backend.ops.sampled import MOMENTS, StepMethod, StepRule, Stratum
from ..errors import InputError, warn
from ..operators.sparse.sampled import SampledOperator
from .constraints import Constraints
from .driver import MethodState
from .gcp import LossMethod
from .updates import DivergedError

SamplingName = Literal["stratified", "semi-stratified", "uniform", "nonzeros"]
SAMPLINGS: tuple[SamplingName, ...] = get_args(SamplingName)
EPOCHS, STEPS = 1000, 1000  # by default
RATES: dict[StepMethod, float] = {"adam": 1e-3, "adagrad": 1e-2, "sgd": 1e-3}  # by default
MOST_SAMPLES = 1 << 31
LEAST_SAMPLES, PASSES = 1000, 3  # by default: nonzeros of a step at least, and passes over them in a step of each epoch
DECAY = 0.1  # factor of the rate after a failed epoch
MOST_FAILED = 1  # failed epochs after the first successful one, until the run ends
MOST_TRIED = 10  # failed epochs before the first successful one, until the run ends
BETWEEN_STOPS = 64  # steps after which a request to stop is noticed
WORD = 32  # bits of the seed in a number of the state


@dataclass(frozen=True)
class Stochastic:
    """Parameters of stochastic gradients.

    Attributes
    ----------
    method : {"adam", "adagrad", "sgd"}
    sampling : {"stratified", "semi-stratified", "uniform", "nonzeros"}
        Which elements of a sparse tensor are sampled; see `SampledOperator.strata`.
    samples : int, optional
        The number of nonzeros per step, and of zeros; see `of_nonzeros`.
    steps : int
        Steps per epoch.
    rate : float, optional
        Size of a step: by default 0.001 for Adam and SGD, 0.01 for AdaGrad.
    seed : int
        Of the samples.
    epochs : int
        At most.
    """

    method: StepMethod = "adam"
    sampling: SamplingName = "stratified"
    samples: int | None = None
    steps: int = STEPS
    rate: float | None = None
    seed: int = 0
    epochs: int = EPOCHS

    def __post_init__(self) -> None:
        if self.sampling not in SAMPLINGS:
            raise InputError(f"sampling is {self.sampling!r}: expected {', '.join(map(repr, SAMPLINGS))}")
        samples = None if self.samples is None else whole("samples", self.samples, 1, MOST_SAMPLES)
        rate = RATES[self.method] if self.rate is None else real("rate", self.rate, "a number above 0", above=True)
        object.__setattr__(self, "samples", samples)
        object.__setattr__(self, "steps", whole("steps", self.steps, 1))
        object.__setattr__(self, "rate", rate)

    @property
    def moments(self) -> int:
        """The number of matrices of moments."""
        return MOMENTS[self.method]

    def of_nonzeros(self, nnz: int) -> int:
        """Return the number of nonzeros that a step samples; by default in all epochs `PASSES` of each nonzero."""
        return self.samples or max(LEAST_SAMPLES, -(-PASSES * nnz // self.epochs))


class _Course(NamedTuple):
    """The part of the state other than moments."""

    seed: int
    samples: int  # of nonzeros per step
    number: int  # of steps in successful epochs
    rate: float
    failed: int  # epochs since the first successful one or, before that, since the start
    improved: bool  # whether an epoch was successful

    @property
    def array(self) -> NDArray[np.float64]:
        """The numbers as an array."""
        low = self.seed % (1 << WORD)
        high = (self.seed >> WORD) % (1 << WORD)
        return np.array([low, high, *self[1:]], np.float64)

    @classmethod
    def of(cls, numbers: NDArray[np.float64]) -> _Course:
        """Return the course from its array."""
        low, high, samples, number, rate, failed, improved = numbers.tolist()
        return cls(int(low) + (int(high) << WORD), int(samples), int(number), rate, int(failed), bool(improved))

    @property
    def ended(self) -> bool:
        """Whether epochs have failed so often that no further one is expected to decrease the objective."""
        return self.failed > MOST_FAILED if self.improved else self.failed >= MOST_TRIED


class StochasticGcp(LossMethod):
    """Stochastic steps over the elements of a sparse tensor. See `LossMethod`.

    The arrays of the state are ``course`` and the moments of each mode, ``moment_0_0``, ... It has two series:

    objective
        The estimated loss plus the penalty after each epoch; after a failed one, that of the restored matrices.
    rate
        The rate in each epoch.

    Parameters
    ----------
    operator : SampledOperator
    loss, constraints, facts
        See `LossMethod`.
    params : Stochastic
    """

    SERIES = "objective", "rate"

    def __init__(
        self,
        operator: SampledOperator,
        loss: Loss,
        constraints: Constraints,
        facts: dict[str, object],
        params: Stochastic,
    ) -> None:
        self.name, self._sampled, self._params = params.method, operator, params
        modes = range(operator.order)
        self._ridge = [weight if m in constraints.solved(operator.order) else 0.0 for m, weight in enumerate(
            constraints.ridge or [0.0] * operator.order
        )]  # fmt: skip
        lower = [0.0 if mode in constraints.nonnegative else -math.inf for mode in modes]
        operator.prepare(lower, self._ridge, [mode not in constraints.fixed for mode in modes])
        self._moments, self._before = operator.moments(), operator.matrix.copy()
        given = {"samples": params.samples} if params.samples else {}
        super().__init__(operator, loss, constraints, {**facts, "steps": params.steps, **given})

    def restart(self, state: MethodState | None = None) -> None:
        """See `Restartable`."""
        if state is None:
            params, operator = self._params, self._sampled
            assert params.rate is not None
            samples = params.of_nonzeros(operator.nnz)
            course = _Course(params.seed, samples, 0, params.rate, 0, False)
            state = MethodState({"course": course.array, **self._stored()}, {name: [] for name in self.SERIES})
            for name in state.arrays.keys() - {"course"}:
                state.arrays[name].fill(0)
        super().restart(state)
        self._running: MethodState | None = None  # whose moments are on the device
        self._warned, self._best = False, math.inf

    @property
    def facts(self) -> dict[str, object]:
        """See `Method`: how elements are sampled, too."""
        return {**super().facts, "sampling": self._params.sampling if self._sampled.zeros else "uniform"}

    def draw_by(self, seed: int) -> None:
        """See `Method`: the samples."""
        self._params = replace(self._params, seed=seed)
        self.state.arrays["course"] = _Course.of(self.state.arrays["course"])._replace(seed=seed).array

    def step(self, stop: Callable[[], bool], left: int = 1) -> bool:
        state, operator = self.state, self._sampled
        if self._running is not state:
            self._resume()
        course = _Course.of(state.arrays["course"])
        self._before[...] = operator.matrix
        strata, epoch = operator.strata(self._params.sampling, course.samples), state.iterations + 1
        for first in range(0, self._params.steps, BETWEEN_STOPS):
            if first and stop():
                self._restore()
                return False
            numbers = range(first, min(first + BETWEEN_STOPS, self._params.steps))
            rule = StepRule(self._params.method, course.rate, course.number + first + 1)
            operator.steps(strata, [key_of(course.seed, epoch, k) for k in numbers], self._moments, rule)
        objective = self._objective(course.seed)
        state.series["rate"].append(course.rate)
        if objective < self._best:
            self._best, number = objective, course.number + self._params.steps
            failed = course.failed if course.improved else 0
            course = course._replace(number=number, improved=True, failed=failed)
            state.arrays.update(self._stored())
        else:
            self._restore()
            course = course._replace(rate=course.rate * DECAY, failed=course.failed + 1)
            self._warn(course)
        state.arrays["course"] = course.array
        state.series["objective"].append(self._best)
        state.iterations += 1
        return True

    def settled(self, tol: float) -> bool:
        """See `Method`: whether the last epoch decreased the objective by less, or further ones would fail."""
        course, change = _Course.of(self.state.arrays["course"]), self.change()
        if course.ended or change is None:
            return course.ended
        succeeded = course.rate == self.state.series["rate"][-1]
        return succeeded and -change < tol

    def _resume(self) -> None:
        """Copy the moments of the state to the device, and evaluate the start of a new run. Collective."""
        state, operator = self.state, self._sampled
        self._set_moments()
        self._running = state
        if state.series["objective"]:
            self._best = state.series["objective"][-1]
            return
        seed = _Course.of(state.arrays["course"]).seed
        if self._scales:
            self._scale(seed, operator.estimate_strata())
        self._best = self._objective(seed)
        if not math.isfinite(self._best):
            raise DivergedError(f"the objective is {self._best} at the start: use another one")

    def _scale(self, seed: int, strata: list[Stratum]) -> None:
        """Scale random matrices to the size of the elements. Collective."""
        operator, start = self._sampled, self._sampled.matrix.copy()
        places = operator.rows_of(operator.matrix), operator.rows_of(start)

        def evaluate(scale: float) -> Point:
            for mode in self._modes:
                places[0][mode][...] = scale ** (1 / len(self._modes)) * places[1][mode]
            value, slope = operator.value(strata, key_of(seed))
            return Point(np.array([scale]), value, np.array([slope]))

        best = self._rescaled(evaluate(1.0), evaluate, lambda point: float(point.gradient[0]))
        evaluate(float(best.x[0]))

    def _objective(self, seed: int) -> float:
        """Estimate the objective. Collective."""
        operator = self._sampled
        value, _ = operator.value(operator.estimate_strata(), key_of(seed))
        for ridge, rows in zip(self._ridge, operator.rows_of(operator.matrix), strict=True):
            if ridge:
                exact = operator.machine.device.to_host(rows).astype(np.float64)
                value += ridge * float(np.vdot(exact, exact))
        return value

    def _restore(self) -> None:
        """Restore the factor matrices and moments from before the epoch."""
        self._sampled.matrix[...] = self._before
        self._set_moments()

    def _names(self) -> list[tuple[str, Array]]:
        """Return the names of the state's arrays of moments, with the rows on the device."""
        every = (self._sampled.rows_of(moments) for moments in self._moments)
        return [(f"moment_{k}_{mode}", part) for k, rows in enumerate(every) for mode, part in enumerate(rows)]

    def _stored(self) -> dict[str, NDArray[np.float64]]:
        """Return copies of the moments in host memory."""
        to_host = self._sampled.machine.device.to_host
        return {name: np.array(to_host(rows), np.float64, order="C") for name, rows in self._names()}

    def _set_moments(self) -> None:
        """Copy the moments of the state to the device."""
        to_device, dtype = self._sampled.machine.device.to_device, self._sampled.options.dtype
        for name, rows in self._names():
            rows[...] = to_device(self.state.arrays[name].astype(dtype))

    def _warn(self, course: _Course) -> None:
        """Warn, once, if no epoch has decreased the objective."""
        if course.ended and not course.improved and not self._warned and self._sampled.machine.comm.rank == 0:
            self._warned = True
            rates = f"from {self._params.rate:g} down to {course.rate / DECAY:.1g}"
            warn(
                f"method {self.name!r}: none of {course.failed} epochs decreased the estimated objective, at rates "
                f"{rates}: use more samples, or another start"
            )
