"""The model of a row's nonzeros, in blocks: Pi, and the passes over it that a row problem takes.

A block has the columns of Pi of up to `block` nonzeros, eight of them side by side, and then what is known of each:
its value x, how far the model's value m is below the floor, 1 / max(m, floor), and x / max(m, floor). Where a row's
blocks fit in the thread's memory they are made once (`keep`), else anew in each pass. What nonzeros add up to is
added up part by part, so that threads that share a row's parts come to the same sums.

A `row` is a tuple:

- addresses of the values and of each input mode's indices, (1 + inputs,) int64;
- addresses of the input factor matrices, (inputs,) int64;
- form: whether indices are of 16 bits, whether numbers are in double precision, columns of a factor matrix in memory,
  the rank, the same in whole fours, the nonzeros of a block, and those of a part, in whole blocks;
- room: the thread's float64 memory: a tile of eight rows of Pi, then blocks;
- floor;
- the first nonzero, their number, and whether all blocks are kept.
"""

from __future__ import annotations

import numpy as np

from partitioner.host.jit import inner

from ..simd.doubles import (
    EIGHT,
    FOUR,
    choose,
    each,
    fold,
    fused,
    index,
    larger,
    load,
    log_of_ratio,
    minus,
    number,
    over,
    piece,
    plus,
    smaller,
    store,
    times,
    times_four,
    total,
    turn,
)
from ..simd.thread_team import inlined

VALUE, LACK, INVERSE, WEIGHT = range(4)
FACTS = 4  # of a nonzero, after its column of Pi
NO_LESS = -1e-15  # of a model: rounding of what is at the floor
PART, PART_RANK = 8192, 64  # nonzeros of a part, at least: all, and for each column, as a part has a Hessian
ROOM = 2048  # numbers of Pi in a block: they stay in the first cache while they are used


def block_of(padded: int) -> int:
    """Return the nonzeros of a block."""
    return max(4 * EIGHT, ROOM // padded // EIGHT * EIGHT)


def part_of(padded: int) -> int:
    """Return the nonzeros of a part."""
    return -(-max(PART, PART_RANK * padded) // block_of(padded)) * block_of(padded)


def room_of(padded: int, nonzeros: int) -> int:
    """Return the numbers of memory in which a row of so many nonzeros is kept."""
    blocks = -(-nonzeros // block_of(padded))
    return EIGHT * padded + blocks * block_of(padded) * (padded + FACTS)


def kept_in(padded: int, numbers: int) -> int:
    """Return the most nonzeros of a row that is kept in so many numbers."""
    return (numbers - EIGHT * padded) // (block_of(padded) * (padded + FACTS)) * block_of(padded)


@inlined
def _width(row, first):  # type: ignore[no-untyped-def]
    """Return the length of a block's rows: its nonzeros in whole eights."""
    return -(-min(row[2][5], row[6] - first) // EIGHT) * EIGHT


@inlined
def _place(row, first):  # type: ignore[no-untyped-def]
    """Return where a block begins in the room."""
    padded = row[2][4]
    return EIGHT * padded + (first * (padded + FACTS) if row[7] else 0)


@inner
def fill(row, first):  # type: ignore[no-untyped-def]
    """Write Pi and the values of a block; what is left of the last eight is zero."""
    columns, matrices, form, room, _, begin, count, _ = row
    narrow, wide, stride, _, padded, _, _ = form
    at, width = _place(row, first), _width(row, first)
    for j in range(0, width, EIGHT):
        for k in range(EIGHT):
            q = begin + first + j + k
            if first + j + k < count:
                room[at + padded * width + j + k] = number(columns[0], q, wide)
                for m in range(matrices.size):
                    source = index(columns[m + 1], q, narrow) * stride
                    for c in range(0, padded, FOUR):
                        factor = piece(matrices[m], source + c, wide)
                        if m > 0:
                            factor = times_four(factor, room, k * padded + c)
                        store(room, k * padded + c, factor)
            else:
                room[at + padded * width + j + k] = 0.0
                for c in range(padded):
                    room[k * padded + c] = 0.0
        for c in range(0, padded, FOUR):
            turn(room, c, padded, room, at + c * width + j, width)


@inner
def model(row, b, first):  # type: ignore[no-untyped-def]
    """Write what is known of a block's nonzeros at `b`; return a negative number if one is below the floor."""
    room, rank, padded = row[3], row[2][3], row[2][4]
    at, width, floor = _place(row, first), _width(row, first), each(row[4])
    facts, lowest = at + padded * width, each(0.0)
    for j in range(0, width, EIGHT):
        m = each(0.0)
        for r in range(rank):
            if b[r] != 0:
                m = fused(each(b[r]), load(room, at + r * width + j), m)
        floored = larger(m, floor)
        inverse = over(each(1.0), floored)
        lack, value = minus(m, floored), load(room, facts + j)
        lowest = fused(lack, value, lowest)
        store(room, facts + LACK * width + j, lack)
        store(room, facts + INVERSE * width + j, inverse)
        store(room, facts + WEIGHT * width + j, times(value, inverse))
    return total(lowest)


@inner
def counts_of(row):  # type: ignore[no-untyped-def]
    """Return the sum of a row's values."""
    counts = 0.0
    for start in range(0, row[6], row[2][6]):
        of_part = 0.0
        for q in range(row[5] + start, row[5] + min(start + row[2][6], row[6])):
            of_part += number(row[0][0], q, row[2][1])
        counts += of_part
    return counts


@inner
def keep(row):  # type: ignore[no-untyped-def]
    """Fill all blocks, if they are kept."""
    if row[7]:
        for first in range(0, row[6], row[2][5]):
            fill(row, first)


@inlined
def _ready(row, b, first):  # type: ignore[no-untyped-def]
    """Make a block that is not kept."""
    if not row[7]:
        fill(row, first)
        model(row, b, first)


@inner
def gradient(row, b, phi, sums):  # type: ignore[no-untyped-def]
    """Write the row of Phi at `b`; return a negative number if a nonzero's model is below the floor.

    `phi` and `sums`, which is overwritten, have eight numbers more than the rank in whole fours.
    """
    lowest, part, parts = 0.0, row[2][6], row[6] > row[2][6]
    for r in range(sums.size if parts else 0):
        sums[r] = 0.0
    for start in range(0, row[6], part):
        for r in range(phi.size):
            phi[r] = 0.0
        for first in range(start, min(start + part, row[6]), row[2][5]):
            if not row[7]:
                fill(row, first)
            lowest += model(row, b, first)
            _add_gradient(row, first, phi)
        for r in range(sums.size if parts else 0):
            sums[r] += phi[r]
    for r in range(sums.size if parts else 0):
        phi[r] = sums[r]
    return lowest


@inlined
def _add_gradient(row, first, phi):  # type: ignore[no-untyped-def]
    """Add a block's part of the row of Phi."""
    room, padded = row[3], row[2][4]
    at, width, none = _place(row, first), _width(row, first), each(0.0)
    weights = at + (padded + WEIGHT) * width
    for r in range(0, row[2][3], FOUR):
        place, s, t, u, v = at + r * width, none, none, none, none
        for j in range(0, width, EIGHT):
            w = load(room, weights + j)
            s = fused(w, load(room, place + j), s)
            t = fused(w, load(room, place + width + j), t)
            u = fused(w, load(room, place + 2 * width + j), u)
            v = fused(w, load(room, place + 3 * width + j), v)
        store(phi, r, plus(load(phi, r), fold(s, t, u, v, none, none, none, none)))


@inlined
def _moved(row, step, at, width, j):  # type: ignore[no-untyped-def]
    """Return by how much a step moves the model's values of eight nonzeros."""
    d = each(0.0)
    for r in range(row[2][3]):
        if step[r] != 0:
            d = fused(each(step[r]), load(row[3], at + r * width + j), d)
    return d


@inlined
def _gain(row, d, facts, width, j, t):  # type: ignore[no-untyped-def]
    """Return what the logarithms of eight nonzeros gain from ``t * d``, and what is left above the floor."""
    room, zero = row[3], each(0.0)
    lack, inverse = load(room, facts + LACK * width + j), load(room, facts + INVERSE * width + j)
    moved_to = fused(d, each(t), lack)
    linear = choose(lack, minus(smaller(moved_to, zero), lack), zero)
    ratio = times(choose(lack, larger(moved_to, zero), moved_to), inverse)
    left = minus(plus(ratio, each(1.0)), times(each(row[4]), inverse))
    return fused(linear, inverse, log_of_ratio(larger(ratio, each(-1 + 1e-15)))), left


@inner
def change(row, b, step, t):  # type: ignore[no-untyped-def]
    """Return how much the objective changes from `b` to ``b + t * step``: exact to rounding of the change itself.

    Below the floor the logarithm goes on as a straight line: Phi is its slope there too. Infinity if a nonzero's model
    that is above the floor comes below it: Newton steps take long to bring it up again.
    """
    room, padded, lost, least = row[3], row[2][4], 0.0, each(1.0)
    for start in range(0, row[6], row[2][6]):
        gains = each(0.0)
        for first in range(start, min(start + row[2][6], row[6]), row[2][5]):
            _ready(row, b, first)
            at, width = _place(row, first), _width(row, first)
            facts = at + padded * width
            for j in range(0, width, EIGHT):
                gain, left = _gain(row, _moved(row, step, at, width, j), facts, width, j, t)
                least = smaller(left, least)
                gains = fused(load(room, facts + j), gain, gains)
        lost += -total(gains)
    moved = 0.0
    for r in range(row[2][3]):
        moved += step[r]
    store(room, 0, least)  # the tile is free
    return lost + t * moved if _least(room, 0) >= NO_LESS else np.inf


@inner
def changes(row, b, step, sums, out):  # type: ignore[no-untyped-def]
    """Write what a part's nonzeros change the objective by for steps of length 1, 1/2, 1/4, ...; see `change`.

    `sums` has room for 16 numbers for each of `out`.
    """
    room, padded = row[3], row[2][4]
    for k in range(out.size):
        store(sums, 2 * EIGHT * k, each(0.0))
        store(sums, 2 * EIGHT * k + EIGHT, each(1.0))
    for first in range(0, row[6], row[2][5]):
        _ready(row, b, first)
        at, width = _place(row, first), _width(row, first)
        facts = at + padded * width
        for j in range(0, width, EIGHT):
            d, t = _moved(row, step, at, width, j), 1.0
            for k in range(out.size):
                gain, left = _gain(row, d, facts, width, j, t)
                gains, least = load(sums, 2 * EIGHT * k), load(sums, 2 * EIGHT * k + EIGHT)
                store(sums, 2 * EIGHT * k, fused(load(room, facts + j), gain, gains))
                store(sums, 2 * EIGHT * k + EIGHT, smaller(left, least))
                t /= 2
    for k in range(out.size):
        gained = total(load(sums, 2 * EIGHT * k))
        out[k] = -gained if _least(sums, 2 * EIGHT * k + EIGHT) >= NO_LESS else np.inf


@inlined
def _least(numbers, at):  # type: ignore[no-untyped-def]
    """Return the least of eight numbers."""
    least = np.inf
    for k in range(EIGHT):
        least = min(least, numbers[at + k])
    return least


@inner
def curvature(row, b, which, count, tiles, sums, hessian):  # type: ignore[no-untyped-def]
    """Write the second derivatives at `b` of the first `count` components of `which`, which ascend.

    `tiles` and `sums` have room for 8 sums for each 2 x 4 of them.
    """
    for n in range(sums.size):
        sums[n] = 0.0
    for start in range(0, row[6], row[2][6]):
        for n in range(tiles.size):
            tiles[n] = 0.0
        for first in range(start, min(start + row[2][6], row[6]), row[2][5]):
            _ready(row, b, first)
            _add_curvature(row, first, which, count, tiles)
        for n in range(tiles.size):
            sums[n] += tiles[n]
    tile = 0
    for i in range(0, count, 2):
        for k in range(0, min(i + 2, count), FOUR):
            for n in range(EIGHT):
                p, q = i + n // FOUR, k + n % FOUR
                if q <= p < count:
                    hessian[p, q] = hessian[q, p] = sums[tile + n]
            tile += EIGHT


@inlined
def _add_curvature(row, first, which, count, tiles):  # type: ignore[no-untyped-def]
    """Add a block's part of the second derivatives."""
    last, tile = count - 1, 0
    for i in range(0, count, 2):
        for k in range(0, min(i + 2, count), FOUR):
            pair = which[i], which[min(i + 1, last)]
            four = which[k], which[min(k + 1, last)], which[min(k + 2, last)], which[min(k + 3, last)]
            _add_tile(row, first, pair, four, tiles, tile)
            tile += EIGHT


@inlined
def _add_tile(row, first, pair, four, tiles, tile):  # type: ignore[no-untyped-def]
    """Add a block's part of 2 x 4 second derivatives."""
    room, padded = row[3], row[2][4]
    at, width = _place(row, first), _width(row, first)
    inverses, weights = at + (padded + INVERSE) * width, at + (padded + WEIGHT) * width
    p, q = at + pair[0] * width, at + pair[1] * width
    c, d, e, f = at + four[0] * width, at + four[1] * width, at + four[2] * width, at + four[3] * width
    s0 = s1 = s2 = s3 = t0 = t1 = t2 = t3 = each(0.0)
    for j in range(0, width, EIGHT):
        weight = times(load(room, weights + j), load(room, inverses + j))
        s, t = times(weight, load(room, p + j)), times(weight, load(room, q + j))
        v = load(room, c + j)
        s0, t0 = fused(s, v, s0), fused(t, v, t0)
        v = load(room, d + j)
        s1, t1 = fused(s, v, s1), fused(t, v, t1)
        v = load(room, e + j)
        s2, t2 = fused(s, v, s2), fused(t, v, t2)
        v = load(room, f + j)
        s3, t3 = fused(s, v, s3), fused(t, v, t3)
    store(tiles, tile, plus(load(tiles, tile), fold(s0, s1, s2, s3, t0, t1, t2, t3)))
