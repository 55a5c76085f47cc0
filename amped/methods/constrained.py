"""How rows follow from their MTTKRP where factor matrices are constrained: non-negative, with a ridge, or fixed.

All columns have unit 2-norm when the next mode is solved. Its rows begin as they are,
with the weights in them: so no solve makes the objective larger.
"""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from ..backend.device import Array, Device
from ..backend.ops.equations import (
    ConstrainedEquations,
    ConstraintBounds,
    Equations,
    EquationsStatus,
    Terms,
    equations_of,
)
from ..backend.ops.nonnegative import nonnegative_solver
from ..operators.base import Operator
from .constraints import Constraints
from .updates import LeastSquares

SWEEPS = 5  # over the columns, each time that a mode is solved; 1 to 10 end at like fits (docs/design/constraints.md)
UNTIL_SETTLED = 2000  # where no iteration comes after: a row ends when a sweep no longer changes it


class Constrained(LeastSquares):
    """Solves rows under constraints. See `LeastSquares`."""

    equations: ConstrainedEquations

    def __init__(self, operator: Operator, constraints: Constraints) -> None:
        self._constraints = constraints
        self._bounds, self._sweeps = bounds_of(constraints, operator.order), sweeps_of(constraints, operator.order)
        super().__init__(operator, constraints.solved(operator.order))
        rank, dtype = operator.ranks[0], operator.options.dtype
        self._hals = nonnegative_solver(operator.machine.device, rank, dtype)
        count = max((len(operator.owned(mode)) for mode in constraints.nonnegative), default=0)
        self._room = self._hals.make(count, rank, dtype)

    def _made_equations(self, device: Device, terms: Terms, dtype: np.dtype[np.floating]) -> Equations:
        return equations_of(device, terms.rank).make_constrained(terms, dtype, self._bounds)

    @property
    def goes_ahead(self) -> bool:
        return super().goes_ahead and not (self._constraints.nonnegative and self._hals.allocates)

    def load(self, told: EquationsStatus, best: float, weights: NDArray[np.float64] | None) -> None:
        super().load(told, best, weights)
        if weights is None:
            self.equations.start()
        else:
            self.equations.go_on(weights)

    def _solve(self, mode: int, source: Array, target: Array, again: bool = False) -> None:
        if mode not in self._constraints.nonnegative:
            super()._solve(mode, source, target, again)
            return
        equations, sweeps = self.equations, 0 if again else self._sweeps
        self._hals.run(self._room, source, equations.system, sweeps, target, equations.sums(mode))


def bounds_of(constraints: Constraints, order: int) -> ConstraintBounds:
    """Return what equations are to know of the constraints."""
    return ConstraintBounds(constraints.ridge, constraints.nonnegative, constraints.solved(order)[-1])


def sweeps_of(constraints: Constraints, order: int) -> int:
    """Return how many sweeps over the columns of a matrix without negative numbers there are each time."""
    return SWEEPS if len(constraints.solved(order)) > 1 else UNTIL_SETTLED


def objective(fit: float, squares: float, constraints: Constraints, norm: float) -> float:
    """Return the squared distance to the tensor, relative to its `norm`, and the penalty of a ridge of all modes.

    `squares`: see `EquationsStatus`.
    """
    return (1 - fit) ** 2 + (constraints.common_ridge or 0.0) * squares / norm**2
