"""A number that tells tensors apart, however their nonzeros are stored, ordered and dealt."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

from .jit import jit

BLOCK = 1 << 20  # nonzeros looked at together
MASK = (1 << 64) - 1


def digest(columns: Sequence[NDArray[np.int32]], values: NDArray[np.floating]) -> int:
    """Return a sum, modulo 2**64, of a hash of each nonzero.

    Parts of a tensor have digests that add up, modulo 2**64, to that of the whole. Values count by what they are, not
    by their type.

    Parameters
    ----------
    columns : sequence of (nnz,) int32 arrays
        Indices of each mode, in the order of modes.
    values : (nnz,) float32 or float64 array
    """
    total = 0
    for begin in range(0, len(values), BLOCK):
        part = slice(begin, begin + BLOCK)
        hashes = np.array(values[part], np.float64).view(np.uint64)
        for column in columns:
            _stir(hashes, column[part])
        total += int(hashes.sum(dtype=np.uint64))
    return total & MASK


@jit
def _stir(hashes: NDArray[Any], column: NDArray[Any]) -> None:
    """Mix an index into each hash (Steele, Lea and Flood, OOPSLA 2014: the finaliser of SplitMix64)."""
    for p in range(hashes.size):
        h = hashes[p] + np.uint64(column[p]) + np.uint64(0x9E3779B97F4A7C15)
        h = (h ^ (h >> np.uint64(30))) * np.uint64(0xBF58476D1CE4E5B9)
        h = (h ^ (h >> np.uint64(27))) * np.uint64(0x94D049BB133111EB)
        hashes[p] = h ^ (h >> np.uint64(31))
