"""Contractions of dense blocks with factor matrices by matrix products without copies, for NumPy and CuPy arrays.

A C-contiguous block with the mode in the middle is a batch of matrices; with the mode first or last, one matrix.
"""

from __future__ import annotations

import math
from types import ModuleType

from .device import Array


def as_batch(block: Array, axis: int) -> Array:
    """Reshape a C-contiguous block to (modes before, the mode, modes after)."""
    shape = block.shape
    return block.reshape(math.prod(shape[:axis]), shape[axis], math.prod(shape[axis + 1 :]))


def _rows(block: Array) -> Array:
    """Reshape a block to a matrix with one column per index of the last mode."""
    return block.reshape(math.prod(block.shape[:-1]), block.shape[-1])


def contracted(xp: ModuleType, block: Array, factor: Array, axis: int) -> Array:
    """Return a block times the transpose of a factor matrix in one mode."""
    before, after, columns = block.shape[:axis], block.shape[axis + 1 :], factor.shape[1]
    if axis == block.ndim - 1:
        result = xp.matmul(_rows(block), factor)
    else:
        result = xp.matmul(factor.T, as_batch(block, axis))
    return result.reshape(*before, columns, *after)


def add_gram(xp: ModuleType, block: Array, axis: int, total: Array) -> None:
    """Add ``B @ B.T`` to `total`, where B is the block unfolded in a mode."""
    if axis == block.ndim - 1:
        rows = _rows(block)
        total += xp.matmul(rows.T, rows)
        return
    for matrix in as_batch(block, axis):
        total += xp.matmul(matrix, matrix.T)


def add_products(xp: ModuleType, block: Array, axis: int, basis: Array, total: Array) -> None:
    """Add ``B @ B.T @ basis`` to `total`, where B is the block unfolded in a mode."""
    if axis == block.ndim - 1:
        rows = _rows(block)
        total += xp.matmul(rows.T, xp.matmul(rows, basis))
        return
    for matrix in as_batch(block, axis):
        total += xp.matmul(matrix, xp.matmul(matrix.T, basis))
