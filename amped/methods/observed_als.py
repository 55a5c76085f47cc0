"""CP-ALS over observed elements: least squares in which elements that are not stored are unknown, not zero.

Minimises ``sum (x - m)**2 + ridge * sum_n ||U_n||_F**2`` over the stored elements x, where m is the model's value.
Given the other modes' factor matrices, each row of a mode has its own normal equations, which are solved exactly
(Tomasi and Bro, PARAFAC and missing values, 2005, section 3; Zhou, Wilkinson, Schreiber and Pan, Large-scale parallel
collaborative filtering, 2008, for matrices). Columns are not normalised between modes, so that the objective never
increases.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from typing import NamedTuple, Protocol

import numpy as np
from numpy.typing import NDArray

from partitioner.array_types import Floats
from partitioner.tensors.ingest import MAX_ORDER
from partitioner.tensors.value_range import NO_NORM

from ..backend.device import Array
from ..backend.ops.rowproblems import DEFICIENT, LEAST_SQUARES, RESIDUAL, SIZE, RowTerms
from ..backend.ops.solve import SolverBytes
from ..models.kruskal import KruskalTensor
from ..operators.base import Placed, in_turn
from ..operators.sparse.row_solver import RowProblems
from .arranged import arranged
from .captured import CapturedIterations, Keeper
from .constraints import Constraints
from .driver import ConstrainedCp, MethodState
from .extrapolation import QUIET, Extrapolation
from .updates import DivergedError


class ObservedTerms(NamedTuple):
    """Parameters of the observed elements.

    Attributes
    ----------
    total : float
        The sum of their weights.
    scales : (K,) array, optional
        The factor column of an additional last mode that holds weights; see `partitioner.tensors.observed`.
    facts : dict
        How they were chosen, for records and checkpoints.
    """

    total: float
    scales: NDArray[np.float64] | None
    facts: Mapping[str, object]


class Rows(Keeper, Protocol):
    """Solves the rows of an operator's modes. Its methods are collective.

    Attributes
    ----------
    repeats : bool
        Whether it queues the same work each time, without waiting for the device. Equal on all ranks.
    """

    @property
    def repeats(self) -> bool:
        """See the class."""

    def solve(self, mode: int, limits: RowTerms, seen: Array, then: Sequence[int] = ()) -> None:
        """See `operators.sparse.row_solver.RowSolver`."""

    def residual(self, mode: int, squares: float) -> float:
        """Return the sum of squared residuals after the solution of a mode, whose statistics are `squares`."""


class _SolvedModes:
    """Queues iterations. Captured work refers to it, and therefore it does not refer to the method."""

    def __init__(self, operator: Placed, rows: Rows, constraints: Constraints, order: int) -> None:
        self._operator, self._rows, self._constraints, self._order = operator, rows, constraints, order
        self.modes = constraints.solved(order)
        self.statistics = operator.machine.device.zeros((operator.order, LEAST_SQUARES), np.float64)

    def queue(self) -> None:
        """Queue an iteration."""
        self.statistics.fill(0)
        for mode in self.modes:
            self.solve(mode)
        self.finish()

    def solve(self, mode: int) -> None:
        """Queue the solution of a mode."""
        operator = self._operator
        operator.wait_comm()
        then = in_turn(mode, operator.order, self.modes)
        self._rows.solve(mode, self._terms(mode), self.statistics[mode], then)
        operator.publish(mode)

    def finish(self) -> None:
        """Queue the end of an iteration, whose modes are solved."""
        self._operator.reduce(self.statistics.reshape(-1), "sum", self.modes[-1])
        self._operator.wait_comm()

    def _terms(self, mode: int) -> RowTerms:
        constraints = self._constraints
        sweeps = constraints.bounds(self._order).sweeps if mode in constraints.nonnegative else 0
        ridge = constraints.ridge[mode] if constraints.ridge else 0.0
        return RowTerms(ridge, sweeps, mode == self.modes[-1])


class ObservedAls(ConstrainedCp[Placed]):
    """CP-ALS over the observed elements of a tensor; see `Method`.

    The state has one array and three series:

    deficient : (1,)
        Rows without a unique solution in the last iteration, in all modes: they have fewer elements than components.
    fit
        ``1 - sqrt(sum (x - m)**2 / sum x**2)`` after each iteration.
    objective
        The sum of squared residuals plus the penalty, in the units of the squared values.
    rmse
        The (weighted) root mean square of the residuals.

    Parameters
    ----------
    operator : Placed
        Holds the initial factor matrices.
    rows : Rows
        Solves the rows of the operator's modes, for the observed elements.
    constraints : Constraints
        Ridges are added to each row's Gram matrix.
    terms : ObservedTerms
    accelerate : bool
        Whether iterations begin at extrapolated factor matrices. They never increase the objective.
    """

    name = "als"
    own_start = None

    def __init__(
        self,
        operator: Placed,
        rows: Rows,
        constraints: Constraints,
        terms: ObservedTerms,
        accelerate: bool = False,
    ) -> None:
        self.operator, self.constraints, self._terms_of_run = operator, constraints, terms
        self._rows = rows
        self._iterations = _SolvedModes(operator, rows, constraints, self.order)
        self._modes = self._iterations.modes
        if terms.scales is not None:
            operator.set_factor(self.order, np.repeat(terms.scales[:, None], self.rank, axis=1))
        machine, read = operator.machine, self._iterations.statistics.reshape(-1).view(np.uint8)
        self._captured = CapturedIterations(operator, rows, read)
        self._captures = (
            machine.device.queues and rows.repeats and (machine.comm.size == 1 or machine.exchange.overlaps)
        )
        self._warm = False  # whether all code of an iteration is compiled and loaded
        self._fixed_sizes = dict[int, float]()  # sums of squares of fixed factor matrices, on GPUs
        extrapolates = accelerate and len(self._modes) > 1
        self._extrapolation = Extrapolation(operator, self._modes, constraints.nonnegative) if extrapolates else None
        self.quiet = QUIET if extrapolates else 1
        self.restart()

    def restart(self, state: MethodState | None = None) -> None:
        """See `Restartable`."""
        self.state = state or MethodState({"deficient": np.zeros(1)}, {"fit": [], "objective": [], "rmse": []})
        if self._extrapolation:
            self._extrapolation.restart()

    @property
    def order(self) -> int:
        """See `Method`: without the mode of the weights."""
        return self.operator.order - (self._terms_of_run.scales is not None)

    @property
    def facts(self) -> dict[str, object]:
        """See `Method`: the constraints, and which elements are observed."""
        return {**self._terms_of_run.facts, **super().facts}

    def started(self, factors: Sequence[Floats], how: str | None) -> Sequence[Floats]:
        """See `Method`: accepts any matrices that satisfy the constraints."""
        self.constraints.check_start(factors, how)
        return factors

    def step(self, stop: Callable[[], bool], left: int = 1) -> bool:
        if self._extrapolation is None or self.state.mode or not self.state.iterations:
            return self.iterate(stop)
        return self._extrapolation.step(self, stop)

    def reload(self, moved: Sequence[int] = ()) -> None:
        """See `Extrapolated`: the state has nothing that follows from the factor matrices."""

    def column_scales(self, mode: int) -> None:
        """See `Extrapolated`: matrices are stored as they are."""

    def iterate(self, stop: Callable[[], bool], left: int = 1) -> bool:
        """See `step`; without extrapolation."""
        state, first, iterations = self.state, self.state.mode, self._iterations
        if self._captures and self._warm and not first:
            read = self._captured.launch(iterations.queue)
            self._record(read.view(np.float64).reshape(iterations.statistics.shape))
            return True
        if first == 0:
            iterations.statistics.fill(0)
        for mode in (mode for mode in self._modes if mode >= first):
            if mode > first and stop():
                state.mode = mode
                return False
            iterations.solve(mode)
        iterations.finish()
        state.mode, self._warm = 0, self._warm or not first
        self._record(np.array(self.operator.machine.device.to_host(iterations.statistics)))
        return True

    def _record(self, statistics: NDArray[np.float64]) -> None:
        """Record an iteration; `statistics` are those of each mode, see `RESIDUAL`."""
        state = self.state
        squares = self._rows.residual(self._modes[-1], float(statistics[:, RESIDUAL].sum()))
        penalty = self._penalty(statistics[:, SIZE])
        if not np.isfinite(squares + penalty):
            raise DivergedError(f"iteration {state.iterations + 1}: the objective is {squares + penalty}")
        state.arrays["deficient"] = statistics[:, DEFICIENT].sum(keepdims=True)
        state.series["fit"].append(1 - math.sqrt(squares) / (self.operator.norm or NO_NORM))
        state.series["objective"].append(squares + penalty)
        state.series["rmse"].append(math.sqrt(squares / self._terms_of_run.total))
        state.iterations += 1

    def _penalty(self, sizes: NDArray[np.float64]) -> float:
        """Return the sum of each mode's ridge times its matrix's sum of squares.

        `sizes` are those of the solved modes on a GPU, which computes them with the rows.
        """
        penalty, on_host = 0.0, self.operator.machine.device.on_host
        for mode, ridge in enumerate(self.constraints.ridge):
            if not ridge:
                continue
            if not on_host and mode in self._modes:
                penalty += ridge * float(sizes[mode])
            elif on_host:
                penalty += ridge * self._size(mode)
            else:
                if mode not in self._fixed_sizes:
                    self._fixed_sizes[mode] = self._size(mode)
                penalty += ridge * self._fixed_sizes[mode]
        return penalty

    def _size(self, mode: int) -> float:
        """Return the sum of squares of a factor matrix. Collective."""
        rows = np.asarray(self.operator.machine.device.to_host(self.operator.owned(mode)), np.float64)
        size, comm = np.array([np.vdot(rows, rows)]), self.operator.machine.comm
        if comm.size > 1:
            comm.all_reduce(size, "sum")
        return float(size[0])

    def merit(self) -> float:
        """See `Restartable`: the negative objective."""
        objectives = self.state.series["objective"]
        return -objectives[-1] if objectives else -np.inf

    def model(self) -> KruskalTensor:
        """See `Method`: columns have unit norm as defined by the constraints; weights are descending."""
        ones, signed = np.ones((self.order, self.rank)), not self.constraints.nonnegative
        return self._recorded(arranged(self.operator, None, ones[0], ones, self.norm, signed, self.on_device))

    def model_of(self, factors: list[Floats]) -> KruskalTensor:
        """Return the model with these factor matrices, which are changed in place."""
        result = self._recorded(KruskalTensor(np.ones(self.rank), factors).arrange(norm=self.norm))
        return result if self.constraints.nonnegative else result.signed()

    def _recorded(self, model: KruskalTensor) -> KruskalTensor:
        """Set the history of a model."""
        series = self.state.series
        model.fits, model.converged = tuple(series["fit"]), self.state.converged
        model.series = {name: tuple(numbers) for name, numbers in series.items() if name != "fit"}
        return model


PROBLEMS = RowProblems("als")


def solving_bytes(rows: int, rank: int) -> SolverBytes:
    """Return the device memory that this method needs in addition to row problems."""
    return SolverBytes(8 * LEAST_SQUARES * MAX_ORDER)
