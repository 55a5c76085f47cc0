"""Small matrices, of which the host decides what becomes of them, whatever device they are on; see `equations`."""

from __future__ import annotations

from itertools import accumulate, pairwise
from types import ModuleType
from typing import Any

import numpy as np
from numpy.typing import NDArray

from .. import rows
from ..device import Array, Device
from ..ops.equations import (  # fmt: skip
    ACCURACY,
    CONDITION,
    CUTOFF,
    NEAR,
    NEARBY,
    NOISY,
    NOT_FINITE,
    RANGE,
    ROUNDING,
    EquationsStatus,
    Terms,
)
from ..ops.solve import Sums

Matrix = NDArray[np.float64]
ITERATIONS, FIT, BEST, FLAGS, SQUARES, MODE, FACTS = range(7)
"""Facts: whole iterations, the fit of the last one, the best fit, flags, squared norms, the mode where a device raised
a flag; and how many there are."""
ALIGNED = 256 // 8  # doubles
VANISHED = 1e-30  # of the longest component: shorter ones are of no consequence


class EquationsState:
    """What equations know of the factor matrices, in one piece of memory: first what the host is told.

    Attributes
    ----------
    memory : (bytes,) uint8 array
        Of these, the first `told_bytes` are facts, norms and scales.
    facts : (FACTS,) array
    norms, scales : (N, R) arrays
        See `EquationsStatus`.
    divisor : (R,) array
        What the columns of the matrix that is solved now are divided by when they are stored.
    grams : (N, R, R) array
        The Gram matrices, of columns with their scales.
    weights : (R,) array
        The norms of the components, where equations are constrained.
    """

    def __init__(self, xp: ModuleType, order: int, rank: int, numbers: Array = None) -> None:
        """Take `numbers`, (`doubles`,), or memory of zeros."""
        numbers = xp.zeros(doubles(order, rank), np.float64) if numbers is None else numbers
        sizes = [FACTS, order * rank, order * rank, rank, order * rank * rank, rank]
        bounds = [0, *accumulate(sizes)]
        self.facts, norms, scales, self.divisor, grams, self.weights = (numbers[a:b] for a, b in pairwise(bounds))
        self.norms, self.scales = norms.reshape(order, rank), scales.reshape(order, rank)
        self.grams = grams.reshape(order, rank, rank)
        self.memory, self.told_bytes = numbers.view(np.uint8), 8 * bounds[3]

    def told(self, memory: NDArray[np.uint8]) -> EquationsStatus:
        """Return what a copy of the first bytes tells."""
        numbers = memory[: self.told_bytes].view(np.float64)
        facts, columns = numbers[:FACTS].tolist(), numbers[FACTS:].reshape(2, *self.norms.shape).copy()
        return EquationsStatus(
            int(facts[FLAGS]), int(facts[ITERATIONS]), facts[FIT], columns[0], columns[1], facts[SQUARES]
        )


class HostEquations:
    """See `Equations`. Matrices are on the device, and computed there; vectors are the host's, which waits for them."""

    memory: Array | None = None

    def __init__(self, device: Device, terms: Terms) -> None:
        self._device, self._terms, rank = device, terms, terms.rank
        self._xp: Any = device.xp
        self._state = EquationsState(np, terms.order, rank)
        self._grams = self._state.grams if device.on_host else device.zeros((terms.order, rank, rank), np.float64)
        self.told_bytes = self._state.told_bytes
        self.inverse = device.zeros((rank, rank), np.float64)
        self.totals = device.zeros((rank + 2 + terms.parts, rank), np.float64)
        self.dots = device.zeros((1, rank), np.float64)

    @property
    def weights(self) -> Matrix:
        """The norms taken out of the last factor matrix that was solved, once an iteration is done; (R,)."""
        last: Matrix = self._state.norms[-1]
        return last

    def _raise(self, flag: int) -> None:
        self._state.facts[FLAGS] = int(self._state.facts[FLAGS]) | flag

    def sums(self, mode: int) -> Sums:
        return sums_of(self.totals, self._terms, mode)

    def load(self, told: EquationsStatus, best: float) -> None:
        state = self._state
        state.norms[...], state.scales[...] = told.norms, told.scales
        state.facts[[ITERATIONS, FIT, BEST, FLAGS]] = told.iterations, told.fit, best, 0

    def hold(self, mode: int) -> None:
        self._hold(mode, self._state.scales[mode])

    def _hold(self, mode: int, scale: Matrix) -> None:
        """Keep the Gram matrix in `totals`, of columns with this scale."""
        on_device = self._up(scale)
        self._grams[mode] = self.totals[: scale.size] * (on_device[:, None] * on_device)

    def prepare(self, mode: int, double: bool = False) -> None:
        state, product = self._state, self._product(mode)
        self.totals.fill(0)
        if not bool(self._xp.all(self._xp.isfinite(product))):
            self._raise(NOT_FINITE)
            return
        most = np.inf if double else noise_limit(self._terms, state.facts[FIT])
        inverse, condition = inverted(product, most, self._xp)
        if condition > most:
            self.totals[self._terms.rank + 1] = 1.0
        state.divisor[...] = state.norms[mode] * state.scales[mode]
        inverse *= self._up(self._other_scales(mode))[:, None]
        inverse /= self._up(state.divisor)
        self.inverse[...] = inverse

    def _product(self, mode: int) -> Array:
        """Return what is inverted to solve a mode."""
        return self._xp.prod(self._grams[[m for m in range(self._terms.order) if m != mode]], axis=0)

    def _other_scales(self, mode: int) -> Matrix:
        scales: Matrix = np.multiply.reduce(np.delete(self._state.scales, mode, axis=0))
        return scales

    def invert(self, mode: int, double: bool = False) -> None:
        """See `Equations`: `prepare` has done so."""

    def widen(self) -> None:
        largest, divisor = self._down(self.totals[self._terms.rank + 2 :].max(axis=0)), self._state.divisor
        wider = widened(largest, divisor)
        self.inverse *= self._up(divisor / wider)
        divisor[...] = wider
        self.totals.fill(0)

    def finish(self, mode: int, again: bool = False) -> None:
        totals, rank, most, state, xp = self.totals, self._terms.rank, self._terms.most, self._state, self._xp
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
            length = np.sqrt(squares) * state.divisor
            about = np.maximum(largest * state.divisor, 1.0) if state.facts[ITERATIONS] else length
            self._take_out(mode, about, length)

    def _take_out(self, mode: int, about: Matrix, length: Matrix) -> None:
        """Divide the columns of a mode, which have a `length`, by `about` that, where it is not 0."""
        state = self._state
        state.norms[mode] = np.where(about > 0, about, 1.0)
        state.scales[mode] = scale = state.divisor / state.norms[mode]
        self._hold(mode, scale)

    def measure(self, norm: float) -> None:
        self._terms = self._terms._replace(norm=norm)

    def multiply(self, source: Array, target: Array) -> None:
        self.dots.fill(0)
        rows.add_dots(self._device.xp, source, target, self.dots[0])

    def fit(self, exact: bool = False) -> None:
        facts, flags = self._state.facts, int(self._state.facts[FLAGS])
        if exact and not flags & NEAR:
            return
        norm, weights = self._terms.norm, self.weights
        product, on_device = self._xp.prod(self._grams, axis=0), self._up(weights)
        squared = float(on_device @ product @ on_device)
        dots = self._down(self.dots[0] if exact else self.totals[self._terms.rank])
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

    def told(self) -> EquationsStatus:
        told = self.read(self._state.memory)
        self._state.facts[FLAGS] = told.flags & NEAR
        return told

    def read(self, memory: NDArray[np.uint8]) -> EquationsStatus:
        return self._state.told(memory)

    def keep(self, source: Array, target: Array) -> None:
        if not self._state.facts[FLAGS]:
            target[...] = source

    def _down(self, array: Array) -> Matrix:
        return np.asarray(self._device.to_host(array))

    def _up(self, array: Matrix) -> Array:
        return self._device.to_device(array)


def doubles(order: int, rank: int) -> int:
    """Return the size of the memory of a `EquationsState`."""
    return -(-(FACTS + rank * (2 * order + 2 + order * rank)) // ALIGNED) * ALIGNED


def sums_of(totals: Array, terms: Terms, mode: int, last: int | None = None) -> Sums:
    """Return where the rows of a mode are added up; inner products count for the one that is solved last."""
    rank = terms.rank
    dots = totals[rank] if mode == (terms.order - 1 if last is None else last) else None
    return Sums(totals[:rank], totals[rank + 2 + terms.part], dots)


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


def inverted(gram: Array, most: float, xp: Any) -> tuple[Array, float]:
    """Return the (pseudo-)inverse of a positive semidefinite matrix, and its condition number or a larger number.

    It is exact where it is above `most`.
    """
    try:
        inverse = xp.linalg.inv(gram)
    except np.linalg.LinAlgError:
        return pseudo_inverse(gram, CUTOFF, xp)
    condition = float(xp.linalg.norm(gram) * xp.linalg.norm(inverse))
    if condition <= min(CONDITION, most):
        return (inverse + inverse.T) / 2, condition
    return pseudo_inverse(gram, CUTOFF, xp)


def pseudo_inverse(gram: Array, cutoff: float, xp: Any = np) -> tuple[Array, float]:
    """Return the Moore-Penrose inverse of a symmetric positive semidefinite matrix, and its condition number.

    It solves rank-deficient least squares with the smallest norm, so that nothing becomes NaN. Eigenvalues below
    `cutoff` times the largest count as 0. Rounding of an inverse whose numbers are 1e15 as large as those of the matrix
    changes all components of a solution by tenths, not only those along the small eigenvalues.
    """
    values, vectors = xp.linalg.eigh(gram)  # ascending
    kept = values > cutoff * values[-1]
    values, vectors = values[kept], vectors[:, kept]
    return (vectors / values) @ vectors.T, float(values[-1] / values[0]) if values.size else 1.0
