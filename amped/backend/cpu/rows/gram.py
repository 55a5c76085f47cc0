"""Gram matrix of a row's nonzeros, and their squared residuals.

Blocks of Pi, with rows of a `width` that is a multiple of eight, stay in the L1 cache. Sums over nonzeros are
accumulated part by part, so that threads that share a row's parts obtain the same sums. A `row` is a tuple:

- addresses of the values and of each input mode's indices, (1 + inputs,) int64;
- addresses of the input factor matrices, (inputs,) int64;
- form: whether indices have 16 bits, whether numbers are in double precision, the row stride of factor matrices, the
  rank, the width, the nonzeros per block, and the nonzeros per part (whole blocks);
- the first nonzero, and the number of nonzeros.
"""

from __future__ import annotations

import numpy as np

from partitioner.host.jit import inner

from ..simd.doubles import (
    EIGHT,
    choose,
    each,
    eight,
    fused,
    index,
    load,
    number,
    plus,
    store,
    times,
    total,
    transpose,
)
from ..simd.outer import add_4x1, add_4x2, add_8x1, add_8x2
from . import model
from .equations import eight_products

BLOCK_NUMBERS = 3072  # numbers of Pi in a block
HALF = EIGHT // 2  # rows of a small tile


def width_of(rank: int) -> int:
    """Return the row length of Pi: its columns and the values, rounded up to a multiple of eight."""
    return (rank // EIGHT + 1) * EIGHT


def block_of(width: int) -> int:
    """Return the number of nonzeros of a block."""
    return model.block_of(width, BLOCK_NUMBERS)


def part_of(width: int) -> int:
    """Return the number of nonzeros of a part."""
    return model.part_of(width, BLOCK_NUMBERS)


@inner
def last_columns(rank):  # type: ignore[no-untyped-def]
    """Return what the last eight columns of Pi are: -1 where they are columns, and after these 1 at the value."""
    last = np.zeros(2 * EIGHT)
    for k in range(rank % EIGHT):
        last[k] = -1.0
    last[EIGHT + rank % EIGHT] = 1.0
    return last


@inner
def work_of(form):  # type: ignore[no-untyped-def]
    """Return work arrays of a thread.

    The Gram matrix, with rows of the width; Cholesky factor; product of two of them; eliminated matrix; sums of tiles,
    and of parts; a block of Pi; three vectors; pivots; a row, padded; see `last_columns`.
    """
    rank, width, block = form[3], form[4], form[5]
    last = last_columns(rank)
    matrices = np.zeros((rank + 1, width)), np.empty((rank, rank)), np.empty((rank, rank)), np.zeros((rank, width))
    sums = np.empty((width, width)), np.empty((width, width)), np.empty((block, width))
    return (*matrices, *sums, np.empty((3, rank)), np.empty(rank, np.int64), np.zeros(width), last)


@inner
def fill(row, first, count, pi, last):  # type: ignore[no-untyped-def]
    """Write `count` rows of Pi and the values."""
    columns, matrices, form, begin, _ = row
    narrow, wide, stride, rank, width, _, _ = form
    begin, inputs = begin + first, matrices.size
    # The first three modes at once; addresses in arrays would be read again after each store.
    values, one, other, last_one = columns[0], columns[1], columns[min(2, inputs)], columns[min(3, inputs)]
    matrix, second, third = matrices[0], matrices[min(1, inputs - 1)], matrices[min(2, inputs - 1)]
    mask, unit, tail = load(last, 0), load(last, EIGHT), rank // EIGHT * EIGHT
    for j in range(count):
        at, p = j * width, index(one, begin + j, narrow) * stride
        q, r = index(other, begin + j, narrow) * stride, index(last_one, begin + j, narrow) * stride
        for c in range(0, rank, EIGHT):
            product = eight(matrix, p + c, wide, stride)
            if inputs > 1:
                product = times(product, eight(second, q + c, wide, stride))
            if inputs > 2:
                product = times(product, eight(third, r + c, wide, stride))
            store(pi, at + c, product)
    for m in range(3, inputs):
        _multiply(pi, columns[m + 1], matrices[m], begin, count, form)
    for j in range(count):
        at, value = j * width + tail, times(each(number(values, begin + j, wide)), unit)
        store(pi, at, choose(mask, load(pi, at), value))


@inner
def complete(pi, count, width):  # type: ignore[no-untyped-def]
    """Write rows of zeros after `count` rows of Pi, up to a multiple of eight."""
    for at in range(count * width, -(-count // EIGHT) * EIGHT * width, EIGHT):
        store(pi, at, each(0.0))


@inner
def _multiply(pi, column, matrix, begin, count, form):  # type: ignore[no-untyped-def]
    """Multiply the rows of Pi by factor rows of one more mode."""
    narrow, wide, stride, rank, width, _, _ = form
    for j in range(count):
        at, p = j * width, index(column, begin + j, narrow) * stride
        for c in range(0, rank, EIGHT):
            store(pi, at + c, times(load(pi, at + c), eight(matrix, p + c, wide, stride)))


@inner
def only_row(row, work):  # type: ignore[no-untyped-def]
    """Write the row of Pi, and the value, of a row with one nonzero."""
    fill(row, 0, 1, work[6], work[10])


@inner
def gram(row, work):  # type: ignore[no-untyped-def]
    """Write the Gram matrix of Pi and the values, both triangles."""
    result, tiles, sums, pi, last = work[0], work[4], work[5], work[6], work[10]
    _, _, form, _, count = row
    columns, width, block, part = form[3] + 1, form[4], form[5], form[6]
    for start in range(0, count, part):
        target = sums if start == 0 else tiles
        for n in range(0, width * width, EIGHT):
            store(target, n, each(0.0))
        for first in range(start, min(start + part, count), block):
            of_block = min(block, count - first)
            fill(row, first, of_block, pi, last)
            complete(pi, of_block, width)
            _add_block(pi, of_block, columns, width, target)
        if start > 0:
            for n in range(0, width * width, EIGHT):
                store(sums, n, plus(load(sums, n), load(tiles, n)))
    for i in range(0, columns, EIGHT):
        for at in range(i * width, min(i + EIGHT, columns) * width, width):
            for c in range(at, at + i + EIGHT, EIGHT):
                store(result, c, load(sums, c))
        for k in range(0, i, HALF):
            transpose(sums, i * width + k, width, result, k * width + i, width)


@inner
def _add_block(pi, count, columns, width, target):  # type: ignore[no-untyped-def]
    """Add a block's contribution to the Gram matrix, of which tiles of the lower triangle are computed."""
    for i in range(0, columns, EIGHT):
        for k in range(0, i + 1, 2 * EIGHT):
            if columns - i > HALF:
                if k < i:
                    add_8x2(pi, width, count, i, k, target)
                else:
                    add_8x1(pi, width, count, i, k, target)
            elif k < i:
                add_4x2(pi, width, count, i, k, target)
            else:
                add_4x1(pi, width, count, i, k, target)


@inner
def residual(row, work):  # type: ignore[no-untyped-def]
    """Return the sum of the squared residuals of a row's nonzeros; the padded row in `work` is b followed by -1."""
    result, pi, padded, last = 0.0, work[6], work[9], work[10]
    _, _, form, _, count = row
    width, block, part = form[4], form[5], form[6]
    for start in range(0, count, part):
        squares = each(0.0)
        for first in range(start, min(start + part, count), block):
            of_block = min(block, count - first)
            fill(row, first, of_block, pi, last)
            complete(pi, of_block, width)
            for at in range(0, of_block * width, EIGHT * width):
                errors = eight_products(pi, at, padded, width)
                squares = fused(errors, errors, squares)
        result += total(squares)
    return result
