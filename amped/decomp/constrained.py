"""How rows follow from their MTTKRP where factor matrices are constrained: non-negative, with a ridge, or fixed.

The host takes part in each mode. All columns have unit 2-norm when the next mode is solved. Its rows begin as they are,
with the weights in them: so no solve makes the objective larger.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
from numpy.typing import NDArray

from ..backend.base import Array, Device
from ..backend.constrained import ConstrainedEquations
from ..backend.equations import Equations, Terms, Told
from ..backend.providers import nonnegative_solver
from ..operators.base import Operator, in_turn
from .constraints import Constraints
from .updates import LeastSquares

SWEEPS = 5  # over the columns, each time that a mode is solved: fewer need more iterations, more gain nothing
UNTIL_SETTLED = 2000  # where no iteration comes after: a row ends when a sweep no longer changes it


class Constrained(LeastSquares):
    """Solves rows under constraints. See `LeastSquares`."""

    equations: ConstrainedEquations

    def __init__(self, operator: Operator, constraints: Constraints) -> None:
        self._constraints = constraints
        self.solved = [mode for mode in range(operator.order) if mode not in constraints.fixed]
        self._sweeps = SWEEPS if len(self.solved) > 1 else UNTIL_SETTLED
        super().__init__(operator)
        rank, dtype = operator.ranks[0], operator.options.dtype
        self._hals = nonnegative_solver(operator.machine.device, rank, dtype)
        count = max((len(operator.owned(mode)) for mode in constraints.nonnegative), default=0)
        self._room = self._hals.make(count, rank, dtype)

    def _made_equations(self, device: Device, terms: Terms, dtype: np.dtype[np.floating]) -> Equations:
        constraints = self._constraints
        return ConstrainedEquations(device, terms, constraints.ridge, constraints.nonnegative, self.solved[-1])

    @property
    def goes_ahead(self) -> bool:
        """See `LeastSquares`: the host makes what rows are solved with."""
        return False

    def load(self, told: Told, best: float, weights: NDArray[np.float64] | None) -> None:
        super().load(told, best, weights)
        if weights is None:
            self.equations.start()
        else:
            self.equations.go_on(weights)

    def _then(self, mode: int) -> Sequence[int]:
        return [each for each in in_turn(mode, self._operator.order) if each in self.solved]

    def _solve(self, mode: int, source: Array, target: Array, again: bool = False) -> None:
        if mode not in self._constraints.nonnegative:
            super()._solve(mode, source, target, again)
            return
        equations, sweeps = self.equations, 0 if again else self._sweeps
        self._hals.run(self._room, source, equations.system, sweeps, target, equations.sums(mode))

    def objective(self, fit: float) -> float:
        """Return the squared distance to the tensor and the penalty, relative; for a ridge that all modes have."""
        return (1 - fit) ** 2 + self.equations.penalty(self._constraints.common_ridge or 0.0)
