"""Equations whose solutions are constrained, on the host, whatever device has the rows; see `small`.

Columns have unit 2-norm whenever the next mode is solved: so a ridge is the same for all modes, and all Gram matrices
have ones on their diagonal, or zeros.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from .base import Device
from .equations import NOT_FINITE, Terms
from .nonnegative import System
from .small import HostEquations, Matrix, sums_of
from .solve import Sums

FAR_OFF = 2.0**20  # times the tensor's norm, at most, for that of a start: it sets the size of rounding errors


class ConstrainedEquations(HostEquations):
    """See `Equations`, and there are some more.

    Attributes
    ----------
    system : System
        What rows without negative numbers are to minimise; `prepare` makes it for the modes that have such.
    """

    def __init__(self, device: Device, terms: Terms, ridge: Sequence[float], nonnegative: Sequence[int], last: int):
        """`last` is the mode that is solved last in an iteration."""
        super().__init__(device, terms)
        rank = terms.rank
        self._ridge, self._nonnegative, self._last = ridge, nonnegative, last
        self.system = System(*(device.zeros(shape, np.float64) for shape in ((rank, rank), (rank,), (rank,))))
        self._weights, self._mode = np.ones(rank), last

    @property
    def weights(self) -> Matrix:
        """The norms of the components, (R,)."""
        return self._weights

    def sums(self, mode: int) -> Sums:
        return sums_of(self.totals, self._terms, mode, self._last)

    def start(self) -> None:
        """Take the norms out of all columns, once the Gram matrices are held."""
        state, self._weights = self._state, np.ones(self._terms.rank)
        for mode, gram in enumerate(state.grams):
            length = _or_one(np.sqrt(np.diag(gram)))
            state.norms[mode] *= length
            state.scales[mode] = scale = state.scales[mode] / length
            gram *= np.outer(scale, scale)  # as `hold` does
            self._weights *= length
        model = np.sqrt(self._weights @ np.multiply.reduce(state.grams) @ self._weights)
        self._weights *= min(1.0, FAR_OFF * self._terms.norm / max(model, np.finfo(np.float64).tiny))

    def go_on(self, weights: Matrix) -> None:
        """Take these weights, of factor matrices whose norms were taken out before."""
        self._weights = weights.copy()

    def prepare(self, mode: int, double: bool = False) -> None:
        self._mode = mode
        if mode not in self._nonnegative:
            super().prepare(mode, double)
            return
        self.totals.fill(0)
        state = self._state
        state.divisor[...] = state.norms[mode] * state.scales[mode]
        self._prepare_system(state.scales[mode] * self._weights / state.divisor)

    def _prepare_system(self, begin: Matrix) -> None:
        divisor, product = self._state.divisor, self._product(self._mode)
        if not np.all(np.isfinite(product)):
            self._raise(NOT_FINITE)
            return
        product[np.diag(super()._product(self._mode)) == 0] = (
            0  # columns that another mode has lost: nothing tells them
        )
        right = self._other_scales(self._mode) * divisor
        for place, numbers in zip(self.system, (product * np.outer(divisor, divisor), right, begin), strict=True):
            place[...] = self._device.to_device(np.ascontiguousarray(numbers))

    def _product(self, mode: int) -> Matrix:
        product = super()._product(mode)
        product.flat[:: len(product) + 1] += self._ridge[mode]
        return product

    def widen(self) -> None:
        divisor = self._state.divisor.copy()
        super().widen()
        if self._mode in self._nonnegative:
            self._prepare_system(divisor / self._state.divisor)

    def _take_out(self, mode: int, gram: Matrix, length: Matrix) -> None:
        super()._take_out(mode, gram, np.sqrt(np.diag(gram)) * self._state.divisor)
        self._weights = self._state.norms[mode].copy()

    def penalty(self, ridge: float) -> float:
        """Return `ridge` times the squared norms of the components, relative to that of the tensor."""
        lengths = np.diag(np.multiply.reduce(self._state.grams))
        return float(ridge * (self._weights**2 @ lengths) / self._terms.norm**2)


def _or_one(length: Matrix) -> Matrix:
    return np.where(length > 0, length, 1.0)
