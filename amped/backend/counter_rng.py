"""Counter-based random numbers: each is a function of a key and its number, so that any device draws the same ones.

The generator is SplitMix64 (Steele, Lea and Flood 2014): number `n` of key `k` is the mix of ``k + n * GOLDEN``, modulo
2**64.
"""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

GOLDEN = 0x9E3779B97F4A7C15
MIX = (30, 0xBF58476D1CE4E5B9), (27, 0x94D049BB133111EB)  # shifts, and factors that follow them
LAST_SHIFT, DROPPED, UNIT = 31, 11, 2.0**-53
"""The last shift of the mix; a number in [0, 1) is the product of the leading 64 - `DROPPED` bits and `UNIT`."""
WORD = (1 << 64) - 1


def mixed(state: int) -> int:
    """Return the mix of a 64-bit state."""
    for shift, factor in MIX:
        state = ((state ^ (state >> shift)) * factor) & WORD
    return state ^ (state >> LAST_SHIFT)


def key_of(*words: int) -> int:
    """Return the key of a stream that integers of at least 0 identify, such as a seed, an epoch and a step."""
    key = 0
    for word in words:
        key = mixed((key + GOLDEN * (1 + (word & WORD))) & WORD)
        if word >> 64:  # a long seed
            key = mixed(key ^ key_of(word >> 64))
    return key


def uniform(key: int, numbers: NDArray[np.uint64]) -> NDArray[np.float64]:
    """Return the random numbers in [0, 1) with these `numbers`."""
    bits = numbers * np.uint64(GOLDEN) + np.uint64(key)
    for shift, factor in MIX:
        bits = (bits ^ (bits >> np.uint64(shift))) * np.uint64(factor)
    bits ^= bits >> np.uint64(LAST_SHIFT)
    return np.asarray((bits >> np.uint64(DROPPED)) * UNIT, np.float64)
