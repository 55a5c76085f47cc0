"""Iterations of CP-ALS on one CPU without compiled code, each a short sequence of NumPy operations.

For small tensors, function calls take longer than the operations. All products are in double precision.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from ..backend.ops.equations import CONDITION
from ..operators.base import Operator, in_turn
from .constraints import Constraints
from .updates import gram_of

Matrix = NDArray[np.float64]


class LeanStatus(NamedTuple):
    """The state after an iteration.

    `mode` is the next mode to solve: 0 after a complete iteration, else the mode whose equations are singular or not
    finite; then `fit` is NaN.
    """

    mode: int
    fit: float
    squares: float
    weights: Matrix


class Lean:
    """Iterates on the arrays of a run; see `CpAls`. Columns are stored normalised, so that their scales are 1."""

    def __init__(self, operator: Operator, constraints: Constraints) -> None:
        self._operator, self._constrained, order = operator, bool(constraints), operator.order
        self.modes: Sequence[int] = constraints.solved(order) if constraints else range(order)
        self._sweeps = constraints.bounds(order).sweeps
        self._ridge, self._nonnegative = constraints.ridge or (0.0,) * order, constraints.nonnegative
        self._others = [[m for m in range(order) if m != mode] for mode in range(order)]
        self._then = [in_turn(mode, order, self.modes) for mode in range(order)]
        self._diagonal = np.arange(operator.ranks[0])
        self._grams = list[Matrix]()

    @staticmethod
    def suits(operator: Operator) -> bool:
        """Return whether one rank computes on the host without compiled code."""
        device, comm = operator.machine.device, operator.machine.comm
        return device.on_host and not device.code_bytes and comm.size == 1

    def load(self, scales: Matrix) -> None:
        """Continue from the operator's factor matrices, whose columns have these scales."""
        found = [gram_of(self._operator, mode) for mode in range(self._operator.order)]
        self._grams = [gram * np.outer(scale, scale) for gram, scale in zip(found, scales, strict=True)]

    def iteration(self, norms: Matrix, scales: Matrix, weights: Matrix) -> LeanStatus:
        """Solve all modes; update the norms and scales of their columns in place."""
        for mode in self.modes:
            solved = self._solve(mode, norms, scales, weights)
            if solved is None:
                return LeanStatus(mode, np.nan, 0.0, weights)
            weights, inner = solved
        model = self._product(mode, (mode,))
        squared = float(weights @ model @ weights)
        norm = self._operator.norm
        distance = float(np.sqrt(max(0.0, norm**2 + squared - 2 * float(weights @ inner)))) / norm
        return LeanStatus(0, 1 - distance, float(weights**2 @ model.diagonal()), weights)

    def _product(self, mode: int, more: Sequence[int] = ()) -> Matrix:
        """Return the product of the Gram matrices of all modes but one, and of `more`."""
        first, *rest = *self._others[mode], *more
        found = self._grams[first]
        for m in rest:
            found = found * self._grams[m]
        return found

    def _solve(self, mode: int, norms: Matrix, scales: Matrix, weights: Matrix) -> tuple[Matrix, Matrix] | None:
        """Solve a mode; return its norms and inner products; None if its equations are singular or not finite."""
        operator, others = self._operator, self._others[mode]
        source = operator.mttkrp(mode, None, self._then[mode])
        scale = scales[others].prod(axis=0)
        if (scale != 1.0).any():
            source = source * scale
        product = self._product(mode)
        if ridge := self._ridge[mode]:
            product = product.copy()
            product[self._diagonal, self._diagonal] += ridge
        target = operator.owned(mode)
        if mode in self._nonnegative:
            rows = self._least(source, product, target * (scales[mode] * weights))
        else:
            rows = _least_squares(source, product)
        if rows is None:
            return None
        norm = self._norms(rows)
        if not np.isfinite(norm).all():
            return None
        target[...] = rows / norm
        operator.changed(mode)
        kept = target.astype(np.float64, copy=False)
        norms[mode], scales[mode], self._grams[mode] = norm, 1.0, kept.T @ kept
        return norm, np.einsum("ir,ir->r", source, kept)

    def _norms(self, rows: Matrix) -> Matrix:
        """Return the norms of columns: 2-norms under constraints, else the largest magnitudes, at least 1."""
        if self._constrained:
            found: Matrix = np.sqrt(np.einsum("ir,ir->r", rows, rows))
            found[found == 0] = 1.0
            return found
        largest: Matrix = np.abs(rows).max(axis=0)
        return np.maximum(largest, 1.0)

    def _least(self, source: Matrix, product: Matrix, begin: Matrix) -> Matrix | None:
        """Return rows without negative numbers, a column at a time (HALS); None where a component has vanished."""
        pivots = product.diagonal()
        if not (pivots > 0).all():
            return None
        others = np.ascontiguousarray((product / pivots).T)
        others[self._diagonal, self._diagonal] = 0.0
        rights, rows = np.ascontiguousarray(source.T / pivots[:, None]), np.ascontiguousarray(begin.T)
        rows *= (source != 0).any(axis=1)
        for _ in range(self._sweeps):
            for r, (row, right) in enumerate(zip(rows, rights, strict=True)):
                np.maximum(right - others[r] @ rows, 0.0, out=row)
        return rows.T


def _least_squares(source: Matrix, product: Matrix) -> Matrix | None:
    """Return the rows of least squares; None where the equations are singular, or not finite."""
    try:
        inverse = np.linalg.inv(product)
    except np.linalg.LinAlgError:
        return None
    size = np.vdot(product, product) * np.vdot(inverse, inverse)
    return source @ ((inverse + inverse.T) / 2) if size <= CONDITION**2 else None
