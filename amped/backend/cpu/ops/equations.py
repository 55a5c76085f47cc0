"""Normal equations on the CPU, for one run, in compiled code and NumPy."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
from numpy.typing import NDArray

from partitioner.array_types import FloatDType

from ... import rows
from ...device import Array
from ...normal_equations.inverse import inverted, noise_limit, widened
from ...normal_equations.row_solvers import RowSolvers
from ...normal_equations.state import BEST, FIT, FLAGS, ITERATIONS, SQUARES, EquationsState, Matrix, sums_of
from ...ops.equations import (
    ACCURACY,
    CONDITION,
    EQUATIONS,
    NEAR,
    NEARBY,
    NOT_FINITE,
    ROUNDING,
    Equations,
    EquationsCase,
    EquationsProvider,
    EquationsStatus,
    RunStart,
    RunStopped,
)
from ...ops.nonnegative import System
from ..device import CpuDevice
from ..kernels import normal_equations

MOST_COMPILED = 96  # columns; with more, LAPACK is faster than the compiled elimination


class CpuEquations:
    """See `Equations`."""

    memory: Array | None = None
    reported: Array | None = None

    def __init__(self, device: CpuDevice, case: EquationsCase) -> None:
        self._terms, self._bounds = case.terms, case.bounds
        rank, sizes = case.terms.rank, ((0, 0), (0,), (0,))
        self._state = EquationsState(np, case.terms.order, rank)
        self.inverse = device.zeros((rank, rank), np.float64)
        if case.bounds.nonnegative:
            sizes = ((rank, rank), (rank,), (rank,))
        self.system = System(*(device.zeros(shape, np.float64) for shape in sizes))
        self.totals = device.zeros((1, rank + 2 + case.terms.parts, rank), np.float64)
        self.dots = device.zeros((1, 1, rank), np.float64)
        self._totals, self._sums = self.totals[0], sums_of(self.totals, case.terms, case.bounds.last)
        self._rows = RowSolvers(device, case)
        self.allocates = self._rows.allocates

    @property
    def _weights(self) -> Matrix:
        """The norms of the components after an iteration; (R,)."""
        weights: Matrix = self._state.weights if self._bounds.constrained else self._state.norms[-1]
        return weights

    def _raise(self, flag: int) -> None:
        self._state.facts[FLAGS] = int(self._state.facts[FLAGS]) | flag

    def put(self, place: int, columns: slice, start: RunStart) -> None:
        self._state.begin(start, self._terms.norm, self._bounds.constrained)

    def take(self, place: int) -> RunStopped:
        return RunStopped(self.status()[0], 0, self._weights.copy())

    def prepare(self, mode: int, double: bool = False) -> None:
        state = self._state
        if mode in self._bounds.nonnegative:
            self._totals.fill(0)
            state.divisor[...] = state.norms[mode] * state.scales[mode]
            self._prepare_system(mode, state.scales[mode] * state.weights / state.divisor)
            return
        most = np.inf if double else noise_limit(self._terms, state.facts[FIT])
        if self._bounds.constrained or self._terms.rank > MOST_COMPILED:
            self._invert(mode, most)
            return
        columns = state.grams, state.norms, state.scales
        condition = normal_equations.prepare(*columns, mode, self._totals, state.divisor, self.inverse)
        if not condition <= min(CONDITION, most):
            self._invert(mode, most)

    def _prepare_system(self, mode: int, begin: Matrix) -> None:
        """Write the systems of non-negative rows, which start at the old rows times `begin`."""
        state, system = self._state, self.system
        own = state.divisor, self._bounds.ridge[mode]
        if not normal_equations.constrain(state.grams, state.scales, mode, *own, system.gram, system.right):
            self._raise(NOT_FINITE)
        system.begin[...] = begin

    def _invert(self, mode: int, most: float) -> None:
        """Compute the inverse with LAPACK; equations with a condition number above `most` are `NOISY`."""
        state, rank, others = self._state, self._terms.rank, [m for m in range(self._terms.order) if m != mode]
        product = np.prod(state.grams[others], axis=0)
        if self._bounds.constrained:
            product[np.arange(rank), np.arange(rank)] += self._bounds.ridge[mode]
        self._totals.fill(0)
        if not np.all(np.isfinite(product)):
            self._raise(NOT_FINITE)
            return
        inverse, condition = inverted(product, most, np)
        if condition > most:
            self._totals[rank + 1] = 1.0
        state.divisor[...] = state.norms[mode] * state.scales[mode]
        inverse *= np.multiply.reduce(state.scales[others])[:, None]
        inverse /= state.divisor
        self.inverse[...] = inverse

    def invert(self, mode: int, double: bool = False) -> None:
        """See `Equations`: `prepare` has computed the inverse."""

    def solve(self, mode: int, source: Array, target: Array, again: bool = False) -> None:
        self._rows.run(mode, source, self.inverse, self.system, target, self._sums[mode], again)

    def widen(self, mode: int) -> None:
        before = self._state.divisor.copy()
        wider = widened(self._totals[self._terms.rank + 2 :].max(axis=0), before)
        self.inverse *= before / wider
        self._state.divisor[...] = wider
        self._totals.fill(0)
        if mode in self._bounds.nonnegative:
            self._prepare_system(mode, before / wider)

    def finish(self, mode: int, again: bool = False) -> None:
        state, constrained = self._state, self._bounds.constrained
        columns, most = (state.norms, state.scales, state.grams), self._terms.most
        unit = constrained or state.facts[ITERATIONS] == 0
        if flag := normal_equations.finish(self._totals, state.divisor, mode, *columns, unit, again, most):
            self._raise(flag)
        elif constrained:
            state.weights[...] = state.norms[mode]

    def measure(self, norm: float) -> None:
        if norm != self._terms.norm:
            self._terms = self._terms._replace(norm=norm)

    def multiply(self, source: Array, target: Array) -> None:
        self.dots.fill(0)
        rows.add_dots(np, source, target, self.dots[0, 0])

    def fit(self, exact: bool = False) -> None:
        facts, flags = self._state.facts, int(self._state.facts[FLAGS])
        if exact and not flags & NEAR:
            return
        norm, weights = self._terms.norm, self._weights
        product = np.prod(self._state.grams, axis=0)
        squared = float(weights @ product @ weights)
        dots = self.dots[0, 0] if exact else self._totals[self._terms.rank]
        parts = weights * np.multiply.reduce(self._state.scales) * dots
        # ||X - M|| / ||X|| from ||X||, ||M||**2 and the components' parts of <X, M>
        distance = float(np.sqrt(np.maximum(0.0, norm**2 + squared - 2 * parts.sum())) / norm)
        # A change d of the squared distance changes the distance by d / 2 / distance.
        error = ROUNDING * float(np.abs(parts).sum()) / norm**2
        if not np.isfinite(distance):
            self._raise(NOT_FINITE)
        elif self._terms.gains and not exact and (error > ACCURACY * distance or facts[BEST] > NEARBY):
            self._raise(NEAR)
        else:
            facts[[FIT, BEST, FLAGS]] = 1 - distance, max(facts[BEST], 1 - distance), flags & ~NEAR
            facts[ITERATIONS] += 1
        if self._bounds.constrained:
            facts[SQUARES] = weights**2 @ product.diagonal()

    def report(self) -> None:
        """See `Equations`: the status is in host memory."""

    def status(self) -> list[EquationsStatus]:
        result = self.read(self._state.memory)
        self._state.facts[FLAGS] = result[0].flags & NEAR
        return result

    def read(self, memory: NDArray[np.uint8]) -> list[EquationsStatus]:
        return [self._state.status(memory)]

    def snapshot(self, source: Array, target: Array) -> None:
        if not self._state.facts[FLAGS]:
            target[...] = source


class CpuEquationsProvider:
    """See `EquationsProvider`; supports all ranks."""

    batch_columns = 0

    def __init__(self, device: CpuDevice) -> None:
        self._device = device

    def suits(self, rank: int) -> bool:
        return True

    def prepare(self, rank: int, dtype: FloatDType, several: bool = False, nonnegative: bool = False) -> None:
        """See `EquationsProvider`: compiled code is cached on disk."""

    def bytes(self, order: int, rank: int, parts: int, places: int = 1, rows: int = 0) -> int:
        return 8 * rank * (2 * rank + parts + 3)

    def make(self, case: EquationsCase) -> Equations:
        return CpuEquations(self._device, case)


@EQUATIONS.provider("cpu")
def providers(device: CpuDevice) -> Sequence[EquationsProvider]:
    """Return the providers of the operation."""
    return [CpuEquationsProvider(device)]
