"""Bounds on the values of a tensor, and sums of their squares."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from typing import NamedTuple, TypeVar

import numpy as np

from ..array_types import FloatDType, Floats
from ..host.threads import parallel_map, threads_for

T = TypeVar("T")

BLOCK = 1 << 20  # values processed together
FINEST_GRAIN = 8  # binary digits after the point

NO_NORM = 1e-150
"""Stands for the norm of a tensor of zeros, by which residuals are divided; the fit of the zero model is 1."""


class ValueRange(NamedTuple):
    """Bounds on the values of a tensor.

    Attributes
    ----------
    low, high : float
        Lowest and highest value.
    grain : float
        Largest power of two, from 1 down to 2**-8, of which all values are multiples; 0 if there is none.
    """

    low: float
    high: float
    grain: float

    @property
    def largest(self) -> float:
        """The largest magnitude."""
        return max(abs(self.low), abs(self.high))

    def exact_in(self, dtype: FloatDType) -> bool:
        """Return whether values are certainly exact in `dtype`: multiples of the grain with few enough digits."""
        return dtype == np.float64 or 0 < self.largest <= self.grain * 2.0 ** (np.finfo(dtype).nmant + 1)


def ends(values: Floats) -> tuple[float, float]:
    """Return the lowest and highest value."""
    bounds = np.array(_of_blocks(lambda block: (block.min(), block.max()), values), np.float64)
    return float(bounds[:, 0].min()), float(bounds[:, 1].max())


def grain(values: Floats) -> float:
    """Return the `ValueRange.grain` of an array of values."""
    if _digits(values[:BLOCK]) > FINEST_GRAIN:  # true of most tensors without a grain
        return 0.0
    digits = max(_of_blocks(_digits, values))
    return 2.0**-digits if digits <= FINEST_GRAIN else 0.0


def _digits(values: Floats) -> int:
    """Return the number of binary digits after the point, at most `FINEST_GRAIN` + 1."""
    digits = 0
    with np.errstate(over="ignore"):  # numbers that overflow have no digits after the point
        while digits <= FINEST_GRAIN and not np.array_equal(scaled := np.ldexp(values, digits), np.rint(scaled)):
            digits += 1
    return digits


def squares(values: Floats, range_: tuple[float, float]) -> list[float]:
    """Return the sum of squares of each block of `BLOCK` values, scaled against overflow and underflow."""
    largest = max(map(abs, range_)) or 1.0

    def of_block(block: Floats) -> float:
        with np.errstate(invalid="ignore"):  # the caller rejects infinities
            return float(np.square(block.astype(np.float64) / largest).sum())

    return _of_blocks(of_block, values)


def norm(range_: tuple[float, float], sums: Sequence[float]) -> float:
    """Return the Frobenius norm from the value range and the `squares` of all blocks."""
    return max(map(abs, range_)) * math.sqrt(sum(sums))


def _of_blocks(work: Callable[[Floats], T], values: Floats) -> list[T]:
    """Apply `work` to each block of values in threads."""
    blocks = [values[b : b + BLOCK] for b in range(0, values.size, BLOCK)]
    return parallel_map(work, blocks, threads_for(len(blocks)))
