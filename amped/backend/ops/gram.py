"""The Gram operation: Gram matrices of factor matrices without a GPU's library of matrix products.

That library takes a third of a second to load.
"""

from __future__ import annotations

from typing import Protocol

import numpy as np

from ..device import Array, Device
from ..registry import Op
from ..rows import GRAM_BYTES, add_gram


class GramProvider(Protocol):
    """A provider of the operation."""

    def suits(self, rank: int) -> bool:
        """Return whether matrices of `rank` columns are supported."""

    def bytes(self, rows: int, rank: int) -> int:
        """Return the device memory that `gram` needs."""

    def gram(self, matrix: Array) -> Array:
        """Return ``matrix.T @ matrix``, (R, R) float64, of a (rows, R) device array; queued on the current stream."""


GRAM = Op[GramProvider]("gram")
"""Only GPUs have a provider, for some ranks."""


def gram(device: Device, matrix: Array) -> Array:
    """Return ``matrix.T @ matrix``, (R, R) float64, of a (rows, R) array, both in the device's memory."""
    rank = matrix.shape[1]
    provider = _provider(device, rank)
    if provider is not None:
        return provider.gram(matrix)
    total = device.zeros((rank, rank), np.float64)
    add_gram(device.xp, matrix, total)
    return total


def gram_bytes(device: Device, rows: int, rank: int) -> int:
    """Return the memory that `gram` needs."""
    provider = _provider(device, rank)
    return min(8 * rows * rank, GRAM_BYTES) if provider is None else provider.bytes(rows, rank)


def _provider(device: Device, rank: int) -> GramProvider | None:
    return GRAM.first(device, lambda each: each.suits(rank))
