"""CP-ALS under constraints with proximal operators: AO-ADMM.

Minimises ``|X - M|_F**2 / 2`` plus the penalties of all modes, one mode after the other, each by ADMM with the MTTKRP
and the Gram matrices of CP-ALS (Huang, Sidiropoulos and Liavas, A flexible and efficient algorithmic framework for
constrained matrix and tensor factorization, 2016). Columns are not normalised between modes: M is the sum of the
products of the columns as they were solved. No solve increases the objective.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence

import numpy as np
from numpy.typing import NDArray

from partitioner.array_types import Floats

from ..backend.ops.solve import SolverBytes
from ..models.kruskal import KruskalTensor
from ..operators.base import Operator, in_turn
from ..operators.placement import Solving
from ..parallel.mpi import on_root, share
from .constraints import Constraints
from .driver import ConstrainedCp, MethodState
from .proximal.admm import ModeSolver, RowEquations, Solution
from .proximal.operators import Proximal
from .proximal.terms import ModeTerms
from .updates import DivergedError, gains, gram_of

Matrix = NDArray[np.float64]

NEAR = 0.99  # fit from which MTTKRPs use double precision, because their rounding errors are a part of the residual
ARRAYS = 6  # of the rows of a mode that ADMM holds at a time


class ConstrainedAls(ConstrainedCp[Operator]):
    """CP-ALS by AO-ADMM; see `Method`.

    The state has an array per constrained mode, and two series:

    dual_0, dual_1, ... : (K, I_n, R)
        The dual variables of the mode's K proximal operators.
    fit
        ``1 - ||X - M|| / ||X||`` after each iteration.
    objective
        ``||X - M||**2 / 2`` plus the penalties.

    The rows of a mode whose constraints relate them are gathered and solved on rank 0; others on the ranks that own
    them.

    Parameters
    ----------
    operator : Operator
        Its device is a CPU. Holds the initial factor matrices.
    constraints : Constraints
    """

    name = "als"
    own_start = None

    def __init__(self, operator: Operator, constraints: Constraints) -> None:
        self.operator, self.constraints = operator, constraints
        constraints.check_sizes(operator.shape, self.rank)
        terms = dict(constraints.terms)
        self._modes = constraints.solved(operator.order)
        self._proximal = {mode: Proximal(terms.get(mode, ModeTerms())) for mode in self._modes}
        self.restart()

    def restart(self, state: MethodState | None = None) -> None:
        """See `Restartable`."""
        self.state = state or self._new_state()
        self._grams: list[Matrix] | None = None  # of this state
        self._penalties = dict[int, float]()

    def _new_state(self) -> MethodState:
        shape, duals = self.operator.shape, dict[str, Matrix]()
        for mode, each in self._proximal.items():
            if each.blocks:
                duals[f"dual_{mode}"] = np.zeros((len(each.blocks), shape[mode], self.rank))
        return MethodState(duals, {"fit": [], "objective": []})

    def started(self, factors: Sequence[Floats], how: str | None) -> Sequence[Floats]:
        """See `Method`: replaces matrices by the closest ones that meet the constraints."""
        self.constraints.check_start(factors, how)
        result = list(factors)
        for mode, each in self._proximal.items():
            result[mode] = each.projected(np.asarray(factors[mode], np.float64)).astype(factors[mode].dtype)
        return result

    def step(self, stop: Callable[[], bool], left: int = 1) -> bool:
        state, operator = self.state, self.operator
        solution = Solution(np.empty(0), np.empty(0), 0.0, 0.0)
        for mode in [mode for mode in self._modes if mode >= state.mode]:
            if mode > state.mode and stop():
                state.mode = mode
                return False
            solution = self._solve(mode)
        state.mode = 0
        squares = max(0.0, operator.norm**2 + 2 * solution.data)
        objective = squares / 2 + sum(self._penalties.values())
        if not np.isfinite(objective):
            raise DivergedError(f"iteration {state.iterations + 1}: the objective is {objective}")
        state.series["fit"].append(1 - math.sqrt(squares) / operator.norm if operator.norm else 1.0)
        state.series["objective"].append(objective)
        state.iterations += 1
        return True

    def _solve(self, mode: int) -> Solution:
        """Solve the rows of a mode on all ranks; the rows and duals of the result are parts of it. Collective."""
        operator, fits = self.operator, self.state.series["fit"]
        grams = self._load() if self._grams is None else self._grams
        double = gains(operator.options) and bool(fits) and fits[-1] > NEAR
        source = operator.mttkrp(mode, None, in_turn(mode, operator.order, self._modes), double)
        gram = np.prod([each for m, each in enumerate(grams) if m != mode], axis=0)
        mine = np.array(source, np.float64)
        if not (np.isfinite(gram).all() and np.isfinite(mine).all()):
            raise DivergedError(f"iteration {self.state.iterations + 1}, mode {mode}: the equations are not finite")
        with operator.span("solve", mode):
            solve = self._solve_whole if self._proximal[mode].terms.columnwise else self._solve_own
            solution = solve(mode, RowEquations(mine, gram))
        self._penalties[mode] = solution.penalty
        operator.publish(mode)
        operator.wait_comm()
        grams[mode] = self._gram(mode)
        return solution

    def _solve_own(self, mode: int, equations: RowEquations) -> Solution:
        """Solve the rows that this rank owns. Collective."""
        operator, dual = self.operator, self._dual(mode)
        owned, mine = operator.owned(mode), self._owned(mode)
        solver = ModeSolver(self._proximal[mode], self._rounded, self._sum)
        found = solver.solve(equations, np.array(owned, np.float64, order="C"), np.ascontiguousarray(dual[:, mine]))
        owned[...] = found.rows
        for part, new in zip(dual, found.dual, strict=True):
            part[mine] = new
            self._gather(mode, part)
        return found

    def _solve_whole(self, mode: int, equations: RowEquations) -> Solution:
        """Solve all rows on rank 0. Collective."""
        operator, comm, mine = self.operator, self.operator.machine.comm, self._owned(mode)
        whole = np.empty((operator.shape[mode], self.rank))
        whole[mine] = equations.source
        self._gather(mode, whole)
        solver = ModeSolver(self._proximal[mode], self._rounded, lambda numbers: None)

        def solve() -> Solution:
            start = np.array(operator.factor(mode), np.float64, order="C")
            return solver.solve(RowEquations(whole, equations.gram), start, self._dual(mode))

        found = on_root(comm, solve)
        data, penalty = comm.bcast((found.data, found.penalty) if found else (0.0, 0.0))
        rows = share(comm, None if found is None else found.rows)
        dual = self._dual(mode)
        if dual.size:
            dual[...] = share(comm, None if found is None else found.dual.reshape(-1, self.rank)).reshape(dual.shape)
        operator.owned(mode)[...] = rows[mine]
        return Solution(rows, dual, data, penalty)

    def _dual(self, mode: int) -> Matrix:
        empty = np.empty((0, self.operator.shape[mode], self.rank))
        return self.state.arrays.get(f"dual_{mode}", empty)

    def _owned(self, mode: int) -> slice:
        """Return the rows that this rank owns."""
        return self.operator.plan.modes[mode].owned if self.operator.machine.comm.size > 1 else slice(None)

    def _gather(self, mode: int, matrix: Matrix) -> None:
        """Fill in the rows that other ranks own. Collective."""
        comm = self.operator.machine.comm
        if comm.size > 1:
            bounds = self.operator.plan.modes[mode].cut.rows
            comm.all_gather_rows(matrix, bounds[:-1], bounds[1:])

    def _rounded(self, rows: Matrix) -> Matrix:
        """Return rows with the precision of the factor matrices."""
        return rows.astype(self.operator.options.dtype).astype(np.float64)

    def _sum(self, numbers: Matrix) -> None:
        if self.operator.machine.comm.size > 1:
            self.operator.machine.comm.all_reduce(numbers, "sum")

    def _gram(self, mode: int) -> Matrix:
        """Return the Gram matrix of a factor matrix. Collective."""
        result = gram_of(self.operator, mode)
        self._sum(result)
        return result

    def _load(self) -> list[Matrix]:
        """Compute the Gram matrices and penalties of the operator's factor matrices. Collective."""
        self._grams = [self._gram(mode) for mode in range(self.operator.order)]
        for mode, each in self._proximal.items():
            whole = np.array(self.operator.factor(mode), np.float64, order="C")
            if each.terms.columnwise:
                numbers = np.array([each.penalty(whole)])
            else:
                numbers = np.array([each.penalty(whole[self._owned(mode)])])
                self._sum(numbers)
            self._penalties[mode] = float(numbers[0])
        return self._grams

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
        state, factors = self.state, [self.factor(mode) for mode in range(self.operator.order)]
        series = {name: numbers for name, numbers in state.series.items() if name != "fit"}
        result = KruskalTensor(np.ones(self.rank), factors, state.series["fit"], state.converged, series)
        kept = [mode for mode, each in self._proximal.items() if not each.terms.scalable]
        return result.arrange(norm=self.norm, kept=kept)


def solving_bytes(shape: Sequence[int], rank: int, constraints: Constraints) -> Solving:
    """Return the memory that this method needs in addition to the MTTKRP."""
    terms = dict(constraints.terms)
    blocks = [len(Proximal(terms.get(mode, ModeTerms())).blocks) for mode in range(len(shape))]
    duals = 8 * rank * sum(count * length for count, length in zip(blocks, shape, strict=True))

    def takes(rows: int, rank: int) -> SolverBytes:
        return SolverBytes(duals, 8 * (ARRAYS + 3 * max(blocks)) * rank * max(shape))

    return takes
