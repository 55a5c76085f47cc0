"""Held-out elements: a method is evaluated on them after each iteration, and the best iteration is kept."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace

import numpy as np
from numpy.typing import NDArray

from partitioner.array_types import Floats

from ..backend.losses import Loss
from ..models.deviance import best_values
from ..models.explained import values_at
from ..models.kruskal import KruskalTensor
from ..operators.base import Placed
from ..parallel.mpi import Comm
from .driver import HELD_OUT, BaseMethod, MethodState, held_out_errors
from .gcp import Gcp
from .newton_rows import NewtonRows
from .observed_als import ObservedAls
from .observed_constrained import ObservedConstrainedAls
from .stochastic import StochasticGcp

RMSE, DEVIANCE = HELD_OUT
MEAN_LOSS = "holdout_loss"


@dataclass(frozen=True)
class HeldOut:
    """The held-out elements of one rank.

    Attributes
    ----------
    columns : sequence of (n,) arrays
        Their indices, one array per mode.
    values : (n,) array
    weights : (n,) array, optional
    total : float
        The sum of the weights of all ranks' elements.
    facts : dict
        How they were chosen, for records and checkpoints.
    loss : Loss, optional
        The loss by which they are evaluated; None for least squares.
    """

    columns: Sequence[NDArray[np.int32]]
    values: NDArray[np.float64]
    weights: NDArray[np.float64] | None
    total: float
    facts: dict[str, object]
    loss: Loss | None = None

    def by(self, loss: Loss) -> HeldOut:
        """Return the same elements, evaluated by a loss."""
        return self if loss.name == "gaussian" else replace(self, loss=loss)

    @property
    def criterion(self) -> str:
        """The name of the series whose lowest number marks the best iteration."""
        return RMSE if self.loss is None else DEVIANCE

    @property
    def names(self) -> list[str]:
        """The names of the series that `errors` returns."""
        return [RMSE] if self.loss is None else [DEVIANCE, MEAN_LOSS]

    def errors(self, factors: Sequence[Floats], comm: Comm) -> list[float]:
        """Return what a model's errors are: the RMSE; or the mean deviance and the mean loss. Collective."""
        model, loss = values_at(np.ones(factors[0].shape[1]), factors, self.columns), self.loss
        if loss is None:
            return [float(np.sqrt(self._means([np.square(model - self.values)], comm)[0]))]
        losses = loss.of(self.values, model)
        excess = np.maximum(0.0, losses - best_values(loss, self.values))
        return self._means([2 * excess, losses], comm)

    def _means(self, rows: Sequence[Floats], comm: Comm) -> list[float]:
        """Return the weighted means of numbers per element over all ranks. Collective."""
        sums = np.array([row.sum() if self.weights is None else self.weights @ row for row in rows])
        if comm.size > 1:
            comm.all_reduce(sums, "sum")
        return [float(each) for each in sums / self.total]


class KeepsBest(BaseMethod[Placed]):
    """Mixin for methods: evaluates them on held-out elements, and keeps the iteration with the lowest error.

    In addition to those of the method, the state has the series `HeldOut.names` and an array for each mode:

    best_0, best_1, ... : (I_n, R)
        The factor matrices of the best iteration.
    """

    rank: int
    model_of: Callable[[list[Floats]], KruskalTensor]

    def __init__(self, held_out: HeldOut, *args: object) -> None:
        self._held_out = held_out
        super().__init__(*args)

    def restart(self, state: MethodState | None = None) -> None:
        """See `Restartable`."""
        super().restart(state)  # type: ignore[misc]
        if state is None:
            self.state.series.update({name: [] for name in self._held_out.names})
            for mode, length in enumerate(self.operator.lengths[: self.order]):
                self.state.arrays[f"best_{mode}"] = np.zeros((length, self.rank))

    @property
    def facts(self) -> dict[str, object]:
        """See `Method`: also which elements are held out."""
        return {**self._held_out.facts, **super().facts}  # type: ignore[misc]

    def step(self, stop: Callable[[], bool], left: int = 1) -> bool:
        """See `Method`."""
        complete: bool = super().step(stop, left)  # type: ignore[misc]
        if complete:
            self._measure()
        return complete

    def _measure(self) -> None:
        """Record the errors on held-out elements; keep the factor matrices if the first one is the lowest so far."""
        state, factors = self.state, [self.factor(mode) for mode in range(self.order)]
        errors = self._held_out.errors(factors, self.operator.machine.comm)
        if errors[0] < min(held_out_errors(state), default=np.inf):
            for mode in range(self.order):
                state.arrays[f"best_{mode}"][...] = factors[mode]
        for name, error in zip(self._held_out.names, errors, strict=True):
            state.series[name].append(error)

    def merit(self) -> float:
        """See `Restartable`: the negative lowest error on held-out elements."""
        return -min(held_out_errors(self.state), default=np.inf)

    def model(self) -> KruskalTensor:
        """See `Method`: the model of the best iteration."""
        if not self.state.iterations:
            return super().model()  # type: ignore[misc,no-any-return]
        dtype = self.operator.options.dtype
        return self.model_of([self.state.arrays[f"best_{mode}"].astype(dtype) for mode in range(self.order)])


class HeldOutAls(KeepsBest, ObservedAls):
    """CP-ALS over observed elements that keeps the best iteration."""


class HeldOutConstrained(KeepsBest, ObservedConstrainedAls):
    """CP-ALS over observed elements under constraints that keeps the best iteration."""


class HeldOutGcp(KeepsBest, Gcp):
    """L-BFGS-B that keeps the best iteration."""


class HeldOutNewton(KeepsBest, NewtonRows):
    """Newton steps by rows that keep the best iteration."""


class HeldOutStochastic(KeepsBest, StochasticGcp):
    """Stochastic gradients that keep the best epoch."""
