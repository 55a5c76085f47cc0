"""Generalised CP by Newton steps for the rows of one mode after the other.

Given the other modes' factor matrices, the objective is a sum of functions of single rows, as in PDNR (Hansen,
Plantenga and Kolda 2015). Each row takes its own Newton step, with its own line search; all rows of a mode are
evaluated together.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, ClassVar, NamedTuple

import numpy as np
from numpy.typing import NDArray

from ..backend.losses import Loss, Moments
from ..operators.base import in_turn
from ..operators.products import RowSystems
from ..operators.sparse.gradient import moments_of
from ..operators.sparse.operator import SparseOperator
from .constraints import Constraints
from .gcp import LossMethod
from .newton import derivatives, newton_steps
from .updates import DivergedError

Matrix = NDArray[np.float64]

TRIALS = 8  # sizes of a step, each half of the one before
DECREASE = 1e-4  # sufficient decrease, as part of the slope
NEAR = 1e-3  # largest distance from a bound at which an entry counts as being there
SMALL = 1e-12  # relative slope below which a row has converged


class EvaluatedRows(NamedTuple):
    """The rows of a mode with the objective, gradient and curvature of each."""

    rows: Matrix
    values: Matrix
    gradient: Matrix
    curvature: Matrix

    def where(self, chosen: NDArray[np.bool_], others: EvaluatedRows) -> EvaluatedRows:
        """Return these rows where they are chosen, otherwise others."""
        pairs = zip(self, others, strict=True)
        return EvaluatedRows(*(np.where(chosen.reshape(-1, *[1] * (a.ndim - 1)), a, b) for a, b in pairs))


def row_systems(loss: Loss, zeros: bool, weighted: bool) -> RowSystems:
    """Return the product that `NewtonRows` needs, for which its operator is placed."""
    return RowSystems(loss.maps(curved=True, absent_are_zero=zeros)._replace(weighted=weighted))


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
        facts: dict[str, Any],
        zeros: bool,
        weights: NDArray[np.float64] | None = None,
    ) -> None:
        self._sparse, self._zeros = operator, zeros
        self._weighted = weights is not None
        self._product = row_systems(loss, zeros, self._weighted)
        self._passes = 0
        super().__init__(operator, loss, constraints, facts)
        if weights is not None:
            operator.set_factor(self.order, np.repeat(weights[:, None], self.rank, axis=1))

    @property
    def order(self) -> int:
        """See `Method`: without the mode of the weights."""
        return self.operator.order - self._weighted

    def step(self, stop: Callable[[], bool], left: int = 1) -> bool:
        state, self._passes, total, moved = self.state, 0, np.zeros(1), False
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

    def _solve(self, mode: int) -> tuple[EvaluatedRows, bool]:
        """Take a Newton step in the rows of a mode; return them, and whether any has moved on any rank. Collective."""
        moments = self._moments() if self._zeros else None
        now, moved = self._searched(mode, self._evaluated(mode, self._rows(mode), moments), moments)
        self._set_rows(mode, now.rows)
        self.operator.wait_comm()
        return now, moved

    def _searched(self, mode: int, now: EvaluatedRows, moments: Moments | None) -> tuple[EvaluatedRows, bool]:
        """Return each row after a step that decreases its objective, and whether any has moved on any rank."""
        lower = 0.0 if mode in self._constraints.nonnegative else -np.inf
        steps = self._steps(now, lower)
        pending = np.einsum("ir,ir->i", now.gradient, steps) < -SMALL * (1 + np.abs(now.values))
        size, moved = 1.0, False
        for _ in range(TRIALS):
            if not self._any(pending):
                break
            rows = np.where(pending[:, None], np.maximum(now.rows + size * steps, lower), now.rows)
            rows = rows.astype(self.operator.options.dtype).astype(np.float64)
            new = self._evaluated(mode, rows, moments)
            slopes = np.einsum("ir,ir->i", now.gradient, rows - now.rows)
            good = pending & (new.values <= now.values + DECREASE * slopes) & (slopes < 0)
            now, moved = new.where(good, now), moved or bool(good.any())
            pending, size = pending & ~good, size / 2
        return now, self._any(np.array([moved]))

    def _steps(self, now: EvaluatedRows, lower: float) -> Matrix:
        """Return Newton steps in the free entries; those near the bound that would cross it follow the gradient.

        With the entries exactly at the bound as the only fixed ones, projected steps need not be descents (Bertsekas,
        Projected Newton methods, 1982).
        """
        change = now.rows - np.maximum(now.rows - now.gradient, lower)
        near = np.minimum(NEAR, np.linalg.norm(change, axis=1, keepdims=True))
        fixed = (now.rows <= lower + near) & (now.gradient > 0)
        curvature = np.where(fixed[:, :, None] | fixed[:, None, :], 0.0, now.curvature)
        rows, entries = np.nonzero(fixed)
        curvature[rows, entries, entries] = 1.0
        return np.where(fixed, -now.gradient, newton_steps(np.where(fixed, 0.0, now.gradient), curvature))

    def _evaluated(self, mode: int, rows: Matrix, moments: Moments | None) -> EvaluatedRows:
        """Set the rows of a mode and evaluate them. Collective."""
        operator, rank, ridge = self._sparse, self.rank, (self._constraints.ridge or [0.0] * self.order)[mode]
        self._set_rows(mode, rows)
        self._passes += 1
        sums = operator.compute(self._product, mode, in_turn(mode, operator.order, self._modes))
        systems = np.array(operator.machine.device.to_host(sums), np.float64)
        values, gradient, curvature = derivatives(systems, rank)
        assert curvature is not None
        if moments is not None:
            constant = self._loss.gradient_everywhere(moments, mode, np.zeros((1, rank)))[0]
            quadratic = self._loss.curvature_everywhere(moments, mode)
            linear = rows @ quadratic
            values += rows @ constant + np.einsum("ir,ir->i", linear, rows) / 2
            gradient += constant + linear
            curvature += quadratic
        values += ridge * np.einsum("ir,ir->i", rows, rows)
        return EvaluatedRows(rows, values, gradient + 2 * ridge * rows, curvature + 2 * ridge * np.eye(rank))

    def _moments(self) -> Moments:
        """Return the moments of all factor matrices. Collective."""
        owned = [self._rows(mode) for mode in range(self.operator.order)]
        return moments_of(owned, self.operator.machine.comm)

    def _penalty_of_others(self, solved: int) -> float:
        """Return the penalties of the modes whose rows do not include it. Collective."""
        total = np.zeros(1)
        for mode, ridge in enumerate(self._constraints.ridge):
            if ridge and mode != solved and mode in self._modes:
                rows = self._rows(mode)
                total += ridge * np.vdot(rows, rows)
        self._sum(total)
        return float(total[0])

    def _sum(self, numbers: NDArray[np.float64]) -> None:
        if self.operator.machine.comm.size > 1:
            self.operator.machine.comm.all_reduce(numbers, "sum")

    def _any(self, mine: NDArray[np.bool_]) -> bool:
        """Return whether any element is true on any rank. Collective."""
        comm = self.operator.machine.comm
        return any(comm.allgather(bool(mine.any()))) if comm.size > 1 else bool(mine.any())
