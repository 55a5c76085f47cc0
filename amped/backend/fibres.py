"""Fibres of sorted nonzeros, cut into chunks of about equal size for parallel summation.

Works with the given array module, NumPy or CuPy; needs no device.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, NamedTuple

import numpy as np

from .device import Array

FAN_IN = 64  # carries that are summed sequentially


class Chunks(NamedTuple):
    """Chunks of nonzeros, and the summation of their carries.

    If a fibre continues after a chunk, the chunk's partial sum of it is a *carry*, stored in a slot. The chunk where
    the fibre ends stores its partial sum as the fibre's result, to which the carries are then added.
    """

    table: Array  # (chunks, 4) int32: first nonzero, end, fibre of the first nonzero, slot of the carry or -1
    levels: tuple[Array, ...]  # each (items, 4) int32: first slot, end, fibre that gets the sum or -1, else its slot
    slots: int  # number of slots


def most_slots(chunks: int) -> int:
    """Return an upper bound of the slots for a number of chunks, including the levels of sums."""
    return chunks + chunks // (FAN_IN // 4) + FAN_IN


def cut_chunks(starts: Array, nonzeros: int, size: int, slack: int, xp: Any) -> Chunks:
    """Cut nonzeros into chunks of about `size`; a cut moves to a fibre boundary if one is within `slack` nonzeros.

    Parameters
    ----------
    starts : (fibres + 1,) integer array
        Starts of the fibres, and the end.
    nonzeros, size, slack : int
        `size` must be more than twice `slack`.
    xp : module
    """
    chunks = -(-nonzeros // size)
    if not chunks:
        return Chunks(xp.empty((0, 4), np.int32), (), 0)
    target = xp.arange(chunks, dtype=np.int64) * size
    fibre = xp.searchsorted(starts, target, "right") - 1
    before, after = starts[fibre].astype(np.int64), starts[fibre + 1].astype(np.int64)
    back, on = target - before, after - target
    nearest = xp.where(back <= on, before, after)
    begin = xp.where(xp.minimum(back, on) <= slack, nearest, target)
    begin = xp.minimum(begin, nonzeros)
    end = xp.concatenate([begin[1:], xp.asarray([nonzeros], np.int64)])
    fibre = xp.searchsorted(starts, begin, "right") - 1
    last = xp.searchsorted(starts, xp.maximum(end, 1) - 1, "right") - 1  # the fibre of the last nonzero
    open_ = (end > begin) & (starts[last + 1] > end)
    table = xp.empty((chunks, 4), np.int32)
    slot = xp.cumsum(open_) - 1
    table[:, 0], table[:, 1], table[:, 2] = begin, end, fibre
    table[:, 3] = xp.where(open_, slot, -1)
    return Chunks(table, *_levels(last[xp.flatnonzero(open_)], xp))


def _levels(fibres: Array, xp: Any) -> tuple[tuple[Array, ...], int]:
    """Return the levels that sum the carries of these fibres, which are ascending, and the number of slots."""
    levels: list[Array] = []
    first, slots = 0, int(fibres.size)  # slots of the carries that remain to be summed
    while fibres.size:
        places = xp.arange(fibres.size, dtype=np.int64)
        starts = xp.concatenate([xp.zeros(1, np.int64), xp.flatnonzero(fibres[1:] != fibres[:-1]) + 1])
        ends = xp.concatenate([starts[1:], xp.asarray([fibres.size], np.int64)])
        run = xp.searchsorted(starts, places, "right") - 1
        begin = xp.flatnonzero((places - starts[run]) % FAN_IN == 0)
        run = run[begin]
        end = xp.minimum(begin + FAN_IN, ends[run])
        several = ends[run] - starts[run] > FAN_IN
        items = xp.empty((begin.size, 4), np.int32)
        items[:, 0], items[:, 1] = begin + first, end + first
        items[:, 2] = xp.where(several, -1, fibres[begin])
        items[:, 3] = slots + xp.cumsum(several) - 1
        levels.append(items)
        fibres = fibres[begin[several]]
        first, slots = slots, slots + int(fibres.size)
    return tuple(levels), slots


COUNTED = 1 << 24  # nonzeros processed at once


def fibre_starts(columns: Sequence[Array], nonzeros: int, xp: Any) -> Array:
    """Return the starts of the fibres, and the end, (fibres + 1,) int64.

    `columns` are the sorted indices of all modes but the mode of the fibres; empty for a single fibre.
    """
    first = _first(columns, 0, nonzeros, xp)
    starts = xp.empty(int(xp.count_nonzero(first)) + 1, np.int64)
    starts[:-1] = xp.flatnonzero(first)
    starts[-1] = nonzeros
    return starts


def count_fibres(columns: Sequence[Array], nonzeros: int, xp: Any) -> int:
    """Return the number of fibres; see `fibre_starts`."""
    blocks = range(0, nonzeros, COUNTED)
    return sum(int(xp.count_nonzero(_first(columns, b, min(b + COUNTED, nonzeros), xp))) for b in blocks)


def _first(columns: Sequence[Array], begin: int, end: int, xp: Any) -> Array:
    """Return whether each nonzero in a range is the first of its fibre."""
    first = xp.zeros(end - begin, np.bool_)
    if begin == 0:
        first[:1] = True
    before = max(0, begin - 1)
    for column in columns:
        part = column[before:end]
        first[before + 1 - begin :] |= part[1:] != part[:-1]
    return first
