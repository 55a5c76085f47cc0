"""The model's values at a row's nonzeros, in blocks: Pi, and the passes over it that a row problem needs.

A block has the columns of Pi for up to `block` nonzeros, eight nonzeros side by side, followed by four numbers for each
nonzero: its value x; how far the model's value m is below the floor; 1 / max(m, floor); x / max(m, floor). If all
blocks of a row fit into the thread's memory they are computed once (`keep`), otherwise again in each pass. Sums over
nonzeros are accumulated part by part, so that threads that share a row's parts obtain the same sums.

A `row` is a tuple:

- addresses of the values and of each input mode's indices, (1 + inputs,) int64;
- addresses of the input factor matrices, (inputs,) int64;
- form: whether indices have 16 bits, whether numbers are in double precision, the row stride of factor matrices, the
  rank, the rank rounded up to a multiple of four, the nonzeros per block, and the nonzeros per part (whole blocks);
- scratch: the thread's float64 memory: a tile of eight rows of Pi, then blocks;
- floor;
- the first nonzero, the number of nonzeros, and whether all blocks are kept.
"""

from __future__ import annotations

import numpy as np

from partitioner.host.jit import inner

from ...row_constants import NO_LESS
from ..simd.doubles import (
    EIGHT,
    FOUR,
    add_weighted,
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
    transpose,
)
from ..simd.thread_team import inlined

VALUE, LACK, INVERSE, WEIGHT = range(4)
FACTS = 4  # numbers per nonzero, after its column of Pi
PART, PART_RANK = 8192, 64  # least nonzeros of a part: in all, and per column, because each part may have a Hessian
BLOCK_NUMBERS = 2048  # numbers of Pi in a block, which stay in the L1 cache


def block_of(padded: int, numbers: int = BLOCK_NUMBERS) -> int:
    """Return the number of nonzeros of a block of at most `numbers` numbers, but of at least 32 nonzeros."""
    return max(4 * EIGHT, numbers // padded // EIGHT * EIGHT)


def part_of(padded: int, numbers: int = BLOCK_NUMBERS) -> int:
    """Return the number of nonzeros of a part, which consists of whole blocks."""
    block = block_of(padded, numbers)
    return -(-max(PART, PART_RANK * padded) // block) * block


def scratch_size(padded: int, nonzeros: int) -> int:
    """Return the size of the scratch, in float64 numbers, needed to keep a row with this many nonzeros."""
    blocks = -(-nonzeros // block_of(padded))
    return EIGHT * padded + blocks * block_of(padded) * (padded + FACTS)


def kept_in(padded: int, numbers: int) -> int:
    """Return the most nonzeros of a row that can be kept in a scratch of `numbers` float64 numbers."""
    return (numbers - EIGHT * padded) // (block_of(padded) * (padded + FACTS)) * block_of(padded)


@inlined
def _width(row, first):  # type: ignore[no-untyped-def]
    """Return the row length of a block: its nonzeros, rounded up to a multiple of eight."""
    return -(-min(row[2][5], row[6] - first) // EIGHT) * EIGHT


@inlined
def _place(row, first):  # type: ignore[no-untyped-def]
    """Return the offset of a block in the scratch."""
    padded = row[2][4]
    return EIGHT * padded + (first * (padded + FACTS) if row[7] else 0)


@inner
def fill(row, first):  # type: ignore[no-untyped-def]
    """Write Pi and the values of a block; the rest of the last eight is zero."""
    columns, matrices, form, scratch, _, begin, count, _ = row
    narrow, wide, stride, _, padded, _, _ = form
    at, width = _place(row, first), _width(row, first)
    for j in range(0, width, EIGHT):
        for k in range(EIGHT):
            q = begin + first + j + k
            if first + j + k < count:
                scratch[at + padded * width + j + k] = number(columns[0], q, wide)
                for m in range(matrices.size):
                    source = index(columns[m + 1], q, narrow) * stride
                    for c in range(0, padded, FOUR):
                        factor = piece(matrices[m], source + c, wide)
                        if m > 0:
                            factor = times_four(factor, scratch, k * padded + c)
                        store(scratch, k * padded + c, factor)
            else:
                scratch[at + padded * width + j + k] = 0.0
                for c in range(padded):
                    scratch[k * padded + c] = 0.0
        for c in range(0, padded, FOUR):
            transpose(scratch, c, padded, scratch, at + c * width + j, width)


@inner
def model(row, b, first):  # type: ignore[no-untyped-def]
    """Write the facts of a block's nonzeros at `b`; return a negative number if one is below the floor."""
    scratch, rank, padded = row[3], row[2][3], row[2][4]
    at, width, floor = _place(row, first), _width(row, first), each(row[4])
    facts, lowest = at + padded * width, each(0.0)
    for j in range(0, width, EIGHT):
        m = each(0.0)
        for r in range(rank):
            if b[r] != 0:
                m = fused(each(b[r]), load(scratch, at + r * width + j), m)
        floored = larger(m, floor)
        inverse = over(each(1.0), floored)
        lack, value = minus(m, floored), load(scratch, facts + j)
        lowest = fused(lack, value, lowest)
        store(scratch, facts + LACK * width + j, lack)
        store(scratch, facts + INVERSE * width + j, inverse)
        store(scratch, facts + WEIGHT * width + j, times(value, inverse))
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
    """Compute all blocks, if they are kept."""
    if row[7]:
        for first in range(0, row[6], row[2][5]):
            fill(row, first)


@inlined
def _recompute(row, b, first):  # type: ignore[no-untyped-def]
    """Compute a block that is not kept."""
    if not row[7]:
        fill(row, first)
        model(row, b, first)


@inner
def gradient(row, b, phi, sums):  # type: ignore[no-untyped-def]
    """Write the row of Phi at `b`; return a negative number if the model is below the floor at a nonzero.

    `phi` and `sums`, which is overwritten, are longer by eight than the rank rounded up to a multiple of four.
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
    """Add a block's contribution to the row of Phi."""
    scratch, padded = row[3], row[2][4]
    at, width = _place(row, first), _width(row, first)
    weights = at + (padded + WEIGHT) * width
    for r in range(0, row[2][3], FOUR):
        add_weighted(phi, r, scratch, weights, at + r * width, width)


@inlined
def _model_change(row, step, at, width, j):  # type: ignore[no-untyped-def]
    """Return the change of the model's values at eight nonzeros by a step."""
    d = each(0.0)
    for r in range(row[2][3]):
        if step[r] != 0:
            d = fused(each(step[r]), load(row[3], at + r * width + j), d)
    return d


@inlined
def _gain(row, d, facts, width, j, t):  # type: ignore[no-untyped-def]
    """Return the change of eight nonzeros' logarithms by ``t * d``, and the new relative distances from the floor."""
    scratch, zero = row[3], each(0.0)
    lack, inverse = load(scratch, facts + LACK * width + j), load(scratch, facts + INVERSE * width + j)
    moved_to = fused(d, each(t), lack)
    linear = choose(lack, minus(smaller(moved_to, zero), lack), zero)
    ratio = times(choose(lack, larger(moved_to, zero), moved_to), inverse)
    distance = minus(plus(ratio, each(1.0)), times(each(row[4]), inverse))
    return fused(linear, inverse, log_of_ratio(larger(ratio, each(-1 + 1e-15)))), distance


@inner
def change(row, b, step, t):  # type: ignore[no-untyped-def]
    """Return the change of the objective from `b` to ``b + t * step``, accurate relative to the change itself.

    Below the floor the logarithm is continued linearly; Phi is its slope there too. The result is infinite if the model
    falls below the floor at a nonzero where it was above: Newton steps would take long to raise it again.
    """
    scratch, padded, objective, least = row[3], row[2][4], 0.0, each(1.0)
    for start in range(0, row[6], row[2][6]):
        gains = each(0.0)
        for first in range(start, min(start + row[2][6], row[6]), row[2][5]):
            _recompute(row, b, first)
            at, width = _place(row, first), _width(row, first)
            facts = at + padded * width
            for j in range(0, width, EIGHT):
                gain, distance = _gain(row, _model_change(row, step, at, width, j), facts, width, j, t)
                least = smaller(distance, least)
                gains = fused(load(scratch, facts + j), gain, gains)
        objective += -total(gains)
    moved = 0.0
    for r in range(row[2][3]):
        moved += step[r]
    store(scratch, 0, least)  # the tile is not in use
    return objective + t * moved if _minimum(scratch, 0) >= NO_LESS else np.inf


@inner
def changes(row, b, step, sums, out):  # type: ignore[no-untyped-def]
    """Write the changes of the objective by a part's nonzeros for steps of length 1, 1/2, 1/4, ...; see `change`.

    `sums` has 16 numbers for each element of `out`.
    """
    scratch, padded = row[3], row[2][4]
    for k in range(out.size):
        store(sums, 2 * EIGHT * k, each(0.0))
        store(sums, 2 * EIGHT * k + EIGHT, each(1.0))
    for first in range(0, row[6], row[2][5]):
        _recompute(row, b, first)
        at, width = _place(row, first), _width(row, first)
        facts = at + padded * width
        for j in range(0, width, EIGHT):
            d, t = _model_change(row, step, at, width, j), 1.0
            for k in range(out.size):
                gain, distance = _gain(row, d, facts, width, j, t)
                gains, least = load(sums, 2 * EIGHT * k), load(sums, 2 * EIGHT * k + EIGHT)
                store(sums, 2 * EIGHT * k, fused(load(scratch, facts + j), gain, gains))
                store(sums, 2 * EIGHT * k + EIGHT, smaller(distance, least))
                t /= 2
    for k in range(out.size):
        gained = total(load(sums, 2 * EIGHT * k))
        out[k] = -gained if _minimum(sums, 2 * EIGHT * k + EIGHT) >= NO_LESS else np.inf


@inlined
def _minimum(numbers, at):  # type: ignore[no-untyped-def]
    """Return the minimum of eight numbers."""
    least = np.inf
    for k in range(EIGHT):
        least = min(least, numbers[at + k])
    return least


@inner
def curvature(row, b, which, count, tiles, sums, hessian):  # type: ignore[no-untyped-def]
    """Write the Hessian at `b` for the first `count` components of `which`, which is ascending.

    `tiles` and `sums` have 8 numbers for each tile of 2 x 4 second derivatives.
    """
    for n in range(sums.size):
        sums[n] = 0.0
    for start in range(0, row[6], row[2][6]):
        for n in range(tiles.size):
            tiles[n] = 0.0
        for first in range(start, min(start + row[2][6], row[6]), row[2][5]):
            _recompute(row, b, first)
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
    """Add a block's contribution to the Hessian."""
    last, tile = count - 1, 0
    for i in range(0, count, 2):
        for k in range(0, min(i + 2, count), FOUR):
            pair = which[i], which[min(i + 1, last)]
            four = which[k], which[min(k + 1, last)], which[min(k + 2, last)], which[min(k + 3, last)]
            _add_tile(row, first, pair, four, tiles, tile)
            tile += EIGHT


@inlined
def _add_tile(row, first, pair, four, tiles, tile):  # type: ignore[no-untyped-def]
    """Add a block's contribution to 2 x 4 second derivatives."""
    scratch, padded = row[3], row[2][4]
    at, width = _place(row, first), _width(row, first)
    inverses, weights = at + (padded + INVERSE) * width, at + (padded + WEIGHT) * width
    p, q = at + pair[0] * width, at + pair[1] * width
    c, d, e, f = at + four[0] * width, at + four[1] * width, at + four[2] * width, at + four[3] * width
    s0 = s1 = s2 = s3 = t0 = t1 = t2 = t3 = each(0.0)
    for j in range(0, width, EIGHT):
        weight = times(load(scratch, weights + j), load(scratch, inverses + j))
        s, t = times(weight, load(scratch, p + j)), times(weight, load(scratch, q + j))
        v = load(scratch, c + j)
        s0, t0 = fused(s, v, s0), fused(t, v, t0)
        v = load(scratch, d + j)
        s1, t1 = fused(s, v, s1), fused(t, v, t1)
        v = load(scratch, e + j)
        s2, t2 = fused(s, v, s2), fused(t, v, t2)
        v = load(scratch, f + j)
        s3, t3 = fused(s, v, s3), fused(t, v, t3)
    store(tiles, tile, plus(load(tiles, tile), fold(s0, s1, s2, s3, t0, t1, t2, t3)))
