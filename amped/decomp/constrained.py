"""How rows follow from their MTTKRP where factor matrices are constrained: non-negative, with a ridge, or fixed.

All columns have unit 2-norm when the next mode is solved. Its rows begin as they are,
with the weights in them: so no solve makes the objective larger.
"""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from ..backend.base import Array, Device
from ..backend.equations import Bounds, ConstrainedEquations, Equations, Terms, Told
from ..backend.providers import equations_of, nonnegative_solver
from ..operators.base import Operator
from .constraints import Constraints
from .updates import LeastSquares

SWEEPS = 5  # over the columns, each time that a mode is solved; 1 to 10 end at like fits (docs/constraints.md)
UNTIL_SETTLED = 2000  # where no iteration comes after: a row ends when a sweep no longer changes it


class Constrained(LeastSquares):
    """Solves rows under constraints. See `LeastSquares`."""

    equations: ConstrainedEquations

    def __init__(self, operator: Operator, constraints: Constraints) -> None:
        self._constraints = constraints
        modes = [mode for mode in range(operator.order) if mode not in constraints.fixed]
        self._sweeps = SWEEPS if len(modes) > 1 else UNTIL_SETTLED
        super().__init__(operator, modes)
        rank, dtype = operator.ranks[0], operator.options.dtype
        self._hals = nonnegative_solver(operator.machine.device, rank, dtype)
        count = max((len(operator.owned(mode)) for mode in constraints.nonnegative), default=0)
        self._room = self._hals.make(count, rank, dtype)

    def _made_equations(self, device: Device, terms: Terms, dtype: np.dtype[np.floating]) -> Equations:
        bounds = Bounds(self._constraints.ridge, self._constraints.nonnegative, self.modes[-1])
        return equations_of(device, terms.rank).make_constrained(terms, dtype, bounds)

    @property
    def goes_ahead(self) -> bool:
        return super().goes_ahead and not (self._constraints.nonnegative and self._hals.allocates)

    def load(self, told: Told, best: float, weights: NDArray[np.float64] | None) -> None:
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

    def objective(self, fit: float, squares: float) -> float:
        """Return the squared distance to the tensor and the penalty, relative; for a ridge that all modes have.

        `squares`: see `Told`.
        """
        return (1 - fit) ** 2 + (self._constraints.common_ridge or 0.0) * squares / self._operator.norm**2
