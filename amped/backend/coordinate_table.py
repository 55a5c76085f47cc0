"""A hash table of the coordinates of nonzeros, which finds the nonzero at a coordinate.

It has open addressing with linear probing. A slot contains the position of a nonzero, or `EMPTY`; coordinates are
compared with those of the nonzero, so that different ones with equal hashes are distinguished.
"""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from .counter_rng import GOLDEN, MIX

EMPTY = -1
FILLED = 2  # slots per nonzero at least
MARKED = 16  # marks per nonzero at least
HASHED = MIX[0][1]  # the factor of the hash


def table_size(nnz: int, each: int = FILLED) -> int:
    """Return the number of slots for `nnz` nonzeros, `each` or more per nonzero: a power of two of at least 8."""
    return 1 << max(7, each * nnz - 1).bit_length()


def slots_of(coordinates: NDArray[np.int32]) -> NDArray[np.int32]:
    """Return the table of distinct coordinates, (nnz, order), as an array of positions."""
    slots = np.full(table_size(len(coordinates)), EMPTY, np.int32)
    places, left = _hashed(coordinates, slots.size), np.arange(len(coordinates), dtype=np.int32)
    while left.size:
        free = slots[places] == EMPTY
        slots[places[free]] = left[free]  # of several, one remains
        lost = slots[places] != left
        places, left = (places[lost] + 1) & (slots.size - 1), left[lost]
    return slots


def find(slots: NDArray[np.int32], coordinates: NDArray[np.int32], wanted: NDArray[np.int32]) -> NDArray[np.int64]:
    """Return the positions of wanted coordinates, (n, order), among those in the table; `EMPTY` if absent."""
    found, left = np.full(len(wanted), EMPTY, np.int64), np.arange(len(wanted))
    places = _hashed(wanted, slots.size)
    while left.size:
        position = slots[places]
        places, left, position = (each[position != EMPTY] for each in (places, left, position))
        same = (coordinates[position] == wanted[left]).all(axis=1)
        found[left[same]] = position[same]
        places, left = (places[~same] + 1) & (slots.size - 1), left[~same]
    return found


def marks_of(coordinates: NDArray[np.int32], bits: int) -> NDArray[np.uint8]:
    """Return `bits` marks, a power of two: of the hashes of coordinates, eight in a byte.

    They show that most absent coordinates are absent, in a cache that the table would exceed.
    """
    marks, places = np.zeros(bits >> 3, np.uint8), _hashed(coordinates, bits)
    np.bitwise_or.at(marks, places >> 3, (1 << (places & 7)).astype(np.uint8))
    return marks


def _hashed(coordinates: NDArray[np.int32], size: int) -> NDArray[np.int64]:
    """Return the slot at which the search for each coordinate begins, or the number of its mark."""
    state = np.zeros(len(coordinates), np.uint64)
    for column in coordinates.T:
        state = (state ^ column.astype(np.uint64)) * np.uint64(HASHED)
        state ^= state >> np.uint64(32)
    state *= np.uint64(GOLDEN)
    return np.asarray(state >> np.uint64(32), np.int64) & (size - 1)
