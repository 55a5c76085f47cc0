"""Numbers that a precision cannot compute with: what is refused, and how that follows from the precision."""

from __future__ import annotations

import os
from typing import Any

import numpy as np
from numpy.typing import NDArray

from partitioner.tensors.sparse import ValueRange

from ..errors import InputError
from .base import Operator

WINDOW = 2.0**20  # of the product of columns' largest numbers, as a decomposition stores them, and one over it
SUMMED = 2.0**16  # nonzeros, at most, that a kernel adds up in the factors' precision
SQUARED = 1e140  # of the largest value, as squares of norms are in double precision: 1e28 of them, or components
FAR = 1024.0  # from 1, at most, for the largest number of a stored column


def far(order: int) -> float:
    """Return how far from 1 the largest number of a stored column may be.

    An MTTKRP multiplies a value by ``order - 1`` such numbers. So that their product is within `WINDOW` at any order,
    each may be as far as the root of that.
    """
    return float(min(FAR, WINDOW ** (1 / (order - 1))))


def value_limits(dtype: np.dtype[Any]) -> tuple[float, float]:
    """Return between what the largest magnitude of a tensor's values has to be.

    Products of it and stored columns' largest numbers are up to `WINDOW` times as large or small. `SUMMED` of the
    largest must not overflow, and of the smallest none of its digits may be lost: so they are above `least_product`.
    The rank does not count, as sums over components are in double precision. There, norms are squared.
    """
    upper = float(np.finfo(dtype).max) / (WINDOW * SUMMED)
    return max(least_product(dtype) * WINDOW, 1 / SQUARED), min(upper, SQUARED)


def least_product(dtype: np.dtype[Any]) -> float:
    """Return the smallest product whose digits all count: what is lost below it is less than its last one."""
    kind = np.finfo(dtype)
    return float(kind.tiny) / float(kind.eps)


def check_range(values: ValueRange, dtype: np.dtype[Any], path: str | os.PathLike[str] | None = None) -> None:
    """Refuse values, of a file, so large or small that products of them, or squares of their norm, are no numbers."""
    largest = values.largest
    if not np.isfinite(largest):
        raise InputError(f"values up to {largest}: every value must be finite", path=path)
    low, high = value_limits(dtype)
    if not low <= largest <= high:
        advice = "use precision fp64, or scale them" if dtype == np.float32 else "scale them"
        cause = f"values up to {largest:.3g} are beyond what {dtype} computes with, {low:.1e} to {high:.1e}"
        raise InputError(f"{cause}: {advice}", path=path)


def check_result(operator: Operator, mode: int, whole: NDArray[Any], values: ValueRange) -> None:
    """Refuse an MTTKRP that has overflowed, or columns of it in which all products have underflowed.

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
            advice = f"gather fp16 holds numbers to 65504; {advice}"
        raise InputError(
            f"mode {mode}: the MTTKRP is not finite: its products are beyond {options.precision}; {advice}"
        )
    floor = least_product(options.dtype)
    if np.all(result >= floor):
        return
    inputs = [largest(operator.factor(m)) for m in range(operator.order) if m != mode]
    # A kernel may multiply the small ones first.
    least = np.prod([np.minimum(1, each) for each in (*inputs, np.full_like(result, values.largest))], axis=0)
    some = np.all(inputs, axis=0)  # a column of zeros gives zeros
    if np.any((result < floor) & some & (least < floor)):
        raise InputError(f"mode {mode}: products of the MTTKRP are too small for {options.precision}; {advice}")


def largest(matrix: NDArray[Any]) -> NDArray[np.float64]:
    """Return the largest magnitude of each column; NaN where there is one."""
    result: NDArray[np.float64] = np.maximum(
        matrix.max(axis=0).astype(np.float64), -matrix.min(axis=0).astype(np.float64)
    )
    return result
