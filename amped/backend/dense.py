"""Small dense algebra on factor rows, the same for NumPy and CuPy arrays, in double precision.

Rows are taken in blocks, so that the double-precision copies of single-precision rows stay small.
"""

from __future__ import annotations

from collections.abc import Iterator
from types import ModuleType
from typing import Any

import numpy as np

Array = Any
BLOCK_BYTES = 1 << 27
PANEL_ROWS = 1024


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
        for panels in _panels(rows):
            largest = xp.maximum(largest, xp.abs(panels).max(axis=1).max(axis=0))
        total += gram(xp, target[block])
    return largest, total


def solved_squares(xp: ModuleType, source: Array, inverse: Array) -> Array:
    """Return the sum of squares of each column of ``source @ inverse``, (R,) float64, without keeping the product."""
    total = xp.zeros(source.shape[1], np.float64)
    for block in _blocks(*source.shape):
        for panels in _panels(xp.matmul(source[block], inverse)):
            total += xp.square(panels).sum(axis=1).sum(axis=0)
    return total


def gram(xp: ModuleType, matrix: Array) -> Array:
    """Return ``matrix.T @ matrix`` as an (R, R) float64 array."""
    rank = matrix.shape[1]
    total = xp.zeros((rank, rank), np.float64)
    for block in _blocks(*matrix.shape):
        for panels in _panels(matrix[block].astype(np.float64, copy=False)):
            total += xp.matmul(panels.transpose(0, 2, 1), panels).sum(axis=0)
    return total


def column_dots(xp: ModuleType, left: Array, right: Array) -> Array:
    """Return the inner products of the columns of `left`, float64, with those of `right`, as an (R,) float64 array."""
    total = xp.zeros(left.shape[1], np.float64)
    for block in _blocks(*left.shape):
        for panels in _panels(left[block] * right[block]):
            total += panels.sum(axis=1).sum(axis=0)
    return total


def _panels(rows: Array) -> Iterator[Array]:
    """Yield rows as (panels, rows of a panel, R) arrays: what is summed up over all rows takes one panel after another.

    A GPU would otherwise sum up R long columns in as many threads' blocks, and leave the other multiprocessors idle.
    """
    even = len(rows) // PANEL_ROWS * PANEL_ROWS
    if even:
        yield rows[:even].reshape(-1, PANEL_ROWS, rows.shape[1])
    if even < len(rows):
        yield rows[None, even:]
