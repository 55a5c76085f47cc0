"""Small dense algebra on factor rows, the same for NumPy and CuPy arrays, in double precision.

Rows are taken in blocks, so that the double-precision copies of single-precision rows stay small.
"""

from __future__ import annotations

from collections.abc import Iterator
from types import ModuleType
from typing import Any

import numpy as np

Array = Any
BLOCK_BYTES = 1 << 26


def block_rows(rank: int) -> int:
    """Return how many rows of `rank` doubles make a block."""
    return max(1, BLOCK_BYTES // (8 * rank))


def _blocks(rows: int, rank: int) -> Iterator[slice]:
    step = block_rows(rank)
    return (slice(b, min(b + step, rows)) for b in range(0, rows, step))


def solve_rows(xp: ModuleType, source: Array, inverse: Array, target: Array) -> None:
    """Write ``source @ inverse`` to `target`; both (rows, R), `inverse` (R, R) float64."""
    for block in _blocks(*source.shape):
        target[block] = xp.matmul(source[block].astype(np.float64, copy=False), inverse)


def gram(xp: ModuleType, matrix: Array) -> Array:
    """Return ``matrix.T @ matrix`` as an (R, R) float64 array."""
    rank = matrix.shape[1]
    total = xp.zeros((rank, rank), np.float64)
    for block in _blocks(*matrix.shape):
        wide = matrix[block].astype(np.float64, copy=False)
        total += xp.matmul(wide.T, wide)
    return total


def column_dots(xp: ModuleType, left: Array, right: Array) -> Array:
    """Return the inner product of each pair of columns as an (R,) float64 array."""
    total = xp.zeros(left.shape[1], np.float64)
    for block in _blocks(*left.shape):
        total += (left[block].astype(np.float64, copy=False) * right[block]).sum(axis=0)
    return total


def column_max(xp: ModuleType, matrix: Array) -> Array:
    """Return the largest magnitude of each column as an (R,) float64 array; 0 for no rows."""
    if not matrix.shape[0]:
        return xp.zeros(matrix.shape[1], np.float64)
    highest, lowest = matrix.max(axis=0), matrix.min(axis=0)
    return xp.maximum(highest, -lowest).astype(np.float64)
