"""A digest of a tensor that does not depend on the storage, order or distribution of its nonzeros."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
from numpy.typing import NDArray

from ..array_types import Floats, HostArray
from .columns import StoredColumn

BLOCK = 1 << 20  # nonzeros read at a time
CACHED = 1 << 14  # hashes that are mixed at a time, in a core's private cache
MASK = (1 << 64) - 1
STEP = np.uint64(0x9E3779B97F4A7C15)
ROUNDS = (30, np.uint64(0xBF58476D1CE4E5B9)), (27, np.uint64(0x94D049BB133111EB))


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


def stir(hashes: NDArray[np.uint64], column: HostArray) -> None:
    """Mix an index into each hash with the finaliser of SplitMix64 (Steele, Lea and Flood, OOPSLA 2014)."""
    shifted = np.empty(min(CACHED, hashes.size), np.uint64)
    for begin in range(0, hashes.size, CACHED):
        some = hashes[begin : begin + CACHED]
        high = shifted[: some.size]
        some += column[begin : begin + CACHED].astype(np.uint64)
        some += STEP
        for bits, factor in ROUNDS:
            np.right_shift(some, np.uint64(bits), out=high)
            some ^= high
            some *= factor
        np.right_shift(some, np.uint64(31), out=high)
        some ^= high
