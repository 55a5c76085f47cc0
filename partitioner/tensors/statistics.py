"""Statistics of the elements of a dense tensor: range, norm, nonzeros."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from ..array_types import DType, HostArray
from ..host.jit import reduction

COMPILED = 1 << 22  # elements from which on compiled code pays off, as it takes time to load
EXPONENTS = {8: np.int64(0x7FF0000000000000), 4: np.int32(0x7F800000)}  # exponent bits of numbers that are not finite
EXACT = [np.dtype(kind) for kind in ("b1", "i1", "u1", "i2", "u2", "f2", "f4")]  # types that float32 represents exactly
NO_OVERFLOW = 1e-140, 1e140  # bounds on the largest magnitude within which sums of squares neither over- nor underflow


class ElementStatistics(NamedTuple):
    """Statistics of a set of elements.

    Attributes
    ----------
    low, high : float
        Lowest and highest element.
    squares : float
        Sum of squares, divided by the square of the `largest` magnitude.
    single : float
        The same for elements rounded to single precision.
    nonzeros : int
        Number of nonzeros.
    bad : int
        Number of the first element, in memory order, that is not finite, or -1.
    """

    low: float
    high: float
    squares: float
    single: float
    nonzeros: int
    bad: int

    @property
    def largest(self) -> float:
        """The largest magnitude."""
        return max(abs(self.low), abs(self.high))

    def norm(self, rounded: bool = False) -> float:
        """Return the Frobenius norm."""
        return self.largest * math.sqrt(self.single if rounded else self.squares)


def joined(parts: Sequence[ElementStatistics]) -> ElementStatistics:
    """Return the statistics of the union of all parts."""
    low, high = min([p.low for p in parts], default=math.inf), max([p.high for p in parts], default=-math.inf)
    largest = max(abs(low), abs(high))
    scales = [(p.largest / largest) ** 2 if 0 < largest < math.inf and p.low <= p.high else 0.0 for p in parts]
    squares = math.fsum(p.squares * scale for p, scale in zip(parts, scales, strict=True))
    single = math.fsum(p.single * scale for p, scale in zip(parts, scales, strict=True))
    nonzeros = sum(p.nonzeros for p in parts)
    return ElementStatistics(
        low, high, squares, single, nonzeros, min([p.bad for p in parts if p.bad >= 0], default=-1)
    )


def looked_at(dtype: DType) -> DType:
    """Return the type in which compiled code scans elements, without rounding them."""
    single = dtype.itemsize < 4 or dtype == np.float32
    return np.dtype(np.float32 if single else np.float64)


def facts_of(block: HostArray, place: tuple[slice, ...], shape: tuple[int, ...]) -> ElementStatistics:
    """Return the statistics of a block at position `place` in a tensor of shape `shape`."""
    if math.prod(shape) >= COMPILED and (statistics := _compiled(block)) is not None:
        return statistics
    exact = np.array(block, np.float64, order="C", copy=None).reshape(-1)
    low, high = float(exact.min()), float(exact.max())  # NaN if any element is NaN
    largest = max(abs(low), abs(high))
    if not math.isfinite(low + high) and not np.isfinite(exact).all():
        within = np.unravel_index(int(np.argmin(np.isfinite(exact))), block.shape)
        first = np.ravel_multi_index([int(at) + of.start for at, of in zip(within, place, strict=True)], shape)
        return ElementStatistics(0.0, 0.0, 0.0, 0.0, 0, int(first))
    if not largest:
        return ElementStatistics(low, high, 0.0, 0.0, 0, -1)
    squares = single = _squares(exact, largest)
    if block.dtype not in EXACT:
        with np.errstate(over="ignore", under="ignore"):
            single = _squares(exact.astype(np.float32).astype(np.float64), largest)
    return ElementStatistics(low, high, squares, single, int(np.count_nonzero(exact != 0)), -1)


def _compiled(block: HostArray) -> ElementStatistics | None:
    """Return the statistics of a block with compiled code; None if squares overflow or an element is not finite."""
    kind = looked_at(block.dtype)
    flat = np.array(block, kind, order="C", copy=None).reshape(-1)
    bits = flat.view(f"i{kind.itemsize}")
    low, high, squares, rounded, zeros, bad = _scan(flat, bits, EXPONENTS[kind.itemsize])
    largest = max(abs(low), abs(high))
    if bad or not NO_OVERFLOW[0] < largest < NO_OVERFLOW[1]:
        return None
    return ElementStatistics(low, high, squares / largest**2, rounded / largest**2, flat.size - zeros, -1)


@reduction
def _scan(flat, bits, exponent):  # type: ignore[no-untyped-def]
    low, high, squares, single, zeros, bad = np.inf, -np.inf, 0.0, 0.0, 0, 0
    for k in range(flat.size):
        exact, rounded = np.float64(flat[k]), np.float64(np.float32(flat[k]))
        low, high = min(low, exact), max(high, exact)
        squares += exact * exact
        single += rounded * rounded
        zeros += exact == 0
        bad += (bits[k] & exponent) == exponent
    return low, high, squares, single, zeros, bad


def _squares(exact: NDArray[np.float64], largest: float) -> float:
    """Return the sum of squares, divided by the square of the largest magnitude; infinite if an element is."""
    if NO_OVERFLOW[0] < largest < NO_OVERFLOW[1]:
        return float(exact @ exact) / largest**2
    with np.errstate(under="ignore"):
        scaled = exact / largest
    return float(scaled @ scaled)
