"""Counting sorts of nonzeros by their indices: small integers need no comparisons."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

from .jit import jit

DIGIT_BITS = 16
INT64 = np.dtype(np.int64)


@jit
def _counting_pass(keys, shift, buckets, before, after):  # type: ignore[no-untyped-def]
    ends = np.zeros(buckets + 1, np.int64)
    mask = buckets - 1
    for key in keys:
        ends[((key >> shift) & mask) + 1] += 1
    for b in range(buckets):
        ends[b + 1] += ends[b]
    for q in range(keys.size):
        p = np.int64(before[q]) if before.size else q
        digit = (keys[p] >> shift) & mask
        after[ends[digit]] = p
        ends[digit] += 1


@jit
def _strictly_increasing(columns):  # type: ignore[no-untyped-def]
    order, nonzeros = columns.shape
    for p in range(1, nonzeros):
        m = 0
        while m < order and columns[m, p] == columns[m, p - 1]:
            m += 1
        if m == order or columns[m, p] < columns[m, p - 1]:
            return False
    return True


@jit
def _merge(columns, values):  # type: ignore[no-untyped-def]
    order, nonzeros = columns.shape
    kept = np.int64(0)
    distinct = np.int64(0)
    p = 0
    while p < nonzeros:
        total = np.float64(values[p])
        q = p + 1
        while q < nonzeros:
            m = 0
            while m < order and columns[m, q] == columns[m, p]:
                m += 1
            if m < order:
                break
            total += values[q]
            q += 1
        distinct += 1
        if total != 0:
            for m in range(order):
                columns[m, kept] = columns[m, p]
            values[kept] = total
            kept += 1
        p = q
    return kept, distinct


def stable_argsort(
    columns: Sequence[NDArray[np.int32]], lengths: Sequence[int], dtype: np.dtype[Any] = INT64
) -> NDArray[Any]:
    """Sort nonzeros by several indices, the first of them the most significant.

    Parameters
    ----------
    columns : sequence of (nnz,) int32 arrays
        The indices to sort by, each non-negative.
    lengths : sequence of int
        Mode lengths: column ``k`` holds values below ``lengths[k]``.
    dtype : numpy.dtype
        Of the result: an integer type that holds the number of nonzeros.

    Returns
    -------
    (nnz,) array
        The permutation: position ``p`` of the sorted order holds nonzero ``result[p]``.

    Notes
    -----
    Least-significant-digit radix sort, one counting pass for each digit of at most 16 bits. From the second pass on
    there are two permutations in memory.
    """
    nonzeros = columns[0].size
    order = spare = np.empty(0, dtype)  # no order stands for the one that there is
    for column, length in zip(reversed(columns), reversed(lengths), strict=True):
        bits = max(1, (length - 1).bit_length())
        passes = -(-bits // DIGIT_BITS)
        width = -(-bits // passes)
        for k in range(passes):
            after = spare if spare.size else np.empty(nonzeros, dtype)
            _counting_pass(column, k * width, 1 << width, order, after)
            order, spare = after, order
    return order


def strictly_increasing(columns: NDArray[np.int32]) -> bool:
    """Tell whether nonzeros, given as (order, nnz) columns, are in lexicographic order with none twice."""
    return bool(_strictly_increasing(columns))


def merge_duplicates(columns: NDArray[np.int32], values: NDArray[np.floating]) -> tuple[int, int]:
    """Sum neighbouring nonzeros of equal indices and drop those that are zero, in place.

    Parameters
    ----------
    columns : (order, nnz) int32 array
        Sorted indices.
    values : (nnz,) float array
        Their values; sums are taken in double precision.

    Returns
    -------
    kept, distinct : int
        How many nonzeros remain, at the front of both arrays, and how many distinct indices there were.
    """
    kept, distinct = _merge(columns, values)
    return int(kept), int(distinct)
