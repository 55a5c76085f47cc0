"""Small dense algebra on factor rows, the same for NumPy and CuPy arrays, in double precision.

Rows are taken in blocks, so that the double-precision copies of single-precision rows stay small.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from types import ModuleType
from typing import Any

import numpy as np

Array = Any
BLOCK_BYTES = 1 << 27
STEP = 1024


def block_rows(rank: int) -> int:
    """Return how many rows of `rank` doubles make a block."""
    return max(1, BLOCK_BYTES // (8 * rank))


def _blocks(rows: int, rank: int) -> Iterator[slice]:
    step = block_rows(rank)
    return (slice(b, min(b + step, rows)) for b in range(0, rows, step))


def solve(xp: ModuleType, source: Array, inverse: Array, target: Array) -> tuple[Array, Array]:
    """Write ``source @ inverse`` to `target`; both (rows, R), `inverse` (R, R) float64.

    Returns
    -------
    largest : (R,) float64 array
        The largest magnitude of each column, before it is rounded to the target's type; 0 for no rows.
    gram : (R, R) float64 array
        Of the target.
    """
    rank = source.shape[1]
    largest, total = xp.zeros(rank, np.float64), xp.zeros((rank, rank), np.float64)
    for block in _blocks(*source.shape):
        rows = xp.matmul(source[block], inverse)
        target[block] = rows
        largest = xp.maximum(largest, _down(xp, xp.max, xp.abs(rows, out=rows)))
        total += gram(xp, target[block])
    return largest, total


def gram(xp: ModuleType, matrix: Array) -> Array:
    """Return ``matrix.T @ matrix`` as an (R, R) float64 array."""
    rank = matrix.shape[1]
    total = xp.zeros((rank, rank), np.float64)
    for block in _blocks(*matrix.shape):
        rows = matrix[block].astype(np.float64, copy=False)
        total += xp.matmul(rows.T, rows)
    return total


def column_dots(xp: ModuleType, left: Array, right: Array) -> Array:
    """Return the inner products of the columns of `left`, float64, with those of `right`, as an (R,) float64 array."""
    total = xp.zeros(left.shape[1], np.float64)
    for block in _blocks(*left.shape):
        total += _down(xp, xp.sum, left[block] * right[block])
    return total


def _down(xp: ModuleType, reduce: Callable[..., Array], rows: Array) -> Array:
    """Reduce columns to one number each, rows `STEP` apart first.

    A GPU reduces R long columns in as many blocks of threads, which leaves most of its multiprocessors idle.
    """
    even = len(rows) // STEP * STEP
    wide = rows[:even].reshape(STEP, even // STEP * rows.shape[1])
    partial = reduce(wide, axis=0).reshape(even // STEP, rows.shape[1])
    return reduce(xp.concatenate([partial, rows[even:]]), axis=0)
