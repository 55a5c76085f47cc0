"""CP-ALS over observed elements under constraints with proximal operators: AO-ADMM with a matrix for each row.

Minimises ``sum w (x - m)**2 / 2`` over the observed elements x, where m is the model's value, plus the penalties of all
modes. The matrix of a row is the sum of ``w v v^T`` over its elements, v being the product of the other modes' factor
rows; see `observed_als` and `constrained_als`.
"""

from __future__ import annotations

import math
from collections.abc import Sequence

import numpy as np

from ..backend.device import Device
from ..backend.formulas import formula_of
from ..backend.losses import Maps
from ..backend.ops.solve import SolverBytes
from ..operators.base import in_turn
from ..operators.placement import Solving
from ..operators.products import RowSystems
from ..operators.sparse.operator import SparseOperator
from . import constrained_als
from .constrained_als import ConstrainedAls
from .constraints import Constraints
from .observed_als import ObservedTerms
from .proximal.equations import RowGrams

SQUARES = Maps(formula_of("x"), formula_of("1"), formula_of("x * x"))
"""Formulas of the sums from which rows are solved: right-hand side, matrix, and squared elements."""
MATRICES = 3  # of each row, that ADMM holds in addition to its sums


def systems(weighted: bool) -> RowSystems:
    """Return the product that the method needs, for which its operator is placed."""
    return RowSystems(SQUARES, scaled=weighted)


class ObservedConstrainedAls(ConstrainedAls):
    """CP-ALS over observed elements by AO-ADMM; see `ConstrainedAls`.

    The state has a third series:

    rmse
        The (weighted) root mean square of the residuals.

    Parameters
    ----------
    operator : SparseOperator
        Holds the observed elements, with weights as `ObservedTerms` describes, and the initial factor matrices. Placed
        for `systems`.
    constraints : Constraints
    terms : ObservedTerms
    """

    SERIES = "fit", "objective", "rmse"

    def __init__(self, operator: SparseOperator, constraints: Constraints, terms: ObservedTerms) -> None:
        self._systems, self._observed = operator, terms
        super().__init__(operator, constraints)
        if terms.scales is not None:
            operator.set_factor(self.order, np.repeat(terms.scales[:, None], self.rank, axis=1))

    @property
    def order(self) -> int:
        """See `Method`: without the mode of the weights."""
        return self.operator.order - (self._observed.scales is not None)

    @property
    def facts(self) -> dict[str, object]:
        """See `Method`: the constraints, and which elements are observed."""
        return {**self._observed.facts, **super().facts}

    def _make_row_by_row(self) -> None:
        """See `ConstrainedAls`: rows have their own matrices."""

    def _equations(self, mode: int) -> RowGrams:
        """See `ConstrainedAls`; the sums are valid until the next mode."""
        operator, rank = self._systems, self.rank
        product = systems(self._observed.scales is not None)
        sums = operator.compute(product, mode, in_turn(mode, operator.order, self._modes))
        return RowGrams(sums[:, :rank], sums[:, rank:-1].reshape(-1, rank, rank), self._arrays.xp)

    def _solved(self, mode: int) -> None:
        """See `ConstrainedAls`: row systems are computed from the factor matrices."""

    def _record(self, data: float) -> None:
        super()._record(data)
        squares = max(0.0, self.operator.norm**2 + 2 * data)
        self.state.series["rmse"].append(math.sqrt(squares / self._observed.total))


def solving_bytes(shape: Sequence[int], rank: int, constraints: Constraints, device: Device) -> Solving:
    """Return the memory that this method needs in addition to the row systems."""
    admm = constrained_als.solving_bytes(shape, rank, constraints, device)

    def takes(rows: int, rank: int) -> SolverBytes:
        kept, passing = admm(rows, rank)
        return SolverBytes(kept, passing + 8 * MATRICES * rank**2 * min(rows, max(shape)))

    return takes
