"""Held-out elements: a fit is evaluated on them after each iteration, and the best iteration is kept."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

from ..models.explained import values_at
from ..models.kruskal import KruskalTensor
from ..operators.base import Placed
from ..parallel.mpi import Comm
from .constraints import Constraints
from .driver import HOLDOUT, MethodState
from .observed_als import ObservedAls, ObservedTerms, Rows


class HeldOut:
    """The held-out elements of one rank.

    Parameters
    ----------
    columns : sequence of (n,) arrays
        Their indices, one array per mode.
    values : (n,) array
    weights : (n,) array, optional
    total : float
        The sum of the weights of all ranks' elements.
    facts : dict
        How they were chosen, for records and checkpoints.
    """

    def __init__(
        self,
        columns: Sequence[NDArray[np.int32]],
        values: NDArray[np.float64],
        weights: NDArray[np.float64] | None,
        total: float,
        facts: dict[str, Any],
    ) -> None:
        self._columns, self._values, self._weights, self._total, self.facts = columns, values, weights, total, facts

    def rmse(self, factors: Sequence[NDArray[Any]], comm: Comm) -> float:
        """Return the (weighted) root mean square of the residuals of a model. Collective."""
        differences = values_at(np.ones(factors[0].shape[1]), factors, self._columns) - self._values
        squares = np.array(
            [np.vdot(differences, differences if self._weights is None else self._weights * differences)]
        )
        if comm.size > 1:
            comm.all_reduce(squares, "sum")
        return float(np.sqrt(squares[0] / self._total))


class HeldOutAls(ObservedAls):
    """CP-ALS over observed elements that keeps the iteration with the lowest RMSE on held-out elements.

    In addition to `ObservedAls`, the state has the series `HOLDOUT` and an array for each mode:

    best_0, best_1, ... : (I_n, R)
        The factor matrices of the best iteration.
    """

    def __init__(
        self, operator: Placed, rows: Rows, constraints: Constraints, terms: ObservedTerms, held_out: HeldOut
    ) -> None:
        self._held_out = held_out
        super().__init__(operator, rows, constraints, terms)

    def restart(self, state: MethodState | None = None) -> None:
        """See `Restartable`."""
        super().restart(state)
        if state is None:
            self.state.series[HOLDOUT] = []
            for mode, length in enumerate(self.operator.shape[: self.order]):
                self.state.arrays[f"best_{mode}"] = np.zeros((length, self.rank))

    @property
    def facts(self) -> dict[str, Any]:
        """See `Method`: the constraints, and which elements are observed and held out."""
        return {**self._held_out.facts, **super().facts}

    def step(self, stop: Callable[[], bool], left: int = 1) -> bool:
        complete = super().step(stop, left)
        if complete:
            self._evaluate()
        return complete

    def _evaluate(self) -> None:
        """Record the RMSE on held-out elements, and keep the factor matrices if it is the lowest so far."""
        operator, state = self.operator, self.state
        factors = [self.factor(mode) for mode in range(self.order)]
        error = self._held_out.rmse(factors, operator.machine.comm)
        if error < min(state.series[HOLDOUT], default=np.inf):
            for mode in range(self.order):
                state.arrays[f"best_{mode}"][...] = factors[mode]
        state.series[HOLDOUT].append(error)

    def merit(self) -> float:
        """See `Restartable`: the negative lowest RMSE on held-out elements."""
        return -min(self.state.series[HOLDOUT], default=np.inf)

    def model(self) -> KruskalTensor:
        """See `Method`: the model of the best iteration."""
        if not self.state.iterations:
            return super().model()
        dtype = self.operator.options.dtype
        return self.model_of([self.state.arrays[f"best_{mode}"].astype(dtype) for mode in range(self.order)])
