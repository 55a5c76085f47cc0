"""CP-APR over observed elements: Poisson tensor factorisation in which other elements are unknown, not zero.

The model is summed over the observed elements only. Given the other modes' factor matrices, the negative log-likelihood
of a row b is the sum of ``m - x log m``; m is ``<b, v>``, and v the product of the other modes' rows. Its gradient
is ``D - Phi``, where ``D = sum v`` replaces the column sums of CP-APR, which are 1, and ``Phi = sum (x / m) v``. MU
multiplies B by ``Phi / D`` (Chi and Kolda 2012, Algorithm 3, by the same majorisation, which bounds each element by
itself). PDNR takes projected Newton steps with the Hessian ``sum (x / m**2) v v^T`` (Hansen, Plantenga and Kolda 2015),
with the line search of `NewtonRows`. If all elements are observed, MU is that of `CpApr`.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence

import numpy as np
from numpy.typing import NDArray

from partitioner.array_types import Floats

from ..backend.formulas import Formula
from ..backend.known_losses import loss_of
from ..backend.losses import PHI, Maps, Others
from ..models.kruskal import KruskalTensor
from ..operators.products import RowSystems
from ..operators.sparse.operator import SparseOperator
from .constraints import ConstraintParams
from .driver import MethodState
from .initial import unit_sums
from .newton_rows import EvaluatedRows, Matrix, NewtonRows
from .poisson import Poisson
from .updates import DivergedError

LOSS, CURVE, ONE = Formula("m - x * log(m)"), Formula("x / m / m"), Formula("1")


def poisson_systems(params: Poisson, weighted: bool, weight: Formula = PHI) -> RowSystems:
    """Return the product that `ObservedApr` needs, for which its operator is placed."""
    return RowSystems(Maps(weight, CURVE if params.rows else None, LOSS, params.eps, weighted))


class ObservedApr(NewtonRows):
    """CP-APR over observed elements, by MU or PDNR; see `Method`. For its state see `CpApr`.

    The log-likelihood, ``sum w (x log m - m)``, is that of the observed elements. Rows without any become zero.

    Parameters
    ----------
    operator : SparseOperator
        Placed for `poisson_systems`.
    params : Poisson
    facts : dict
        Which elements are observed, for records and checkpoints.
    weights : (K,) array, optional
        See `NewtonRows`.
    """

    SERIES = "loglikelihood", "kkt", "inner_iterations"
    measure = "loglikelihood"

    def __init__(
        self,
        operator: SparseOperator,
        params: Poisson,
        facts: dict[str, object],
        weights: NDArray[np.float64] | None = None,
    ) -> None:
        self._params, self.name = params, params.method
        order = operator.order - (weights is not None)
        nonnegative = ConstraintParams(nonnegative=True).of(order)
        super().__init__(operator, loss_of("poisson"), nonnegative, facts, False, weights)
        self._set_product(poisson_systems(params, self._weighted))
        self._ones = self._without_curvature(poisson_systems(params, self._weighted, ONE))

    def restart(self, state: MethodState | None = None) -> None:
        """See `Restartable`."""
        super().restart(state)
        if state is None:
            self.state.arrays |= {"weights": np.ones(self.rank), "facts": np.zeros((self.order, 2))}

    @property
    def facts(self) -> dict[str, object]:
        """See `Method`: which elements are observed."""
        return dict(self._facts)

    def started(self, factors: Sequence[Floats], how: str | None) -> Sequence[Floats]:
        """See `Method`: requires non-negative matrices; the column sums become weights."""
        scaled, self.state.arrays["weights"] = unit_sums(factors, how)
        return scaled

    def change(self) -> float | None:
        """See `Method`: the change of the log-likelihood."""
        numbers = self.state.series[self.measure]
        return numbers[-1] - numbers[-2] if len(numbers) > 1 else None

    def settled(self, tol: float) -> bool:
        """See `Method`: whether no mode was updated."""
        updates = self.state.series["inner_iterations"]
        return bool(updates) and updates[-1] == 0

    def merit(self) -> float:
        """See `Restartable`: the log-likelihood."""
        likelihoods = self.state.series["loglikelihood"]
        return likelihoods[-1] if likelihoods else -np.inf

    def step(self, stop: Callable[[], bool], left: int = 1) -> bool:
        state, loss = self.state, np.zeros(1)
        for mode in range(state.mode, self.order):
            if mode > state.mode and stop():
                state.mode = mode
                return False
            loss[0] = self._update(mode)
        state.mode = 0
        self._sum(loss)
        if not np.isfinite(loss[0]):
            raise DivergedError(f"iteration {state.iterations + 1}: the log-likelihood is {-loss[0]}")
        facts = state.arrays["facts"]
        state.series["loglikelihood"].append(-float(loss[0]))
        state.series["kkt"].append(float(facts[:, 0].max()))
        state.series["inner_iterations"].append(float(facts[:, 1].sum()))
        state.iterations += 1
        return True

    def _update(self, mode: int) -> float:
        """Update a mode; return this rank's negative log-likelihood if it is the last mode."""
        state, params = self.state, self._params
        rows = self._rows(mode) * state.arrays["weights"]
        sums = self._derivatives(mode, rows, self._ones).gradient.copy()
        if params.rows and state.iterations >= params.mu_iters:
            rows = self._newton(mode, rows, sums)
        else:
            rows = self._multiplied(mode, rows, sums)
        loss = 0.0
        if mode == self.order - 1:
            loss = float(self._derivatives(mode, rows, self._trial).values.sum())
        weights = rows.sum(axis=0)
        self._sum(weights)
        state.arrays["weights"] = weights
        self._set_rows(mode, rows / np.where(weights > 0, weights, np.inf))
        return loss

    def _multiplied(self, mode: int, rows: Matrix, sums: Matrix) -> Matrix:
        """Return B after multiplicative updates."""
        state, params, updates = self.state, self._params, 0
        for inner in range(params.inner_iters):
            phi = self._derivatives(mode, rows, self._trial).gradient
            shifted = (rows < params.kappa_tol) & (phi > sums)
            if params.kappa and state.iterations and not inner and self._any(shifted):
                rows = rows + params.kappa * shifted
                phi = self._derivatives(mode, rows, self._trial).gradient
            violation = self._largest(np.abs(np.minimum(rows, sums - phi)))
            if violation <= params.tol:
                break
            rows = rows * np.divide(phi, sums, out=np.zeros_like(phi), where=sums > 0)
            updates += 1
        state.arrays["facts"][mode] = violation, updates
        return rows

    def _newton(self, mode: int, rows: Matrix, sums: Matrix) -> Matrix:
        """Return B after damped Newton steps of its rows."""
        params, updates, first = self._params, np.zeros(1), 0.0
        self._sums_of_mode = sums
        for inner in range(params.inner_iters):
            now, steps = self._evaluated_with_steps(mode, rows, None)
            violations = np.abs(np.minimum(now.rows, now.gradient)).max(axis=1, initial=0)
            first = first if inner else self._largest(violations)
            pending = violations > params.tol
            if not self._any(pending):
                break
            now, moved = self._searched(mode, now, steps, None)
            if not moved:
                break
            rows = now.rows
            updates += np.count_nonzero(pending)
        self._sum(updates)
        self.state.arrays["facts"][mode] = first, updates[0]
        return rows

    def _completed(
        self, mode: int, rows: Matrix, values: Matrix, gradient: Matrix, others: Others | None
    ) -> EvaluatedRows:
        """Return the rows with their gradients, from Phi."""
        return EvaluatedRows(rows, values, self._sums_of_mode - gradient)

    def _largest(self, numbers: NDArray[np.float64]) -> float:
        """Return the largest number of all ranks."""
        mine = float(numbers.max(initial=0.0))
        comm = self.operator.machine.comm
        return max(comm.allgather(mine)) if comm.size > 1 else mine

    def model(self) -> KruskalTensor:
        """See `Method`: columns have unit sum; weights descend."""
        return self.model_of([self.factor(mode) for mode in range(self.order)])

    def model_of(self, factors: list[Floats]) -> KruskalTensor:
        """Return the model with these factor matrices: columns have unit sum; weights are descending."""
        weights = self.state.arrays["weights"]
        order = np.argsort(-weights, kind="stable")
        ordered = [factor.take(order, axis=1) for factor in factors]  # in C order
        return KruskalTensor(weights[order], ordered, (), self.state.converged, self.state.series)
