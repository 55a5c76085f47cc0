"""Counting sorts of nonzeros by their indices: small integers need no comparisons."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
from numpy.typing import NDArray

from .jit import jit

DIGIT_BITS = 16


@jit
def _counting_pass(keys, shift, buckets, before, after):  # type: ignore[no-untyped-def]
    ends = np.zeros(buckets + 1, np.int64)
    mask = buckets - 1
    for p in before:
        ends[((keys[p] >> shift) & mask) + 1] += 1
    for b in range(buckets):
        ends[b + 1] += ends[b]
    for p in before:
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


def stable_argsort(columns: Sequence[NDArray[np.int32]], lengths: Sequence[int]) -> NDArray[np.int64]:
    """Sort nonzeros by several indices, the first of them the most significant.

    Parameters
    ----------
    columns : sequence of (nnz,) int32 arrays
        The indices to sort by, each non-negative.
    lengths : sequence of int
        Mode lengths: column ``k`` holds values below ``lengths[k]``.

    Returns
    -------
    (nnz,) int64 array
        The permutation: position ``p`` of the sorted order holds nonzero ``result[p]``.

    Notes
    -----
    Least-significant-digit radix sort, one counting pass for each digit of at most 16 bits.
    """
    before = np.arange(columns[0].size)
    after = np.empty_like(before)
    for column, length in zip(reversed(columns), reversed(lengths), strict=True):
        bits = max(1, (length - 1).bit_length())
        passes = -(-bits // DIGIT_BITS)
        width = -(-bits // passes)
        for k in range(passes):
            _counting_pass(column, k * width, 1 << width, before, after)
            before, after = after, before
    return before


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
