"""CP-ALS under constraints with proximal operators: AO-ADMM.

Minimises ``|X - M|_F**2 / 2`` plus the penalties of all modes, one mode after the other, each by ADMM with the MTTKRP
and the Gram matrices of CP-ALS (Huang, Sidiropoulos and Liavas, A flexible and efficient algorithmic framework for
constrained matrix and tensor factorization, 2016). Columns are not normalised between modes: M is the sum of the
products of the columns as they were solved. No solve increases the objective.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from functools import reduce
from typing import ClassVar

import numpy as np
from numpy.typing import NDArray

from partitioner.array_types import Floats

from ..backend.device import Array, Device
from ..backend.ops.row_admm import ROW_ADMM
from ..backend.ops.solve import SolverBytes
from ..models.kruskal import KruskalTensor
from ..operators.base import Operator, in_turn
from ..operators.kept_rows import Compaction, ZeroOfEmpty
from ..operators.placement import Solving
from .constraints import Constraints
from .driver import ConstrainedCp, MethodState
from .proximal.admm import Constrained, ModeSolver, Solution, Storage
from .proximal.arrays import Arrays
from .proximal.equations import RowEquations, SharedGram
from .proximal.operators import Proximal
from .proximal.row_by_row import DeviceIterations, OwnRows, make_row_by_row
from .proximal.shared import SharedColumns, SharedRows
from .proximal.terms import ModeTerms
from .updates import DivergedError, gains, gram_of

Matrix = NDArray[np.float64]

NEAR = 0.99  # fit from which MTTKRPs use double precision, because their rounding errors are a part of the residual
ARRAYS = 6  # of the rows of a mode that ADMM holds at a time
STACKS = 13  # more, for unimodal regression on a GPU
ISOTONIC = "unimodal", "monotone"  # shapes for which a CPU loads scipy.optimize
OPTIMIZE_BYTES = 24 << 20  # host memory that it takes


@dataclass
class DualState(MethodState):
    """The state of a run, some of whose arrays are elsewhere: `collect` copies them here. Collective."""

    collective: ClassVar[bool] = True
    collect: Callable[[], None] = field(default=lambda: None, repr=False, compare=False)

    def copy(self) -> MethodState:
        """See `MethodState`; collective."""
        self.collect()
        return super().copy()


class ConstrainedAls(ConstrainedCp[Operator]):
    """CP-ALS by AO-ADMM; see `Method`.

    The state has an array per constrained mode, and two series:

    dual_0, dual_1, ... : (K, I_n, R)
        The dual variables of the mode's K proximal operators.
    fit
        ``1 - ||X - M|| / ||X||`` after each iteration.
    objective
        ``||X - M||**2 / 2`` plus the penalties.

    Each rank solves the rows that it owns. Constraints that relate rows are applied on rank 0.

    Parameters
    ----------
    operator : Operator
        Holds the initial factor matrices.
    constraints : Constraints
    """

    name = "als"
    own_start = None
    SERIES: tuple[str, ...] = "fit", "objective"

    def __init__(self, operator: Operator, constraints: Constraints) -> None:
        self.operator, self.constraints = operator, constraints
        shape = operator.shape[: self.order]
        constraints.check_sizes(shape, self.rank)
        self._arrays = Arrays.of(operator.machine.device)
        self._modes = constraints.solved(self.order)
        terms = dict(constraints.terms)
        self._proximal = {mode: self._whole(mode, terms.get(mode, ModeTerms())) for mode in self._modes}
        self._rows = {mode: SharedRows(operator.machine, operator.plan.modes[mode].cut.rows) for mode in self._modes}
        storage = Storage(self._arrays, self._rounded, self._total)
        self._solvers = {mode: ModeSolver(self._constrained(mode), storage) for mode in self._modes}
        self._duals = dict[int, Array]()  # by mode, of all rows; those of other ranks may be old
        self.restart()
        self._row_by_row = self._make_row_by_row()

    def _whole(self, mode: int, terms: ModeTerms, rows: slice = slice(None)) -> Proximal:
        """Return the proximal operators of all or some rows of a mode."""
        fixed = None
        if terms.fixed is not None:
            fixed = self._arrays.xp.asarray(terms.fixed.of(mode, self.operator.shape[mode], self.rank)[rows])
        return Proximal(terms, self._arrays, fixed)

    def _constrained(self, mode: int) -> Constrained:
        """Return the constraints of the rows that this rank owns."""
        whole = self._proximal[mode]
        if self.operator.machine.comm.size == 1:
            return whole
        if whole.terms.columnwise:
            return SharedColumns(whole, self._rows[mode])
        return self._whole(mode, whole.terms, self._rows[mode].mine)

    def _make_row_by_row(self) -> DeviceIterations | None:
        """Return the iterations of a device that solves all modes row by row. Collective."""
        places = dict[int, OwnRows]()
        for mode, each in self._proximal.items():
            mine, dual = self._rows[mode].mine, self._duals.get(mode)
            fixed = None if each.fixed is None else self._arrays.xp.ascontiguousarray(each.fixed[mine])
            places[mode] = OwnRows(None if dual is None else dual[0, mine], fixed)
        return make_row_by_row(self.operator, {mode: each.terms for mode, each in self._proximal.items()}, places)

    def restart(self, state: MethodState | None = None) -> None:
        """See `Restartable`."""
        self.state = state or MethodState(self._new_duals(), {name: [] for name in self.SERIES})

    @property
    def state(self) -> MethodState:
        """See `Method`. Copies contain all duals, which are on the device otherwise."""
        return self._state

    @state.setter
    def state(self, state: MethodState) -> None:
        series, at = state.series, (state.iterations, state.mode, state.converged)
        self._state = DualState(state.arrays, series, *at, collect=self._collect)
        for mode, name in self._names.items():
            new = self.operator.machine.device.to_device(
                self._by_parts(self.operator.compact, mode, state.arrays[name])
            )
            if mode in self._duals:  # captured work refers to them
                self._duals[mode][...] = new
            else:
                self._duals[mode] = new
        self._grams: list[Matrix] | None = None  # of this state
        self._on_device = False  # whether `_row_by_row` has this state
        self._penalties: dict[int, float] | None = None

    @property
    def _names(self) -> dict[int, str]:
        """The names of the arrays of duals, by mode."""
        return {mode: f"dual_{mode}" for mode, each in self._proximal.items() if each.blocks}

    def _new_duals(self) -> dict[str, Matrix]:
        shape, proximal = self.operator.lengths, self._proximal
        return {
            name: np.zeros((len(proximal[mode].blocks), shape[mode], self.rank)) for mode, name in self._names.items()
        }

    def _collect(self) -> None:
        """Copy the duals of all ranks to the state. Collective."""
        for mode, name in self._names.items():
            if self.operator.machine.comm.size > 1:
                for part in self._duals[mode]:
                    self._rows[mode].gather(part)
            duals = np.asarray(self.operator.machine.device.to_host(self._duals[mode]))
            self.state.arrays[name] = self._by_parts(self.operator.expand, mode, duals)

    def _by_parts(self, change: Callable[[int, Floats], Floats], mode: int, duals: Matrix) -> Matrix:
        """Return the duals of a mode with the rows that `change` returns."""
        if self.operator.shape[mode] == self.operator.lengths[mode]:
            return duals
        return np.array([change(mode, part) for part in duals], np.float64)

    def started(self, factors: Sequence[Floats], how: str | None) -> Sequence[Floats]:
        """See `Method`: replaces matrices by the closest ones that meet the constraints."""
        self.constraints.check_start(factors, how)
        factors = [self.without_unused(mode, factor) for mode, factor in enumerate(factors)]
        result, device = list(factors), self.operator.machine.device
        for mode, each in self._proximal.items():
            matrix = device.to_device(np.array(factors[mode], np.float64))
            result[mode] = device.to_host(each.projected(matrix)).astype(factors[mode].dtype)
        return result

    def step(self, stop: Callable[[], bool], left: int = 1) -> bool:
        state = self.state
        if self._penalties is None:
            self._load()
        if self._row_by_row is not None and not state.mode:
            self._record(self._iterate(self._row_by_row))
            return True
        solution = Solution(np.empty(0), np.empty(0), 0.0, 0.0)
        for mode in [mode for mode in self._modes if mode >= state.mode]:
            if mode > state.mode and stop():
                state.mode = mode
                return False
            solution = self._solve(mode)
        state.mode = 0
        self._record(solution.data)
        return True

    def _iterate(self, row_by_row: DeviceIterations) -> float:
        """Compute an iteration row by row; return what `_record` takes. Collective."""
        assert self._penalties is not None
        if not self._on_device:
            row_by_row.load([self._gram(mode) for mode in range(self.order)])
            self._on_device, self._grams = True, None
        numbers = row_by_row.iteration(self._in_double)
        self._penalties.update({mode: float(numbers[mode, 1]) for mode in self._modes})
        return float(numbers[self._modes[-1], 0])

    @property
    def _in_double(self) -> bool:
        """Whether MTTKRPs compute in double precision."""
        fits = self.state.series["fit"]
        return gains(self.operator.options) and bool(fits) and fits[-1] > NEAR

    def _record(self, data: float) -> None:
        """Record an iteration; `data`: see `Solution`."""
        state, norm = self.state, self.operator.norm
        assert self._penalties is not None
        squares = max(0.0, norm**2 + 2 * data)
        objective = squares / 2 + sum(self._penalties.values())
        if not np.isfinite(objective):
            raise DivergedError(f"iteration {state.iterations + 1}: the objective is {objective}")
        state.series["fit"].append(1 - math.sqrt(squares) / norm if norm else 1.0)
        state.series["objective"].append(objective)
        state.iterations += 1

    def _solve(self, mode: int) -> Solution:
        """Solve the rows of a mode that this rank owns. Collective."""
        operator, dual, penalties = self.operator, self._duals.get(mode), self._penalties
        assert penalties is not None
        equations, mine = self._equations(mode), self._rows[mode].mine
        with operator.span("solve", mode):
            owned = operator.owned(mode)
            start = self._arrays.xp.array(owned, np.float64, order="C")
            before = self._arrays.xp.empty((0, *start.shape)) if dual is None else dual[:, mine]
            found = self._solvers[mode].solve(equations, start, before)
            owned[...] = found.rows
            if dual is not None and found.dual is not before:
                dual[:, mine] = found.dual
        penalties[mode] = found.penalty
        if not math.isfinite(found.value):
            raise DivergedError(f"iteration {self.state.iterations + 1}, mode {mode}: the equations are not finite")
        operator.publish(mode)
        operator.wait_comm()
        self._solved(mode)
        return found

    def _equations(self, mode: int) -> RowEquations:
        """Return the equations of the rows of a mode that this rank owns. Collective."""
        operator, self._on_device = self.operator, False
        if self._grams is None:
            self._grams = [self._gram(m) for m in range(self.order)]
        source = operator.mttkrp(mode, None, in_turn(mode, operator.order, self._modes), self._in_double)
        gram = reduce(np.multiply, [each for m, each in enumerate(self._grams) if m != mode])
        if not math.isfinite(gram.sum()) or (self._arrays.on_host and not math.isfinite(source.sum())):
            raise DivergedError(f"iteration {self.state.iterations + 1}, mode {mode}: the equations are not finite")
        return SharedGram(self._arrays.xp.ascontiguousarray(source, np.float64), gram, self._arrays.xp)

    def _solved(self, mode: int) -> None:
        """Update what follows from the factor matrix of a mode. Collective."""
        assert self._grams is not None
        self._grams[mode] = self._gram(mode)

    def _rounded(self, rows: Array) -> Array:
        """Return rows with the precision of the factor matrices."""
        return rows.astype(self.operator.options.dtype).astype(np.float64)

    def _total(self, numbers: Array) -> Matrix:
        """Return the sum of numbers over the ranks. Collective."""
        machine = self.operator.machine
        result: Matrix = np.asarray(machine.device.to_host(numbers), np.float64)
        if machine.comm.size > 1:
            machine.comm.all_reduce(result, "sum")
        return result

    def _gram(self, mode: int) -> Matrix:
        """Return the Gram matrix of a factor matrix. Collective."""
        result = gram_of(self.operator, mode)
        if self.operator.machine.comm.size > 1:
            self.operator.machine.comm.all_reduce(result, "sum")
        return result

    def _load(self) -> None:
        """Compute the penalties of the operator's factor matrices."""
        device = self.operator.machine.device
        self._penalties = {
            mode: float(each.penalty(device.to_device(np.array(self.operator.factor(mode), np.float64, order="C"))))
            for mode, each in self._proximal.items()
        }

    def change(self) -> float | None:
        """See `Method`: the change of the fit, in which half the squared distance includes the penalties."""
        objectives, norm = self.state.series["objective"], self.operator.norm
        if len(objectives) < 2 or not norm:
            return None if len(objectives) < 2 else 0.0
        before, after = (math.sqrt(2 * max(0.0, each)) / norm for each in objectives[-2:])
        return before - after

    def merit(self) -> float:
        """See `Restartable`: the negative objective."""
        objectives = self.state.series["objective"]
        return -objectives[-1] if objectives else -np.inf

    def model(self) -> KruskalTensor:
        """See `Method`: columns have unit norm, except in modes whose constraints that would violate."""
        return self.model_of([self.factor(mode) for mode in range(self.order)])

    def model_of(self, factors: list[Floats]) -> KruskalTensor:
        """Return the model with these factor matrices, which are changed in place.

        Components are sorted by weight, unless elements are fixed, whose columns the caller knows by number.
        """
        state = self.state
        series = {name: numbers for name, numbers in state.series.items() if name != "fit"}
        result = KruskalTensor(np.ones(self.rank), factors, state.series["fit"], state.converged, series)
        kept = [mode for mode, each in self._proximal.items() if not each.terms.scalable]
        fixed = any(each.terms.fixed is not None for each in self._proximal.values())
        return result.arrange(norm=self.norm, kept=kept, sort=not fixed)


def compaction(constraints: Constraints) -> Compaction:
    """Return how hypersparse modes are compacted: fixed modes, and those whose empty rows may not be zero, keep all."""
    related = [mode for mode, terms in constraints.terms if not terms.zero_is_best]
    return Compaction(ZeroOfEmpty(), (*constraints.fixed, *related))


def solving_bytes(shape: Sequence[int], rank: int, constraints: Constraints, device: Device) -> Solving:
    """Return the memory that this method needs in addition to the MTTKRP."""
    terms, longest = dict(constraints.terms), max(shape)
    blocks = [len(Proximal(terms.get(mode, ModeTerms())).blocks) for mode in range(len(shape))]
    duals = 8 * rank * sum(count * length for count, length in zip(blocks, shape, strict=True))
    arrays = ARRAYS + 3 * max(blocks)
    shapes, library = {each.shape for each in terms.values()}, 0
    if device.on_host:
        library = OPTIMIZE_BYTES * (not shapes.isdisjoint(ISOTONIC))
    elif "unimodal" in shapes:
        arrays += STACKS
    provider = ROW_ADMM.first(device, lambda each: each.suits(rank))
    small = 0 if provider is None else provider.bytes(len(shape), rank, longest)

    def takes(rows: int, rank: int) -> SolverBytes:
        return SolverBytes(duals + small + library, 8 * arrays * rank * longest)

    return takes
