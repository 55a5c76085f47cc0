"""Small matrices on the host, in NumPy, whatever device has the rows; see `equations`."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

from . import rows
from .base import Array, Device
from .equations import (
    ACCURACY,
    CONDITION,
    NEAR,
    NEARBY,
    NOISY,
    NOT_FINITE,
    RANGE,
    ROUNDING,
    Equations,
    Provider,
    Terms,
    Told,
)  # fmt: skip
from .solve import Sums

Matrix = NDArray[np.float64]
VANISHED = 1e-30  # of the longest component: shorter ones are of no consequence


class HostEquations:
    """See `Equations`. Totals come from the device, and the inverse goes there: the host waits for each."""

    memory: Array | None = None
    told_bytes = 0

    def __init__(self, device: Device, terms: Terms) -> None:
        self._device, self._terms = device, terms
        order, rank = terms.order, terms.rank
        self._grams = np.zeros((order, rank, rank))
        self._norms, self._scales, self._divisor = np.ones((order, rank)), np.ones((order, rank)), np.ones(rank)
        self._flags, self._iterations, self._fit, self._best = 0, 0, np.nan, 0.0
        self.inverse = device.zeros((rank, rank), np.float64)
        self.totals = device.zeros((rank + 2 + terms.parts, rank), np.float64)
        self.dots = device.zeros((1, rank), np.float64)

    def sums(self, mode: int) -> Sums:
        return sums_of(self.totals, self._terms, mode)

    def load(self, told: Told, best: float) -> None:
        self._norms, self._scales, self._flags = told.norms.copy(), told.scales.copy(), 0
        self._iterations, self._fit, self._best = told.iterations, told.fit, best

    def hold(self, mode: int) -> None:
        scale = self._scales[mode]
        self._grams[mode] = self._down(self.totals)[: scale.size] * np.outer(scale, scale)

    def prepare(self, mode: int, double: bool = False) -> None:
        others = [m for m in range(self._terms.order) if m != mode]
        product = np.multiply.reduce(self._grams[others])
        self.totals.fill(0)
        if not np.all(np.isfinite(product)):
            self._flags |= NOT_FINITE
            return
        most = np.inf if double else noise_limit(self._terms, self._fit)
        inverse, condition = inverted(product, self._terms.cutoff, most)
        if condition > most:
            self.totals[self._terms.rank + 1] = 1.0
        self._divisor = self._norms[mode] * self._scales[mode]
        inverse *= np.multiply.reduce(self._scales[others])[:, None]
        inverse /= self._divisor
        self._up(inverse)

    def invert(self, mode: int, double: bool = False) -> None:
        """See `Equations`: `prepare` has done so."""

    def widen(self) -> None:
        largest = self._down(self.totals)[self._terms.rank + 2 :].max(axis=0)
        wider = widened(largest, self._divisor)
        self._up(self._down(self.inverse) * (self._divisor / wider))
        self._divisor = wider
        self.totals.fill(0)

    def finish(self, mode: int, again: bool = False) -> None:
        totals, rank, most = self._down(self.totals), self._terms.rank, self._terms.most
        gram, largest = totals[:rank], totals[rank + 2 :].max(axis=0)
        if totals[rank + 1].any():
            self._flags |= NOISY
        elif not again and not np.all((largest == 0) | ((largest > 1 / most) & (largest < most))):
            self._flags |= RANGE  # products could overflow
        elif not np.all(np.isfinite(gram)):
            self._flags |= NOT_FINITE
        else:
            first, divisor = not self._iterations, self._divisor
            length = np.sqrt(np.diag(gram)) * divisor if first else np.maximum(largest * divisor, 1.0)
            self._norms[mode] = np.where(length > 0, length, 1.0)
            self._scales[mode] = scale = divisor / self._norms[mode]
            self._grams[mode] = gram * np.outer(scale, scale)

    def multiply(self, source: Array, target: Array) -> None:
        self.dots.fill(0)
        rows.add_dots(self._device.xp, source, target, self.dots[0])

    def fit(self, exact: bool = False) -> None:
        if exact and not self._flags & NEAR:
            return
        norm, weights = self._terms.norm, self._norms[-1]
        squared = weights @ np.multiply.reduce(self._grams) @ weights
        dots = self._down(self.dots)[0] if exact else self._down(self.totals)[self._terms.rank]
        parts = weights * np.multiply.reduce(self._scales) * dots
        # ||X - M|| / ||X|| from ||X||, ||M||**2 and the components' parts of <X, M>
        distance = float(np.sqrt(np.maximum(0.0, norm**2 + squared - 2 * parts.sum())) / norm)
        # A change d of the squared distance changes the distance by d / 2 / distance.
        error = ROUNDING * float(np.abs(parts).sum()) / norm**2
        if not np.isfinite(distance):
            self._flags |= NOT_FINITE
        elif self._terms.gains and not exact and (error > ACCURACY * distance or self._best > NEARBY):
            self._flags |= NEAR
        else:
            self._fit, self._best, self._flags = 1 - distance, max(self._best, 1 - distance), self._flags & ~NEAR
            self._iterations += 1

    def told(self) -> Told:
        flags, self._flags = self._flags, self._flags & NEAR
        return Told(flags, self._iterations, self._fit, self._norms.copy(), self._scales.copy())

    def read(self, memory: NDArray[np.uint8]) -> Told:
        """See `Equations`: there is no such memory."""
        raise AssertionError("these equations are on the host")

    def keep(self, source: Array, target: Array) -> None:
        """See `Equations`: as `read`."""
        raise AssertionError("these equations are on the host")

    def _down(self, array: Array) -> Matrix:
        return np.asarray(self._device.to_host(array))

    def _up(self, inverse: Matrix) -> None:
        self.inverse[...] = self._device.to_device(inverse)


class OnHost:
    """See `Provider`; suits all."""

    def __init__(self, device: Device) -> None:
        self._device = device

    def suits(self, rank: int) -> bool:
        return True

    def prepare(self, rank: int, dtype: np.dtype[Any]) -> None:
        """See `Provider`: nothing is compiled."""

    def bytes(self, order: int, rank: int, parts: int) -> int:
        return 8 * rank * (2 * rank + parts + 3)

    def make(self, terms: Terms, dtype: np.dtype[np.floating]) -> Equations:
        return HostEquations(self._device, terms)


def providers(device: Device) -> Sequence[Provider]:
    """Return the providers of a device that has none of its own."""
    return [OnHost(device)]


def sums_of(totals: Array, terms: Terms, mode: int) -> Sums:
    """Return where the rows of a mode are added up; inner products count for the last one."""
    rank = terms.rank
    last = mode == terms.order - 1
    return Sums(totals[:rank], totals[rank + 2 + terms.part], totals[rank] if last else None)


def noise_limit(terms: Terms, fit: float) -> float:
    """Return up to which condition number single precision suffices after an iteration with that fit."""
    return terms.noise * (1.0 if np.isnan(fit) else max(1 - fit, ACCURACY))


def widened(largest: Any, divisor: Any) -> Any:
    """Return what columns are to be divided by whose largest stored numbers were out of range.

    It differs from `divisor` by powers of two: so rows are rounded as if they were not divided. A component that has
    all but vanished beside the others is not enlarged: its scale would fall from mode to mode until it is 0.
    """
    lengths = largest * divisor
    grown = divisor * np.exp2(np.round(np.log2(np.where(largest > 0, largest, 1.0))))
    return np.where(lengths > VANISHED * lengths.max(), grown, 1.0)


def inverted(gram: Matrix, cutoff: float, most: float) -> tuple[Matrix, float]:
    """Return the (pseudo-)inverse of a positive semidefinite matrix, and its condition number or a larger number.

    It is exact where it is above `most`, and eigenvalues below `cutoff` times the largest count as 0.
    """
    try:
        inverse = np.linalg.inv(gram)
    except np.linalg.LinAlgError:
        return pseudo_inverse(gram, cutoff)
    condition = float(np.linalg.norm(gram) * np.linalg.norm(inverse))
    if condition <= min(CONDITION, most):
        return (inverse + inverse.T) / 2, condition
    return pseudo_inverse(gram, cutoff)


def pseudo_inverse(gram: Matrix, cutoff: float) -> tuple[Matrix, float]:
    """Return the Moore-Penrose inverse of a symmetric positive semidefinite matrix, and its condition number.

    It solves rank-deficient least squares with the smallest norm, so that nothing becomes NaN. Eigenvalues below
    `cutoff` times the largest count as 0.
    """
    values, vectors = np.linalg.eigh(gram)  # ascending
    kept = values > cutoff * values[-1]
    values, vectors = values[kept], vectors[:, kept]
    return (vectors / values) @ vectors.T, values[-1] / values[0] if values.size else 1.0
