"""Iterations of CP-ALS on one CPU without compiled code, each a short sequence of NumPy operations.

For small tensors, function calls take longer than the arithmetic. All products are in double precision. Matrices are
transposed, (R, rows), so that NumPy's inner loops run over rows instead of a few components.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from partitioner.array_types import Floats

from ..backend.normal_equations.hals import SETTLED
from ..backend.normal_equations.state import EquationsState
from ..backend.ops.equations import CONDITION, EquationsStatus, RunStart
from ..operators.base import Operator, in_turn
from ..operators.dense.direct import DirectDense
from .constraints import SWEEPS, Constraints
from .driver import never
from .updates import grams_of

Matrix = NDArray[np.float64]


class PlainStatus(NamedTuple):
    """The state after an iteration.

    `mode` is the next mode to solve: 0 after a complete iteration, else the mode at which it was stopped, or whose
    equations are singular or not finite; then `fit` is NaN.
    """

    mode: int
    fit: float
    squares: float
    weights: Matrix
    stopped: bool = False


class PlainAls:
    """Iterates on the arrays of a run; see `CpAls`. Stored columns are normalised, so that their scales are 1."""

    def __init__(self, operator: Operator, constraints: Constraints) -> None:
        self._operator, self._constrained, order = operator, bool(constraints), operator.order
        self.modes: Sequence[int] = constraints.solved(order) if constraints else range(order)
        self._sweeps = constraints.bounds(order).sweeps
        self._ridge, self._nonnegative = constraints.ridge or (0.0,) * order, constraints.nonnegative
        self._others = [[m for m in range(order) if m != mode] for mode in range(order)]
        self._next_modes = [in_turn(mode, order, self.modes) for mode in range(order)]
        self._direct = operator if isinstance(operator, DirectDense) else None
        self._diagonal = np.arange(operator.ranks[0])
        self._targets: list[Floats] = [operator.owned(mode).T for mode in range(order)]
        self._hals = {mode: _HalsBuffers(*self._targets[mode].shape) for mode in self._nonnegative}
        self._grams = list[Matrix]()

    @staticmethod
    def suits(operator: Operator) -> bool:
        """Return whether a single rank, the only one of the run, computes on the host without compiled code."""
        device, everyone = operator.machine.device, operator.machine.everyone
        return device.on_host and not device.code_bytes and everyone.size == 1

    def load(self, status: EquationsStatus, best: float, weights: Matrix | None) -> dict[str, Matrix]:
        """Continue from the operator's factor matrices; see `LeastSquares.load`. Return the arrays of the run."""
        operator = self._operator
        state = EquationsState(np, operator.order, operator.ranks[0])
        state.begin(RunStart(status, best, grams_of(operator), weights), operator.norm, self._constrained)
        self._grams = list(state.grams)
        return {"norms": state.norms, "scales": state.scales, "weights": state.weights}

    def reload(self, modes: Sequence[int]) -> None:
        """Continue from the operator's factor matrices, of which those of `modes` have changed."""
        for mode in modes:
            stored = self._targets[mode].astype(np.float64, copy=False)
            self._grams[mode] = stored @ stored.T

    def iteration(
        self, norms: Matrix, scales: Matrix, weights: Matrix, first: bool, stop: Callable[[], bool] = never
    ) -> PlainStatus:
        """Solve all modes, unless `stop` ends the iteration between two; update their norms and scales in place.

        In the `first` iteration, as under constraints, columns are divided by their 2-norms.
        """
        scaled = not (scales == 1.0).all()
        for mode in self.modes:
            if mode > self.modes[0] and stop():
                return PlainStatus(mode, np.nan, 0.0, weights, stopped=True)
            solution = self._solve(mode, norms, scales if scaled else None, weights, first)
            if solution is None:
                return PlainStatus(mode, np.nan, 0.0, weights)
            weights, inner = solution
            scales[mode] = 1.0
        model, norm = self._gram_product(self._others[mode]) * self._grams[mode], self._operator.norm
        squared = float(weights @ model @ weights)
        distance = max(0.0, norm**2 + squared - 2 * float(weights @ inner)) ** 0.5 / norm
        squares = float(weights**2 @ model.diagonal()) if self._constrained else 0.0
        return PlainStatus(0, 1 - distance, squares, weights)

    def _gram_product(self, modes: Sequence[int]) -> Matrix:
        """Return the elementwise product of the Gram matrices of some modes."""
        first, *rest = modes
        product = self._grams[first]
        for mode in rest:
            product = product * self._grams[mode]
        return product

    def _mttkrp(self, mode: int) -> Matrix:
        """Return the transposed MTTKRP of a mode."""
        if self._direct is not None:
            return self._direct.transposed_mttkrp(mode)
        rows: Matrix = self._operator.mttkrp(mode, None, self._next_modes[mode])
        return rows.T

    def _solve(
        self, mode: int, norms: Matrix, scales: Matrix | None, weights: Matrix, first: bool
    ) -> tuple[Matrix, Matrix] | None:
        """Solve a mode; return its norms and inner products; None if its equations are singular or not finite.

        `scales` is None if all scales are 1.
        """
        source, product, target = self._mttkrp(mode), self._gram_product(self._others[mode]), self._targets[mode]
        if scales is not None:
            source = source * scales[self._others[mode]].prod(axis=0)[:, None]
        if ridge := self._ridge[mode]:
            product = product.copy()
            product[self._diagonal, self._diagonal] += ridge
        if mode in self._nonnegative:
            start = target * (weights if scales is None else scales[mode] * weights)[:, None]
            rows = self._hals[mode].solve(source, product, start, self._sweeps)
        else:
            rows = _least_squares(source, product)
        if rows is None:
            return None
        norm = _two_norms(rows) if first or self._constrained else _limited_maxima(rows)
        if not math.isfinite(norm.sum()):
            return None
        np.divide(rows, norm[:, None], out=target, casting="same_kind")
        self._operator.changed(mode)
        stored = target.astype(np.float64, copy=False)
        norms[mode], self._grams[mode] = norm, stored @ stored.T
        return norm, np.vecdot(source, stored)


def _two_norms(rows: Matrix) -> Matrix:
    """Return the 2-norm of each row; 1 for rows of zeros."""
    norm: Matrix = np.sqrt(np.vecdot(rows, rows))
    norm[norm == 0] = 1.0
    return norm


def _limited_maxima(rows: Matrix) -> Matrix:
    """Return the largest magnitude of each row, but at least 1."""
    largest: Matrix = np.maximum.reduce(np.abs(rows), axis=1)
    return np.maximum(largest, 1.0)


def _least_squares(source: Matrix, product: Matrix) -> Matrix | None:
    """Return the least-squares solution; None if the equations are singular or not finite."""
    try:
        inverse = np.linalg.inv(product)
    except np.linalg.LinAlgError:
        return None
    squared_condition = np.vdot(product, product) * np.vdot(inverse, inverse)
    return (inverse + inverse.T) * 0.5 @ source if squared_condition <= CONDITION**2 else None


class _HalsBuffers:
    """HALS (see `backend.normal_equations.hals`) for one mode, in arrays that all iterations share.

    Component ``r`` becomes ``max(0, coefficients[r] @ stack)``, where `stack` has the components and, below them, the
    right-hand sides.
    """

    def __init__(self, rank: int, rows: int) -> None:
        self._rank, self._coefficients, self._stack = rank, np.zeros((rank, 2 * rank)), np.empty((2 * rank, rows))
        self._steps = list(zip(self._coefficients, self._stack[:rank], strict=True))
        self._component = np.empty(rows)

    def solve(self, source: Matrix, product: Matrix, start: Matrix, sweeps: int) -> Matrix | None:
        """Return rows without negative numbers; None where a component has vanished."""
        pivots = product.diagonal()
        if not pivots.min() > 0:
            return None
        rank, each, stack = self._rank, range(self._rank), self._stack
        np.divide(product, -pivots[:, None], out=self._coefficients[:, :rank])
        self._coefficients[each, each] = 0.0
        self._coefficients[each, range(rank, 2 * rank)] = 1 / pivots
        rows = stack[:rank]
        np.multiply(start, source.any(axis=0), out=rows)
        stack[rank:] = source
        until_settled, component = sweeps > SWEEPS, self._component
        for _ in range(sweeps):
            before = rows.copy() if until_settled else None
            for coefficients, row in self._steps:
                np.dot(coefficients, stack, component)
                np.maximum(component, 0.0, out=row)
            if before is not None and not (np.abs(rows - before) > SETTLED * rows.max(axis=0)).any():
                break
        return rows
