"""Fibres of sorted nonzeros, cut into chunks of about equal size for parallel summation.

Needs no device.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from .device import Array

FAN_IN = 64  # carries that are summed sequentially


class Chunks(NamedTuple):
    """Chunks of nonzeros, and the summation of their carries.

    If a fibre continues after a chunk, the chunk's partial sum of it is a *carry*, stored in a slot. The chunk where
    the fibre ends stores its partial sum as the fibre's result, to which the carries are then added.
    """

    table: NDArray[np.int32]  # (chunks, 4): first nonzero, end, fibre of the first nonzero, slot of the carry or -1
    levels: tuple[
        NDArray[np.int32], ...
    ]  # each (items, 4): first slot, end, fibre that gets the sum or -1, else its slot
    slots: int  # number of slots


def most_slots(chunks: int) -> int:
    """Return an upper bound of the slots for a number of chunks, including the levels of sums."""
    return chunks + chunks // (FAN_IN // 4) + FAN_IN


def cut_chunks(starts: Array, nonzeros: int, size: int, slack: int) -> Chunks:
    """Cut nonzeros into chunks of about `size`; a cut moves to a fibre boundary if one is within `slack` nonzeros.

    Parameters
    ----------
    starts : (fibres + 1,) integer array
        Starts of the fibres, and the end, in host memory.
    nonzeros, size, slack : int
        `size` must be more than twice `slack`.
    """
    chunks = -(-nonzeros // size)
    if not chunks:
        return with_slots(np.empty((0, 4), np.int32))
    target = np.arange(chunks, dtype=np.int64) * size
    fibre = np.searchsorted(starts, target, "right") - 1
    before, after = starts[fibre].astype(np.int64), starts[fibre + 1].astype(np.int64)
    back, on = target - before, after - target
    nearest = np.where(back <= on, before, after)
    begin = np.minimum(np.where(np.minimum(back, on) <= slack, nearest, target), nonzeros)
    end = np.append(begin[1:], nonzeros)
    last = np.searchsorted(starts, np.maximum(end, 1) - 1, "right") - 1  # the fibre of the last nonzero
    continues = (end > begin) & (starts[last + 1] > end)
    fibre = np.searchsorted(starts, begin, "right") - 1
    return with_slots(np.stack([begin, end, fibre, np.where(continues, last, -1)], axis=1).astype(np.int32))


def with_slots(table: NDArray[np.int32]) -> Chunks:
    """Return chunks whose carries have slots; column 3 of `table` is the fibre that continues after a chunk, or -1."""
    continues = table[:, 3] >= 0
    levels = _levels(table[continues, 3])
    table[:, 3] = np.where(continues, np.cumsum(continues) - 1, -1)
    return Chunks(table, *levels)


def _levels(fibres: NDArray[np.int32]) -> tuple[tuple[NDArray[np.int32], ...], int]:
    """Return the levels that sum the carries of these fibres, which are ascending, and the number of slots."""
    levels: list[NDArray[np.int32]] = []
    first, slots = 0, int(fibres.size)  # slots of the carries that remain to be summed
    while fibres.size:
        places = np.arange(fibres.size, dtype=np.int64)
        starts = np.concatenate([np.zeros(1, np.int64), np.flatnonzero(fibres[1:] != fibres[:-1]) + 1])
        ends = np.concatenate([starts[1:], np.asarray([fibres.size], np.int64)])
        run = np.searchsorted(starts, places, "right") - 1
        begin = np.flatnonzero((places - starts[run]) % FAN_IN == 0)
        run = run[begin]
        end = np.minimum(begin + FAN_IN, ends[run])
        several = ends[run] - starts[run] > FAN_IN
        items = np.empty((begin.size, 4), np.int32)
        items[:, 0], items[:, 1] = begin + first, end + first
        items[:, 2] = np.where(several, -1, fibres[begin])
        items[:, 3] = slots + np.cumsum(several) - 1
        levels.append(items)
        fibres = fibres[begin[several]]
        first, slots = slots, slots + int(fibres.size)
    return tuple(levels), slots


COUNTED = 1 << 24  # nonzeros processed at once
Starts = Callable[[Sequence[Array], int], Array]
"""Function that returns the starts of fibres: `fibre_starts`, or the one of a `DeviceSorter`."""


def fibre_starts(columns: Sequence[Array], nonzeros: int) -> Array:
    """Return the starts of the fibres, and the end, (fibres + 1,) int64.

    `columns` are the sorted indices, in host memory, of all modes but the mode of the fibres; empty for a single fibre.
    """
    first = np.zeros(nonzeros, np.bool_)
    first[:1] = True
    for column in columns:
        first[1:] |= column[1:] != column[:-1]
    return np.append(np.flatnonzero(first), nonzeros)


def count_fibres(columns: Sequence[Array], nonzeros: int, starts: Starts) -> int:
    """Return the number of fibres, whose starts a function returns."""
    fibres = 0
    for begin in range(0, nonzeros, COUNTED):
        before, end = max(0, begin - 1), min(begin + COUNTED, nonzeros)
        fibres += int(starts([column[before:end] for column in columns], end - before).size) - 1 - (begin > before)
    return fibres
