"""Generalised CP by Newton steps for the rows of one mode after the other.

Given the other modes' factor matrices, the objective is a sum of functions of single rows, as in PDNR (Hansen,
Plantenga and Kolda 2015). Each row takes its own Newton step, with its own line search; all rows of a mode are
evaluated together.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import ClassVar, NamedTuple

import numpy as np
from numpy.typing import NDArray

from partitioner.host.threads import parallel_map, threads_for

from ..backend.losses import Loss, Others
from ..backend.ops.lbfgs import Point
from ..backend.ops.solve import SolverBytes
from ..operators.base import in_turn
from ..operators.products import RowSystems
from ..operators.sparse.gradient import moments_of
from ..operators.sparse.operator import SparseOperator
from .constraints import Constraints
from .gcp import LossMethod
from .newton import RowDerivatives, derivatives, newton_steps
from .updates import DivergedError

Matrix = NDArray[np.float64]

TRIALS = 8  # sizes of a step, each half of the one before
DECREASE = 1e-4  # sufficient decrease, as part of the slope
NEAR = 1e-3  # largest distance from a bound at which an entry counts as being there
BLOCK, THREADS = 1 << 17, 8  # second derivatives from which a thread computes steps at a time, and threads
ROWS_KEPT, CURVATURES = 13, 5  # arrays of all rows, and of a block's second derivatives, that are in memory at a time
SMALL = 1e-12  # slope below which a row has converged, relative to its objective, and to 1 or that of a zero row


class EvaluatedRows(NamedTuple):
    """The rows of a mode with the objective and gradient of each."""

    rows: Matrix
    values: Matrix
    gradient: Matrix

    def where(self, chosen: NDArray[np.bool_], others: EvaluatedRows) -> EvaluatedRows:
        """Return these rows where they are chosen, otherwise others."""
        pairs = zip(self, others, strict=True)
        return EvaluatedRows(*(np.where(chosen.reshape(-1, *[1] * (a.ndim - 1)), a, b) for a, b in pairs))


def row_systems(loss: Loss, zeros: bool, weighted: bool) -> RowSystems:
    """Return the product that `NewtonRows` needs, for which its operator is placed."""
    return RowSystems(loss.maps(curved=True, absent_are_zero=zeros)._replace(weighted=weighted))


def step_bytes(rows: int, rank: int) -> SolverBytes:
    """Return the memory for steps of this many rows, in addition to their row systems."""
    blocks = min(THREADS * BLOCK, rows * rank**2)
    return SolverBytes(8 * (ROWS_KEPT * rows * rank + CURVATURES * blocks))


class NewtonRows(LossMethod):
    """Newton steps by rows over the elements of a sparse tensor. See `LossMethod`.

    The state has two series: ``objective``, and ``evaluations``, the passes over the elements of all modes.

    Parameters
    ----------
    operator : SparseOperator
        Placed for row systems with second derivatives.
    loss, constraints, facts
        See `LossMethod`.
    zeros : bool
        Whether absent elements are zeros. Otherwise they do not count.
    weights : (K,) array, optional
        The weights of the indices of an additional last mode of the operator; see `Maps.weighted`.
    """

    name = "newton"
    SERIES: ClassVar[tuple[str, ...]] = ("objective", "evaluations")

    def __init__(
        self,
        operator: SparseOperator,
        loss: Loss,
        constraints: Constraints,
        facts: dict[str, object],
        zeros: bool,
        weights: NDArray[np.float64] | None = None,
    ) -> None:
        self._sparse, self._zeros = operator, zeros
        self._weighted = weights is not None
        self._passes, self._zero_values = 0, dict[int, Matrix]()
        super().__init__(operator, loss, constraints, facts)
        self._set_product(row_systems(loss, zeros, self._weighted))
        if weights is not None:
            operator.set_factor(self.order, np.repeat(weights[:, None], self.rank, axis=1))

    def _set_product(self, product: RowSystems) -> None:
        self._product, self._trial = product, self._without_curvature(product)

    def _without_curvature(self, product: RowSystems) -> RowSystems:
        """Return a product of objectives and gradients, as trials need; on a CPU its other columns are zero."""
        return RowSystems(product.maps._replace(curve=None)) if self.operator.machine.device.on_host else product

    @property
    def order(self) -> int:
        """See `Method`: without the mode of the weights."""
        return self.operator.order - self._weighted

    def step(self, stop: Callable[[], bool], left: int = 1) -> bool:
        state, self._passes, total, moved = self.state, 0, np.zeros(1), False
        if self._scales and not state.iterations and not state.mode:
            self._scale_start(self._modes[0])
        for mode in [mode for mode in self._modes if mode >= state.mode]:
            if mode > self._modes[0] and stop():
                state.mode = mode
                return False
            found, any_moved = self._solve(mode)
            moved |= any_moved
            total[0] = found.values.sum()
        state.mode = 0
        self._sum(total)
        objective = float(total[0]) + self._penalty_of_others(self._modes[-1])
        if not np.isfinite(objective):
            raise DivergedError(f"iteration {state.iterations + 1}: the objective is {objective}")
        self._stalled = not moved
        state.series["objective"].append(objective)
        state.series["evaluations"].append(float(self._passes))
        state.iterations += 1
        return True

    def _scale_start(self, mode: int) -> None:
        """Scale a mode of the random start to the size of the elements. Collective."""
        rows, others = self._rows(mode), self._others() if self._zeros else None

        def evaluate(scale: float) -> Point:
            now = self._evaluated(mode, scale * rows, others)
            return Point(now.rows, self._total(now.values.sum()), now.gradient)

        def slope(point: Point) -> float:
            return self._total(float(np.vdot(point.x, point.gradient)))

        point = self._rescaled(evaluate(1.0), evaluate, slope)
        self._set_rows(mode, point.x)
        self.operator.wait_comm()

    def _solve(self, mode: int) -> tuple[EvaluatedRows, bool]:
        """Take a Newton step in the rows of a mode; return them, and whether any has moved on any rank. Collective."""
        others = self._others() if self._zeros else None
        now, steps = self._evaluated_with_steps(mode, self._rows(mode), others)
        now, moved = self._searched(mode, now, steps, others)
        self._set_rows(mode, now.rows)
        self.operator.wait_comm()
        return now, moved

    def _searched(
        self, mode: int, now: EvaluatedRows, steps: Matrix, others: Others | None
    ) -> tuple[EvaluatedRows, bool]:
        """Return each row after a part of its step that decreases its objective, and whether any rank's has moved."""
        lower = self._lower(mode)
        least = SMALL * (np.abs(now.values) + np.minimum(self._of_zeros(mode, others), 1))  # some are infinite at 0
        pending = np.einsum("ir,ir->i", now.gradient, steps) < -least
        size, moved = 1.0, False
        for _ in range(TRIALS):
            if not self._any(pending):
                break
            rows = np.where(pending[:, None], np.maximum(now.rows + size * steps, lower), now.rows)
            rows = rows.astype(self.operator.options.dtype).astype(np.float64)
            new = self._evaluated(mode, rows, others)
            slopes = np.einsum("ir,ir->i", now.gradient, rows - now.rows)
            good = pending & (new.values <= now.values + DECREASE * slopes) & (slopes < 0)
            now, moved = new.where(good, now), moved or bool(good.any())
            pending, size = pending & ~good, size / 2
        return now, self._any(np.array([moved]))

    def _lower(self, mode: int) -> float:
        return 0.0 if mode in self.constraints.nonnegative else -np.inf

    def _evaluated_with_steps(self, mode: int, rows: Matrix, others: Others | None) -> tuple[EvaluatedRows, Matrix]:
        """Set the rows of a mode; return them with their Newton steps, computed block by block. Collective."""
        values, gradient, curvature = self._derivatives(mode, rows, self._product)
        assert curvature is not None
        now, common = self._completed(mode, rows, values.copy(), gradient.copy(), others), self._common(mode, others)
        steps, lower, size = np.empty_like(rows), self._lower(mode), max(1, BLOCK // self.rank**2)

        def block(begin: int) -> None:
            part = slice(begin, begin + size)
            steps[part] = _steps(EvaluatedRows(*(each[part] for each in now)), curvature[part] + common, lower)

        begins = range(0, len(rows), size)
        parallel_map(block, begins, min(THREADS, threads_for(len(begins))))
        return now, steps

    def _of_zeros(self, mode: int, others: Others | None) -> Matrix:
        """Return the size of each row's objective if it is zero, which depends on the elements only. Collective."""
        if mode not in self._zero_values:
            found = np.abs(self._evaluated(mode, np.zeros_like(self._rows(mode)), others).values)
            self._zero_values[mode] = np.where(np.isnan(found), 0.0, found)
        return self._zero_values[mode]

    def _evaluated(self, mode: int, rows: Matrix, others: Others | None) -> EvaluatedRows:
        """Set the rows of a mode and evaluate them. Collective."""
        values, gradient, _ = self._derivatives(mode, rows, self._trial)
        return self._completed(mode, rows, values.copy(), gradient.copy(), others)

    def _derivatives(self, mode: int, rows: Matrix, product: RowSystems) -> RowDerivatives:
        """Set the rows of a mode; return the sums over elements, which are valid until the next call. Collective."""
        operator = self._sparse
        self._set_rows(mode, rows)
        self._passes += 1
        sums = operator.compute(product, mode, in_turn(mode, operator.order, self._modes))
        return derivatives(np.asarray(operator.machine.device.to_host(sums)), self.rank)

    def _completed(
        self, mode: int, rows: Matrix, values: Matrix, gradient: Matrix, others: Others | None
    ) -> EvaluatedRows:
        """Add absent elements and the ridge to the sums over elements, in place."""
        if others is not None:
            more_values, more_gradient = self._loss.rows_everywhere(others, mode, rows)
            values += more_values
            gradient += more_gradient
        ridge = self._ridge(mode)
        values += ridge * np.einsum("ir,ir->i", rows, rows)
        gradient += 2 * ridge * rows
        return EvaluatedRows(rows, values, gradient)

    def _common(self, mode: int, others: Others | None) -> Matrix:
        """Return the curvature that all rows have in common: that of absent elements, and the ridge."""
        result = 2 * self._ridge(mode) * np.eye(self.rank)
        return result if others is None else result + self._loss.curvature_everywhere(others, mode)

    def _ridge(self, mode: int) -> float:
        return self.constraints.ridge[mode] if self.constraints.ridge else 0.0

    def _others(self) -> Others:
        """Return the products of the moments of the factor matrices over the other modes. Collective."""
        owned = [self.operator.owned(mode) for mode in range(self.operator.order)]
        return moments_of(owned, self.operator.machine).others()

    def _penalty_of_others(self, solved: int) -> float:
        """Return the penalties of the modes whose rows do not include it. Collective."""
        total = np.zeros(1)
        for mode, ridge in enumerate(self.constraints.ridge):
            if ridge and mode != solved and mode in self._modes:
                rows = self._rows(mode)
                total += ridge * np.vdot(rows, rows)
        self._sum(total)
        return float(total[0])

    def _total(self, mine: float) -> float:
        numbers = np.array([mine])
        self._sum(numbers)
        return float(numbers[0])

    def _sum(self, numbers: NDArray[np.float64]) -> None:
        if self.operator.machine.comm.size > 1:
            self.operator.machine.comm.all_reduce(numbers, "sum")

    def _any(self, mine: NDArray[np.bool_]) -> bool:
        """Return whether any element is true on any rank. Collective."""
        comm = self.operator.machine.comm
        return any(comm.allgather(bool(mine.any()))) if comm.size > 1 else bool(mine.any())


def _steps(now: EvaluatedRows, curvature: Matrix, lower: float) -> Matrix:
    """Return Newton steps in the free entries; those near the bound that would cross it follow the gradient.

    With the entries exactly at the bound as the only fixed ones, projected steps need not be descents (Bertsekas,
    Projected Newton methods, 1982). `curvature` is changed.
    """
    change = now.rows - np.maximum(now.rows - now.gradient, lower)
    near = np.minimum(NEAR, np.linalg.norm(change, axis=1, keepdims=True))
    fixed = (now.rows <= lower + near) & (now.gradient > 0)
    lengths = np.linalg.norm(now.rows, axis=1)
    curvature[fixed[:, :, None] | fixed[:, None, :]] = 0.0
    rows, entries = np.nonzero(fixed)
    curvature[rows, entries, entries] = 1.0
    return np.where(fixed, -now.gradient, newton_steps(np.where(fixed, 0.0, now.gradient), curvature, lengths))
