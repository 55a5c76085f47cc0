"""Sorting of nonzeros with NumPy, with the same results as compiled code; see `sort`."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

from .tables import Indices, Nonzeros, Values

WORD = 63  # bits of a key


def order_of(columns: Sequence[Indices], lengths: Sequence[int]) -> NDArray[np.int64]:
    """Return the stable order of nonzeros by several indices, the first of them the most significant."""
    keys, bits = list[NDArray[np.int64]](), WORD + 1
    for column, length in zip(columns, lengths, strict=True):
        width = max(1, int(length) - 1).bit_length()
        if bits + width > WORD:
            keys.append(column.astype(np.int64))
            bits = width
        else:
            keys[-1] = (keys[-1] << width) | column
            bits += width
    return np.argsort(keys[0], kind="stable") if len(keys) == 1 else np.lexsort(keys[::-1])


def increases(columns: Indices) -> bool:
    """Return whether nonzeros, (order, nnz) columns, are in lexicographic order without duplicates."""
    equal = np.ones(max(0, columns.shape[1] - 1), bool)
    for column in columns:
        if np.any(equal & (column[1:] < column[:-1])):
            return False
        equal &= column[1:] == column[:-1]
    return not equal.any()


def sorted_by(columns: Indices, values: Values, modes: Sequence[int], lengths: Sequence[int], dtype: Any) -> Nonzeros:
    """Return nonzeros in the stable order of their indices of `modes`; values are cast to `dtype`."""
    order = np.arange(values.size)
    if modes:
        order = order_of([columns[m] for m in modes], [lengths[m] for m in modes])
    return np.take(columns, order, axis=1).astype(np.int32, copy=False), values[order].astype(dtype)


def merged(columns: Indices, values: Values, keep_zeros: bool = False) -> tuple[Nonzeros, int]:
    """Sum sorted nonzeros of equal indices in double precision, in their order; drop zero sums unless `keep_zeros`.

    Return the nonzeros, and their number before zero sums were dropped.
    """
    first = np.ones(values.size, bool)
    first[1:] = np.any(columns[:, 1:] != columns[:, :-1], axis=0)
    if not first.all():
        with np.errstate(over="ignore"):  # callers check the sums
            sums = np.bincount(np.cumsum(first) - 1, weights=values)
        columns, kept = np.compress(first, columns, axis=1), (sums != 0) | keep_zeros
        with np.errstate(over="ignore"):
            values = sums.astype(values.dtype)
    else:
        kept = (values != 0) | keep_zeros
    return (np.compress(kept, columns, axis=1), values[kept]), kept.size
