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


def block_rows(rank: int) -> int:
    """Return how many rows of `rank` doubles make a block."""
    return max(1, BLOCK_BYTES // (8 * rank))


def _blocks(rows: int, rank: int) -> Iterator[slice]:
    step = block_rows(rank)
    return (slice(b, min(b + step, rows)) for b in range(0, rows, step))


def solve_rows(xp: ModuleType, source: Array, inverse: Array, target: Array) -> None:
    """Write ``source @ inverse`` to `target`; both (rows, R), `inverse` (R, R) float64."""
    for block in _blocks(*source.shape):
        target[block] = xp.matmul(source[block], inverse)


def solved_squares(xp: ModuleType, source: Array, inverse: Array) -> Array:
    """Return the sum of squares of each column of ``source @ inverse``, (R,) float64, without keeping the product."""
    total = xp.zeros(source.shape[1], np.float64)
    for block in _blocks(*source.shape):
        total += xp.square(xp.matmul(source[block], inverse)).sum(axis=0)
    return total


def solved_max(xp: ModuleType, source: Array, inverse: Array) -> Array:
    """Return the largest magnitude of each column of ``source @ inverse``, (R,) float64; 0 for no rows."""
    largest = xp.zeros(source.shape[1], np.float64)
    for block in _blocks(*source.shape):
        largest = xp.maximum(largest, xp.abs(xp.matmul(source[block], inverse)).max(axis=0))
    return largest


def gram(xp: ModuleType, matrix: Array) -> Array:
    """Return ``matrix.T @ matrix`` as an (R, R) float64 array."""
    rank = matrix.shape[1]
    total = xp.zeros((rank, rank), np.float64)
    for block in _blocks(*matrix.shape):
        wide = matrix[block].astype(np.float64, copy=False)
        total += xp.matmul(wide.T, wide)
    return total


def column_dots(xp: ModuleType, left: Array, right: Array) -> Array:
    """Return the inner products of the columns of `left`, float64, with those of `right`, as an (R,) float64 array."""
    total = xp.zeros(left.shape[1], np.float64)
    for block in _blocks(*left.shape):
        total += (left[block] * right[block]).sum(axis=0)
    return total
