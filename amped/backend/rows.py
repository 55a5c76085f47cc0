"""Small dense algebra on factor rows in double precision, for NumPy and CuPy arrays.

Rows are processed in blocks, so that double-precision copies stay small.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from types import ModuleType

import numpy as np

from partitioner.host.threads import in_order

from .device import Array

BLOCK_BYTES, GRAM_BYTES = 1 << 27, 1 << 24  # bytes of rows per block, for solving and for Gram matrices
STEP, FEW = 1024, 4096  # rows


def block_rows(rank: int) -> int:
    """Return the number of rows of `rank` float64 numbers per block."""
    return max(1, BLOCK_BYTES // (8 * rank))


def blocks_of(rows: int, step: int) -> Iterator[slice]:
    """Yield slices of at most `step` rows."""
    return (slice(b, min(b + step, rows)) for b in range(0, rows, step))


def add_gram(xp: ModuleType, matrix: Array, total: Array, threads: int = 1) -> None:
    """Add ``matrix.T @ matrix`` to `total`, (R, R) float64; on a host, with `threads` for the blocks of rows."""

    def gram(block: slice) -> Array:
        rows = matrix[block].astype(np.float64, copy=False)
        return xp.matmul(rows.T, rows)

    blocks = blocks_of(len(matrix), GRAM_BYTES // (8 * matrix.shape[1]))
    for each in in_order(gram, blocks, threads):
        total += each


def add_dots(xp: ModuleType, one: Array, other: Array, total: Array) -> None:
    """Add the inner products of the columns of two matrices to `total`, (R,) float64; `one` is float64."""
    for block in blocks_of(len(one), GRAM_BYTES // (8 * one.shape[1])):
        total += down(xp, xp.sum, one[block] * other[block])


def down(xp: ModuleType, reduce: Callable[..., Array], rows: Array) -> Array:
    """Reduce each column to one number, in two steps.

    A GPU reduces R long columns with R thread blocks, which would leave most multiprocessors idle.
    """
    even = len(rows) // STEP * STEP
    if even < FEW:
        return reduce(rows, axis=0)
    wide = rows[:even].reshape(STEP, even // STEP * rows.shape[1])
    partial = reduce(wide, axis=0).reshape(even // STEP, rows.shape[1])
    return reduce(xp.concatenate([partial, rows[even:]]), axis=0)
