"""Elements of a tensor that are held out of a fit: drawn by a hash of their indices, or selected by a mask."""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np
from numpy.typing import NDArray

from ..errors import InputError
from .dense import DenseTensor
from .digest import stir
from .sparse import SparseTensor

BLOCK = 1 << 16  # elements hashed at a time, in the caches of a core


def drawn(columns: NDArray[np.int32], fraction: float, seed: int) -> NDArray[np.bool_]:
    """Return which elements belong to a random fraction; depends only on their indices and the seed.

    Parameters
    ----------
    columns : (order, n) array
        Indices of the elements.
    fraction : float
        Between 0 and 1: the probability of each element.
    seed : int
        Number of the draw, at least 0.
    """
    below = np.uint64(int(fraction * 2**64))
    return np.concatenate([hashes < below for hashes in _hashes(columns, seed)])


def fingerprint(columns: NDArray[np.int32]) -> str:
    """Return a checksum of the indices of elements, in any order."""
    total = sum(int(hashes.sum(dtype=np.uint64)) for hashes in _hashes(columns, 0))
    return f"{total % 2**64:016x}"


def _hashes(columns: NDArray[np.int32], seed: int) -> Iterator[NDArray[np.uint64]]:
    """Yield a hash of the indices of each element, in blocks."""
    for begin in range(0, columns.shape[1], BLOCK):
        part = columns[:, begin : begin + BLOCK]
        hashes = np.full(part.shape[1], seed % 2**64, np.uint64)
        for column in part:
            stir(hashes, column)
        yield hashes


def selected(elements: SparseTensor, mask: SparseTensor | DenseTensor) -> NDArray[np.bool_]:
    """Return which elements a mask selects: those where it is not zero.

    Raises
    ------
    InputError
        If the shapes differ.
    """
    if mask.shape != elements.shape:
        raise InputError(f"holdout has shape {mask.shape}, the tensor {elements.shape}")
    return np.asarray(mask.at(elements.columns) != 0)


def part_of(elements: SparseTensor, chosen: NDArray[np.bool_]) -> SparseTensor:
    """Return some elements of a tensor, with its shape and labels."""
    columns, values = np.compress(chosen, elements.columns, axis=1), elements.values[chosen]
    part = SparseTensor.from_columns(columns, values, elements.shape, keep_zeros=True)
    part.labels = elements.labels
    return part
