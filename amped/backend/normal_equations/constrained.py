"""Equations whose solutions are constrained, of which the host decides what becomes of them; see `small`."""

from __future__ import annotations

import numpy as np

from ..device import Array, Device
from ..ops.equations import NOT_FINITE, ConstraintBounds, Terms
from ..ops.nonnegative import System
from ..ops.solve import Sums
from .host import SQUARES, EquationsState, HostEquations, Matrix, sums_of

FAR_OFF = 2.0**20  # times the tensor's norm, at most, for that of a start: it sets the size of rounding errors


class HostConstrained(HostEquations):
    """See `ConstrainedEquations`."""

    def __init__(self, device: Device, terms: Terms, bounds: ConstraintBounds) -> None:
        super().__init__(device, terms)
        rank = terms.rank
        self._ridge, self._nonnegative, self._mode = bounds.ridge, bounds.nonnegative, bounds.last
        self._last = bounds.last
        self.system = System(*(device.zeros(shape, np.float64) for shape in ((rank, rank), (rank,), (rank,))))

    @property
    def weights(self) -> Matrix:
        """The norms of the components, (R,)."""
        return self._state.weights  # type: ignore[no-any-return]

    def sums(self, mode: int) -> Sums:
        return sums_of(self.totals, self._terms, mode, self._last)

    def start(self) -> None:
        state = self._state
        state.grams[...] = self._down(self._grams)
        take_lengths_out(state, self._terms.norm)
        self._grams[...] = self._up(state.grams)

    def go_on(self, weights: Matrix) -> None:
        self._state.weights[...] = weights

    def prepare(self, mode: int, double: bool = False) -> None:
        self._mode = mode
        if mode not in self._nonnegative:
            super().prepare(mode, double)
            return
        self.totals.fill(0)
        state = self._state
        state.divisor[...] = state.norms[mode] * state.scales[mode]
        self._prepare_system(state.scales[mode] * state.weights / state.divisor)

    def _prepare_system(self, begin: Matrix) -> None:
        divisor, product = self._up(self._state.divisor), self._product(self._mode)
        if not bool(self._xp.all(self._xp.isfinite(product))):
            self._raise(NOT_FINITE)
            return
        lost = super()._product(self._mode).diagonal() == 0  # columns, by another mode: nothing tells them
        product[lost] = 0
        right = self._up(self._other_scales(self._mode)) * divisor
        found = product * (divisor[:, None] * divisor), right, self._up(begin)
        for place, numbers in zip(self.system, found, strict=True):
            place[...] = numbers

    def _product(self, mode: int) -> Array:
        product, each = super()._product(mode), self._xp.arange(self._terms.rank)
        product[each, each] += self._ridge[mode]
        return product

    def widen(self) -> None:
        divisor = self._state.divisor.copy()
        super().widen()
        if self._mode in self._nonnegative:
            self._prepare_system(divisor / self._state.divisor)

    def _take_out(self, mode: int, about: Matrix, length: Matrix) -> None:
        super()._take_out(mode, length, length)
        self._state.weights[...] = self._state.norms[mode]

    def fit(self, exact: bool = False) -> None:
        super().fit(exact)
        state = self._state
        state.facts[SQUARES] = state.weights**2 @ self._down(self._xp.prod(self._grams, axis=0).diagonal())


def take_lengths_out(state: EquationsState, norm: float) -> None:
    """Take the norms out of all columns; `norm` is that of the tensor. The state is in host memory."""
    state.weights[...] = 1.0
    for mode, gram in enumerate(state.grams):
        length = np.sqrt(np.diag(gram))
        length[~(length > 0)] = 1.0
        state.norms[mode] *= length
        state.scales[mode] /= length
        gram *= np.outer(1 / length, 1 / length)
        state.weights *= length
    model = np.sqrt(state.weights @ np.multiply.reduce(state.grams) @ state.weights)
    state.weights *= min(1.0, FAR_OFF * norm / max(model, np.finfo(np.float64).tiny))
