"""Elements of a tensor that are held out of a fit: drawn by a hash of their indices, or selected by a mask."""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from ..errors import InputError
from .dense import DenseTensor
from .digest import BLOCK, stir
from .observed import elements_at
from .sparse import SparseTensor


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
    below, chosen = np.uint64(int(fraction * 2**64)), np.empty(columns.shape[1], bool)
    for begin in range(0, chosen.size, BLOCK):
        part = columns[:, begin : begin + BLOCK]
        hashes = np.full(part.shape[1], seed % 2**64, np.uint64)
        for column in part:
            stir(hashes, column)
        chosen[begin : begin + BLOCK] = hashes < below
    return chosen


def selected(elements: SparseTensor, mask: SparseTensor | DenseTensor) -> NDArray[np.bool_]:
    """Return which elements a mask selects: those where it is not zero.

    Raises
    ------
    InputError
        If the shapes differ.
    """
    if mask.shape != elements.shape:
        raise InputError(f"holdout has shape {mask.shape}, the tensor {elements.shape}")
    return np.asarray(elements_at(mask, elements.columns) != 0)


def part_of(elements: SparseTensor, chosen: NDArray[np.bool_]) -> SparseTensor:
    """Return some elements of a tensor, with its shape and labels."""
    columns, values = np.compress(chosen, elements.columns, axis=1), elements.values[chosen]
    part = SparseTensor.from_columns(columns, values, elements.shape, keep_zeros=True)
    part.labels = elements.labels
    return part
