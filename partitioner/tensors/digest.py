"""A digest of a tensor that does not depend on the storage, order or distribution of its nonzeros."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
from numpy.typing import NDArray

from ..array_types import Floats, HostArray
from ..host.jit import jit
from .columns import StoredColumn

BLOCK = 1 << 20  # nonzeros hashed at a time
MASK = (1 << 64) - 1


def digest(columns: Sequence[NDArray[np.int32] | StoredColumn], values: Floats | StoredColumn) -> int:
    """Return the sum of a hash of each nonzero, modulo 2**64.

    The digests of a tensor's parts add up to that of the whole, modulo 2**64. Equal values in float32 and float64 have
    equal hashes.
    """
    total = 0
    for begin in range(0, len(values), BLOCK):
        part = slice(begin, begin + BLOCK)
        hashes = np.array(values[part], np.float64).view(np.uint64)
        for column in columns:
            stir(hashes, column[part])
        total += int(hashes.sum(dtype=np.uint64))
    return total & MASK


@jit
def stir(hashes: HostArray, column: HostArray) -> None:
    """Mix an index into each hash with the finaliser of SplitMix64 (Steele, Lea and Flood, OOPSLA 2014)."""
    for p in range(hashes.size):
        h = hashes[p] + np.uint64(column[p]) + np.uint64(0x9E3779B97F4A7C15)
        h = (h ^ (h >> np.uint64(30))) * np.uint64(0xBF58476D1CE4E5B9)
        h = (h ^ (h >> np.uint64(27))) * np.uint64(0x94D049BB133111EB)
        hashes[p] = h ^ (h >> np.uint64(31))
