"""Normal equations of one run, of which the host decides what becomes of them, whatever device they are on."""

from __future__ import annotations

from types import ModuleType

import numpy as np
from numpy.typing import NDArray

from .. import rows
from ..device import Array, Device
from ..ops.equations import (
    ACCURACY,
    NEAR,
    NEARBY,
    NOISY,
    NOT_FINITE,
    RANGE,
    ROUNDING,
    Case,
    Equations,
    EquationsStatus,
    RunStart,
    RunStopped,
)
from ..ops.nonnegative import System
from .inverse import inverted, noise_limit, widened
from .row_solvers import RowSolvers
from .state import BEST, FIT, FLAGS, ITERATIONS, SQUARES, EquationsState, Matrix, sums_of

INVERTING = 6  # matrices that are there for a while


class HostEquations:
    """See `Equations`. Matrices are on the device, and computed there; vectors are the host's, which waits for them."""

    memory: Array | None = None
    reported: Array | None = None

    def __init__(self, device: Device, case: Case) -> None:
        self._device, self._terms, self._bounds = device, case.terms, case.bounds
        self._xp: ModuleType = device.xp
        order, rank = case.terms.order, case.terms.rank
        self._state = EquationsState(np, order, rank)
        self._grams = self._state.grams if device.on_host else device.zeros((order, rank, rank), np.float64)
        self.inverse = device.zeros((rank, rank), np.float64)
        shapes = ((rank, rank), (rank,), (rank,)) if case.bounds.nonnegative else ((0, 0), (0,), (0,))
        self.system = System(*(device.zeros(shape, np.float64) for shape in shapes))
        self.totals = device.zeros((1, rank + 2 + case.terms.parts, rank), np.float64)
        self.dots = device.zeros((1, 1, rank), np.float64)
        self._totals, self._rows = self.totals[0], RowSolvers(device, case)
        self.allocates = self._rows.allocates

    @property
    def _weights(self) -> Matrix:
        """The norms of the components, once an iteration is done; (R,)."""
        weights: Matrix = self._state.weights if self._bounds.constrained else self._state.norms[-1]
        return weights

    def _raise(self, flag: int) -> None:
        self._state.facts[FLAGS] = int(self._state.facts[FLAGS]) | flag

    def put(self, place: int, columns: slice, start: RunStart) -> None:
        self._state.begin(start, self._terms.norm, self._bounds.constrained)
        if not self._device.on_host:
            self._grams[...] = self._up(self._state.grams)

    def take(self, place: int) -> RunStopped:
        return RunStopped(self.told()[0], 0, self._weights.copy())

    def prepare(self, mode: int, double: bool = False) -> None:
        state = self._state
        self._totals.fill(0)
        if mode in self._bounds.nonnegative:
            state.divisor[...] = state.norms[mode] * state.scales[mode]
            self._prepare_system(mode, state.scales[mode] * state.weights / state.divisor)
            return
        product = self._with_ridge(self._product(mode), mode)
        if not bool(self._xp.all(self._xp.isfinite(product))):
            self._raise(NOT_FINITE)
            return
        most = np.inf if double else noise_limit(self._terms, state.facts[FIT])
        inverse, condition = inverted(product, most, self._xp)
        if condition > most:
            self._totals[self._terms.rank + 1] = 1.0
        state.divisor[...] = state.norms[mode] * state.scales[mode]
        inverse *= self._up(self._other_scales(mode))[:, None]
        inverse /= self._up(state.divisor)
        self.inverse[...] = inverse

    def _prepare_system(self, mode: int, begin: Matrix) -> None:
        """Write what non-negative rows are to minimise; they are multiplied by `begin` first."""
        divisor, product = self._up(self._state.divisor), self._product(mode)
        lost = product.diagonal() == 0  # columns that are 0 in another mode: no equation determines them
        product = self._with_ridge(product, mode)
        if not bool(self._xp.all(self._xp.isfinite(product))):
            self._raise(NOT_FINITE)
            return
        product[lost] = 0
        right = self._up(self._other_scales(mode)) * divisor
        found = product * (divisor[:, None] * divisor), right, self._up(begin)
        for place, numbers in zip(self.system, found, strict=True):
            place[...] = numbers

    def _product(self, mode: int) -> Array:
        """Return the elementwise product of the other modes' Gram matrices."""
        return self._xp.prod(self._grams[[m for m in range(self._terms.order) if m != mode]], axis=0)

    def _with_ridge(self, product: Array, mode: int) -> Array:
        if self._bounds.constrained:
            each = self._xp.arange(self._terms.rank)
            product[each, each] += self._bounds.ridge[mode]
        return product

    def _other_scales(self, mode: int) -> Matrix:
        scales: Matrix = np.multiply.reduce(np.delete(self._state.scales, mode, axis=0))
        return scales

    def invert(self, mode: int, double: bool = False) -> None:
        """See `Equations`: `prepare` has done so."""

    def solve(self, mode: int, source: Array, target: Array, again: bool = False) -> None:
        sums = sums_of(self.totals, self._terms, mode == self._bounds.last)
        self._rows.run(mode, source, self.inverse, self.system, target, sums, again)

    def widen(self, mode: int) -> None:
        before = self._state.divisor.copy()
        largest = self._down(self._totals[self._terms.rank + 2 :].max(axis=0))
        wider = widened(largest, before)
        self.inverse *= self._up(before / wider)
        self._state.divisor[...] = wider
        self._totals.fill(0)
        if mode in self._bounds.nonnegative:
            self._prepare_system(mode, before / wider)

    def finish(self, mode: int, again: bool = False) -> None:
        totals, rank, most, state, xp = self._totals, self._terms.rank, self._terms.most, self._state, self._xp
        gram = totals[:rank]
        rows = totals[rank + 2 :].max(axis=0), gram.diagonal(), xp.abs(gram).max(axis=0), totals[rank + 1]
        largest, squares, numbers, noisy = self._down(xp.stack(rows))
        if noisy.any():
            self._raise(NOISY)
        elif not again and not np.all((largest == 0) | ((largest > 1 / most) & (largest < most))):
            self._raise(RANGE)  # products could overflow
        elif not np.all(np.isfinite(numbers)):
            self._raise(NOT_FINITE)
        else:
            unit = self._bounds.constrained or not state.facts[ITERATIONS]
            length = np.sqrt(squares) * state.divisor if unit else np.maximum(largest * state.divisor, 1.0)
            self._take_out(mode, length)

    def _take_out(self, mode: int, length: Matrix) -> None:
        """Divide the columns of a mode by `length`, where it is not 0, and keep their Gram matrix."""
        state = self._state
        state.norms[mode] = np.where(length > 0, length, 1.0)
        state.scales[mode] = state.divisor / state.norms[mode]
        scale = self._up(state.scales[mode])
        self._grams[mode] = self._totals[: self._terms.rank] * (scale[:, None] * scale)
        if self._bounds.constrained:
            state.weights[...] = state.norms[mode]

    def measure(self, norm: float) -> None:
        self._terms = self._terms._replace(norm=norm)

    def multiply(self, source: Array, target: Array) -> None:
        self.dots.fill(0)
        rows.add_dots(self._device.xp, source, target, self.dots[0, 0])

    def fit(self, exact: bool = False) -> None:
        facts, flags = self._state.facts, int(self._state.facts[FLAGS])
        if exact and not flags & NEAR:
            return
        norm, weights = self._terms.norm, self._weights
        product, on_device = self._xp.prod(self._grams, axis=0), self._up(weights)
        squared = float(on_device @ product @ on_device)
        dots = self._down(self.dots[0, 0] if exact else self._totals[self._terms.rank])
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
            facts[SQUARES] = weights**2 @ self._down(product.diagonal())

    def report(self) -> None:
        """See `Equations`: it is there."""

    def told(self) -> list[EquationsStatus]:
        found = self.read(self._state.memory)
        self._state.facts[FLAGS] = found[0].flags & NEAR
        return found

    def read(self, memory: NDArray[np.uint8]) -> list[EquationsStatus]:
        return [self._state.told(memory)]

    def keep(self, source: Array, target: Array) -> None:
        if not self._state.facts[FLAGS]:
            target[...] = source

    def _down(self, array: Array) -> Matrix:
        return np.asarray(self._device.to_host(array))

    def _up(self, array: Matrix) -> Array:
        return self._device.to_device(array)


class HostEquationsProvider:
    """See `EquationsProvider`; suits all."""

    several = 0

    def __init__(self, device: Device) -> None:
        self._device = device

    def suits(self, rank: int) -> bool:
        return True

    def prepare(self, rank: int, dtype: np.dtype[np.floating]) -> None:
        """See `EquationsProvider`: nothing is compiled."""

    def bytes(self, order: int, rank: int, parts: int, places: int = 1, rows: int = 0) -> int:
        matrices = 2 if self._device.on_host else 2 + order + INVERTING
        return 8 * rank * (matrices * rank + parts + 3)

    def make(self, case: Case) -> Equations:
        return HostEquations(self._device, case)
