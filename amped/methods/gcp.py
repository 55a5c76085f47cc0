"""Generalised CP: minimises any loss of the model's values; by L-BFGS-B with the full gradient, see `Gcp`.

Minimises ``sum f(x, m) + sum_n ridge_n * ||U_n||_F**2`` over the elements x that count, where m is the model's value
(Hong, Kolda and Duersch, Generalized canonical polyadic tensor decomposition, 2020).
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Sequence
from itertools import pairwise
from typing import Any, ClassVar, get_args

import numpy as np
from numpy.typing import NDArray

from partitioner.array_types import Floats
from partitioner.host.threads import fair_threads

from ..backend.device import Array, Device
from ..backend.known_losses import KNOWN
from ..backend.losses import Loss
from ..backend.ops.columns import COLUMNS, ColumnsProvider
from ..backend.ops.lbfgs import LBFGS, Matrix, Point, Vector
from ..backend.ops.sampled import StepMethod
from ..errors import warn
from ..models.kruskal import KruskalTensor
from ..operators.base import Gradient, Placed
from .arranged import arranged
from .constraints import Constraints
from .driver import ConstrainedCp, MethodState
from .host_vectors import HostVectors
from .quasi_newton import QuasiNewton, matched, scaled
from .updates import DivergedError

MAX_ITERS, TOL = 1000, 1e-9  # by default
STOCHASTIC, STOCHASTIC_TOL = get_args(StepMethod), 1e-5  # methods that estimate gradients, and their default tolerance
GENERAL: tuple[str, ...] = "lbfgs", "newton", *STOCHASTIC
"""The methods of any loss."""


def tolerance_of(method: str) -> float:
    """Return the default tolerance of a method of any loss."""
    return STOCHASTIC_TOL if method in STOCHASTIC else TOL


def _formulas(loss: Loss) -> dict[str, Any]:
    """Return the formulas of a loss that its name does not determine, for records and checkpoints."""
    if loss.name.partition(":")[0] in KNOWN:
        return {}
    return {"formulas": loss.formulas or {name: repr(getattr(loss, name)) for name in ("value", "first")}}


def prepare(device: Device) -> None:
    """Start compiling the code that L-BFGS needs in addition to gradients; return immediately."""
    if (provider := LBFGS.first(device)) is not None:
        provider.prepare()


class LossMethod(ConstrainedCp[Placed], ABC):
    """Base class of methods for any loss; see `Method`.

    Parameters
    ----------
    operator : Placed
        Holds the initial factor matrices.
    loss : Loss
    constraints : Constraints
        Those of a loss with non-negative models include all modes. Ridges are penalties.
    facts : dict
        Which elements count, for records and checkpoints.
    """

    name: str
    starts_at_zero = False  # if all elements are zero, and so is the best model
    measure = "objective"
    own_start = None
    SERIES: ClassVar[tuple[str, ...]]

    def __init__(self, operator: Placed, loss: Loss, constraints: Constraints, facts: dict[str, object]) -> None:
        self.operator, self._loss, self.constraints, self._facts = operator, loss, constraints, facts
        self._modes = constraints.solved(self.order)
        self._scales = False
        self.restart()

    def restart(self, state: MethodState | None = None) -> None:
        """See `Restartable`."""
        self.state = state or MethodState({}, {name: [] for name in self.SERIES})
        self._stalled = False

    @property
    def facts(self) -> dict[str, object]:
        """See `Method`: the loss, the constraints, and which elements count."""
        return {"loss": self._loss.name, **_formulas(self._loss), **self._facts, **super().facts}

    def started(self, factors: Sequence[Floats], how: str | None) -> Sequence[Floats]:
        """See `Method`: accepts any matrices that satisfy the constraints; the first step may scale random ones."""
        self.constraints.check_start(factors, how)
        factors = [self.without_unused(mode, factor) for mode, factor in enumerate(factors)]
        scalable = self._loss.nonnegative or self._loss.keeps_unit
        self._scales = how is None and scalable and not self.starts_at_zero
        if self.starts_at_zero:
            return [np.zeros_like(factor) if mode in self._modes else factor for mode, factor in enumerate(factors)]
        return factors

    def _rescaled(self, start: Point, evaluate: Callable[[float], Point], slope_of: Callable[[Point], float]) -> Point:
        """Return a point at a scale that suits the elements; see `scaled`."""
        return scaled(start, evaluate, slope_of) if self._loss.nonnegative else matched(start, evaluate)

    @abstractmethod
    def step(self, stop: Callable[[], bool], left: int = 1) -> bool:
        """See `Method`."""

    def change(self) -> float | None:
        """See `Method`: the relative change of the objective."""
        objectives = self.state.series["objective"]
        if len(objectives) < 2:
            return None
        return (objectives[-1] - objectives[-2]) / max(abs(objectives[-1]), abs(objectives[-2]), 1e-300)

    def settled(self, tol: float) -> bool:
        """See `Method`: whether the objective changed by less than this part of it, or cannot be decreased."""
        change = self.change()
        return self._stalled or (change is not None and abs(change) < tol)

    def merit(self) -> float:
        """See `Restartable`: the negative objective."""
        objectives = self.state.series["objective"]
        return -objectives[-1] if objectives else -np.inf

    def model(self) -> KruskalTensor:
        """See `Method`: columns have unit norm; weights descend."""
        ones, signed = np.ones((self.order, self.rank)), not self.constraints.nonnegative
        return self._recorded(arranged(self.operator, None, ones[0], ones, self.norm, signed, self.on_device))

    def model_of(self, factors: list[Floats]) -> KruskalTensor:
        """Return the model with these factor matrices, which are changed in place."""
        model = self._recorded(KruskalTensor(np.ones(self.rank), factors).arrange(norm=self.norm))
        return model if self.constraints.nonnegative else model.signed()

    def _recorded(self, model: KruskalTensor) -> KruskalTensor:
        """Set the history of a model."""
        model.series = {name: tuple(numbers) for name, numbers in self.state.series.items()}
        model.converged = self.state.converged
        return model

    def _set_rows(self, mode: int, rows: Array) -> None:
        """Set the rows of a factor matrix that this rank owns, on all ranks, from any memory. Collective."""
        owned, device = self.operator.owned(mode), self.operator.machine.device
        if isinstance(rows, np.ndarray) and not device.on_host:
            rows = device.to_device(rows.astype(owned.dtype))
        owned[...] = rows
        self.operator.publish(mode)

    def _rows(self, mode: int) -> NDArray[np.float64]:
        """Return the rows of a factor matrix that this rank owns."""
        return np.array(self.operator.machine.device.to_host(self.operator.owned(mode)), np.float64)


class Gcp(LossMethod):
    """L-BFGS-B with the full gradient.

    The state has no arrays: a resumed run collects the curvature of the objective again. It has three series:

    objective
        The loss plus the penalty after each iteration.
    gradient
        The largest magnitude of an entry of the gradient that may change.
    evaluations
        How often the objective was evaluated in each iteration.
    """

    name = "lbfgs"
    SERIES = "objective", "gradient", "evaluations"

    def __init__(self, gradient: Gradient, loss: Loss, constraints: Constraints, facts: dict[str, object]) -> None:
        operator = gradient.operator
        self._device = device = operator.machine.device
        # Whether vectors of L-BFGS are in the memory of the device.
        self._on_device = device.on_host or operator.plan.vectors_on_device
        modes = constraints.solved(operator.order)
        shapes = [operator.owned(mode).shape for mode in modes]
        bounds = np.cumsum([0, *(rows * columns for rows, columns in shapes)])
        self._gradient, self._places = gradient, [slice(begin, end) for begin, end in pairwise(bounds.tolist())]
        lower = np.full(bounds[-1], -np.inf)
        for mode, place in zip(modes, self._places, strict=True):
            if mode in constraints.nonnegative:
                lower[place] = 0.0
        self._columns: ColumnsProvider | None = None
        if self._on_device and not device.on_host:
            vectors, self._columns = LBFGS.require(device).make(lower), COLUMNS.require(device)
        else:
            vectors = HostVectors(lower, device.cores if device.on_host else fair_threads(operator.machine.comm))
        self._xp = device.xp if self._on_device else np
        self._steps = QuasiNewton(operator.machine.comm, vectors)
        super().__init__(operator, loss, constraints, facts)

    def restart(self, state: MethodState | None = None) -> None:
        """See `Restartable`."""
        super().restart(state)
        self._point: Point | None = None
        self._steps.forget()

    def step(self, stop: Callable[[], bool], left: int = 1) -> bool:
        if self._stalled and self._point is not None:  # without a tolerance the run goes on
            self._record(0)
            return True
        point = self._point or self._first_point()
        if not np.isfinite(point.value):
            raise DivergedError(f"the objective is {point.value} at the start: use another one")
        step = self._steps.search(point, self._evaluate)
        if step.point is None and step.evaluations:
            self._steps.forget()  # curvature that misleads
            step = self._steps.search(point, self._evaluate)
        self._stalled = step.point is None
        if self._stalled and step.evaluations and not self.state.iterations and self.operator.machine.comm.rank == 0:
            warn("no step from the start decreases the objective: use a start whose model is as large as the elements")
        self._point = step.point or self._evaluate(point.x)  # the operator holds the last trial
        self._record(step.evaluations)
        return True

    def _record(self, evaluations: int) -> None:
        state, point = self.state, self._point
        assert point is not None
        state.series["objective"].append(point.value)
        state.series["gradient"].append(self._steps.largest(point))
        state.series["evaluations"].append(float(evaluations))
        state.iterations += 1

    def _first_point(self) -> Point:
        """Evaluate the initial factor matrices, after scaling random ones to the size of the elements."""
        current = self._current()
        start, place = self._evaluate(current if self.state.iterations else self._balanced(current)), self._places[0]
        if not self._scales or self.state.iterations or not np.isfinite(start.value):
            return start

        def evaluate(scale: float) -> Point:
            return self._evaluate(scale ** (1 / len(self._modes)) * start.x)

        return self._rescaled(start, evaluate, lambda point: self._steps.dot(point.x[place], point.gradient[place]))

    def _balanced(self, x: Vector) -> Vector:
        """Return factor matrices of the same model in which the columns of a component have equal norms.

        The gradient of a mode is proportional to the norms of the others: with equal norms, modes of different lengths
        have similar curvature. On a tensor of 5 x 201 x 61 with gaps this saved 15 to 51 % of the evaluations.
        """
        parts = [x[place].reshape(-1, self.rank) for place in self._places]
        squares = self._steps.summed(np.array([self._squares(part) for part in parts]))
        regular = np.all((squares > 0) & np.isfinite(squares), axis=0)  # others, such as zero, stay as they are
        logarithms = np.log(squares, out=np.zeros_like(squares), where=regular) / 2
        scales = np.exp(logarithms.mean(axis=0) - logarithms)
        scaled = [part * self._xp.asarray(scale) for part, scale in zip(parts, scales, strict=True)]
        return self._joined(scaled)

    def _squares(self, rows: Matrix) -> Vector:
        """Return the sums of squares of columns in host memory."""
        return (rows * rows).sum(axis=0) if self._columns is None else self._columns.sums(rows).squares

    def _current(self) -> Vector:
        """Return this rank's rows of the factor matrices."""
        rows = (self._placed(self.operator.owned(mode)) for mode in self._modes)
        return self._joined([each.astype(np.float64) for each in rows])

    def _joined(self, matrices: Sequence[Matrix]) -> Vector:
        """Return a vector of the numbers of matrices, row by row."""
        joined: Vector = self._xp.concatenate([matrix.reshape(-1) for matrix in matrices])
        return joined

    def _placed(self, array: Array) -> Array:
        """Return a device array where vectors are."""
        return array if self._on_device else self._device.to_host(array)

    def _evaluate(self, x: Vector) -> Point:
        """Set the factor matrices and evaluate the objective there. Collective."""
        operator = self.operator
        for mode, place in zip(self._modes, self._places, strict=True):
            self._set_rows(mode, x[place].reshape(-1, self.rank))
        operator.wait_comm()
        found = self._gradient.evaluate()
        return self._with_penalty(Point(x, found.value, self._placed(found.joined(self._modes, self._device.xp))))

    def _with_penalty(self, point: Point) -> Point:
        """Add the ridge to an objective and its gradient."""
        ridge = self.constraints.ridge
        if not any(ridge):
            return point
        weights = self._xp.zeros(point.x.size)
        for mode, place in zip(self._modes, self._places, strict=True):
            weights[place] = ridge[mode]
        weighted = weights * point.x
        value = point.value + self._steps.dot(weighted, point.x)
        return Point(point.x, value, point.gradient + 2 * weighted)
