"""Limits of the magnitudes of values, derived from the precision, and errors for numbers beyond them."""

from __future__ import annotations

import os

import numpy as np
from numpy.typing import NDArray

from partitioner.array_types import FloatDType, Floats
from partitioner.tensors.value_range import ValueRange

from ..errors import InputError
from .base import Operator

WINDOW = 2.0**20  # the product of stored columns' largest magnitudes is between 1 / WINDOW and WINDOW
SUMMED = 2.0**16  # largest number of nonzeros that a kernel sums in the factors' precision
SQUARED = 1e140  # limit of the largest value, so that squared norms of 1e28 values or components fit float64
FAR = 1024.0  # limit of the largest magnitude of a stored column


def far(order: int) -> float:
    """Return the limit L of stored columns: their largest magnitude is between ``1 / L`` and ``L``.

    An MTTKRP multiplies a value by ``order - 1`` such numbers, whose product must be within `WINDOW`.
    """
    return float(min(FAR, WINDOW ** (1 / (order - 1))))


def value_limits(dtype: FloatDType) -> tuple[float, float]:
    """Return the lower and upper limit of the largest magnitude of a tensor's values.

    Multiplied by the largest numbers of stored columns it changes by up to a factor of `WINDOW`. The sum of `SUMMED` of
    the largest products must not overflow, and the smallest product must be above `least_product`, to keep all digits.
    The rank does not matter, as sums over components are in double precision, in which norms are squared.
    """
    upper = float(np.finfo(dtype).max) / (WINDOW * SUMMED)
    return max(least_product(dtype) * WINDOW, 1 / SQUARED), min(upper, SQUARED)


def least_product(dtype: FloatDType) -> float:
    """Return the smallest product that keeps all digits: rounding errors by underflow are below its last digit."""
    kind = np.finfo(dtype)
    return float(kind.tiny) / float(kind.eps)


def check_range(values: ValueRange, dtype: FloatDType, path: str | os.PathLike[str] | None = None) -> None:
    """Raise `InputError` if values are so large or small that products or squared norms would overflow or underflow."""
    largest = values.largest
    if not np.isfinite(largest):
        raise InputError(f"values up to {largest}: all values must be finite", path=path)
    low, high = value_limits(dtype)
    if largest and not low <= largest <= high:
        advice = "use precision fp64, or scale them" if dtype == np.float32 else "scale them"
        cause = f"values up to {largest:.3g} are beyond the range of {dtype}, {low:.1e} to {high:.1e}"
        raise InputError(f"{cause}: {advice}", path=path)


def check_result(operator: Operator, mode: int, whole: Floats, values: ValueRange) -> None:
    """Raise `InputError` if an MTTKRP overflowed, or if all products of a column underflowed.

    Parameters
    ----------
    operator : Operator
        Holds the factor matrices.
    mode : int
    whole : (I_mode, R) array
        The result.
    values : ValueRange
        Of the tensor.
    """
    options, result = operator.options, largest(whole)
    advice = "use precision fp64, or scale values or factors" if options.precision == "fp32" else "scale them"
    if not np.all(np.isfinite(result)):
        if options.gather == "fp16":
            advice = f"gather fp16 is limited to 65504; {advice}"
        raise InputError(f"mode {mode}: the MTTKRP is not finite: products exceed {options.precision}; {advice}")
    floor = least_product(options.dtype)
    if not values.largest or np.all(result >= floor):
        return
    inputs = [largest(operator.factor(m)) for m in range(operator.order) if m != mode]
    # A kernel may multiply the small numbers first.
    least = np.prod([np.minimum(1, each) for each in (*inputs, np.full_like(result, values.largest))], axis=0)
    some = np.all(inputs, axis=0)  # a column of zeros gives zeros
    if np.any((result < floor) & some & (least < floor)):
        raise InputError(f"mode {mode}: products of the MTTKRP are too small for {options.precision}; {advice}")


def largest(matrix: Floats) -> NDArray[np.float64]:
    """Return the largest magnitude of each column; NaN if the column contains NaN."""
    result: NDArray[np.float64] = np.maximum(
        matrix.max(axis=0).astype(np.float64), -matrix.min(axis=0).astype(np.float64)
    )
    return result
