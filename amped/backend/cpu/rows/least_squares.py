"""Least squares over the nonzeros of each row: normal equations in double precision, solved where they are summed.

For a row of nonzeros x, whose products of the other modes' factor rows are the rows of Pi, the normal equations are
``(Pi^T Pi + ridge I) b = Pi^T x``. The values x are treated as one more column of Pi, so that the Gram matrix of
all columns contains both sides and the sum of squares.

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

from partitioner.host.jit import inner, jit

from ...ops.rowproblems import DEFICIENT, RESIDUAL
from ...row_constants import DOUBTED, LEAST_PIVOT, PRECISE
from ..simd.doubles import (
    EIGHT,
    choose,
    each,
    eight,
    fold,
    fused,
    index,
    load,
    plus,
    put_number,
    store,
    times,
    total,
    transpose,
)
from ..simd.doubles import number as number_at
from ..simd.outer import add_4x1, add_4x2, add_8x1, add_8x2
from ..simd.thread_team import add, fork, inlined, join
from .model import PART, PART_RANK

BLOCK_NUMBERS = 3072  # numbers of Pi in a block
HALF = EIGHT // 2  # rows of a small tile


def width_of(rank: int) -> int:
    """Return the row length of Pi: its columns and the values, rounded up to a multiple of eight."""
    return (rank // EIGHT + 1) * EIGHT


def block_of(width: int) -> int:
    """Return the number of nonzeros of a block."""
    return max(4 * EIGHT, BLOCK_NUMBERS // width // EIGHT * EIGHT)


def part_of(width: int) -> int:
    """Return the number of nonzeros of a part."""
    return -(-max(PART, PART_RANK * width) // block_of(width)) * block_of(width)


@inner
def work_of(form):  # type: ignore[no-untyped-def]
    """Return work arrays of a thread.

    The Gram matrix, with rows of the width; Cholesky factor; product of two of them; eliminated matrix; sums of tiles,
    and of parts; a block of Pi; three vectors; pivots; a row, padded; the last eight columns of Pi: -1 where they are
    columns, and 1 at the value.
    """
    rank, width, block = form[3], form[4], form[5]
    last = np.zeros(2 * EIGHT)
    last[: rank % EIGHT] = -1.0
    last[EIGHT + rank % EIGHT] = 1.0
    matrices = np.zeros((rank + 1, width)), np.empty((rank, rank)), np.empty((rank, rank)), np.zeros((rank, width))
    sums = np.empty((width, width)), np.empty((width, width)), np.empty((block, width))
    return (*matrices, *sums, np.empty((3, rank)), np.empty(rank, np.int64), np.zeros(width), last)


@inner
def _fill(row, first, count, pi, last):  # type: ignore[no-untyped-def]
    """Write `count` rows of Pi and the values, and rows of zeros up to a multiple of eight."""
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
        at, value = j * width + tail, times(each(number_at(values, begin + j, wide)), unit)
        store(pi, at, choose(mask, load(pi, at), value))
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
            _fill(row, first, of_block, pi, last)
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


@inlined
def _product(pi, at, row, width):  # type: ignore[no-untyped-def]
    """Return eight partial sums of the inner product of a row of Pi and a padded row."""
    result = times(load(pi, at), load(row, 0))
    for c in range(EIGHT, width, EIGHT):
        result = fused(load(pi, at + c), load(row, c), result)
    return result


@inner
def residual(row, work, padded):  # type: ignore[no-untyped-def]
    """Return the sum of the squared residuals of a row's nonzeros; `padded` is b followed by -1."""
    result, pi, last = 0.0, work[6], work[10]
    _, _, form, _, count = row
    width, block, part = form[4], form[5], form[6]
    for start in range(0, count, part):
        squares = each(0.0)
        for first in range(start, min(start + part, count), block):
            of_block = min(block, count - first)
            _fill(row, first, of_block, pi, last)
            for at in range(0, of_block * width, EIGHT * width):
                errors = fold(
                    _product(pi, at, padded, width),
                    _product(pi, at + width, padded, width),
                    _product(pi, at + 2 * width, padded, width),
                    _product(pi, at + 3 * width, padded, width),
                    _product(pi, at + 4 * width, padded, width),
                    _product(pi, at + 5 * width, padded, width),
                    _product(pi, at + 6 * width, padded, width),
                    _product(pi, at + 7 * width, padded, width),
                )
                squares = fused(errors, errors, squares)
        result += total(squares)
    return result


@inlined
def _pad(b, padded):  # type: ignore[no-untyped-def]
    """Write b followed by -1."""
    for r in range(b.size):
        padded[r] = b[r]
    padded[b.size] = -1.0


@inner
def _squares(matrix, padded):  # type: ignore[no-untyped-def]
    """Return the sum of squared residuals by a Gram matrix."""
    result, width = 0.0, matrix.shape[1]
    for r in range(matrix.shape[0]):
        result += padded[r] * total(_product(matrix, r * width, padded, width))
    return result


@inner
def solve_equations(work, ridge, sweeps, b):  # type: ignore[no-untyped-def]
    """Solve a row's equations, given their Gram matrix; return whether their solution is not unique.

    With `sweeps`, the row `b` >= 0 is improved by sweeps over its components (HALS). Otherwise it becomes the solution,
    the shortest one if there are several. The padded row in `work` becomes b followed by -1.
    """
    matrix, padded, deficient = work[0], work[9], False
    if sweeps > 0:
        _pad(b, padded)
        _descend(matrix, ridge, sweeps, padded)
        for r in range(b.size):
            b[r] = padded[r]
    elif _eliminate(matrix, ridge, work[3], padded):
        for r in range(b.size):
            b[r] = padded[r]
    else:
        for r in range(b.size):
            matrix[r, r] += ridge
        deficient = _least_squares(work, b)
        for r in range(b.size):
            matrix[r, r] -= ridge
        _pad(b, padded)
    return deficient


@inner
def _descend(matrix, ridge, sweeps, padded):  # type: ignore[no-untyped-def]
    width = padded.size
    for _ in range(sweeps):
        moved = False
        for r in range(matrix.shape[0] - 1):
            slope, pivot = -total(_product(matrix, r * width, padded, width)), matrix[r, r] + ridge
            value = max(padded[r] + (slope - ridge * padded[r]) / pivot, 0.0) if pivot > 0 else 0.0
            moved |= value != padded[r]
            padded[r] = value
        if not moved:
            return


@inner
def _eliminate(matrix, ridge, upper, padded):  # type: ignore[no-untyped-def]
    """Solve by Gaussian elimination of the symmetric matrix; return whether no pivot is too small.

    Rows are eliminated from the column on that begins the eight of their diagonal element.
    """
    rank, width = upper.shape
    for i in range(rank):
        for c in range(i // EIGHT * EIGHT, width, EIGHT):
            store(upper, i * width + c, load(matrix, i * width + c))
        upper[i, i] += ridge
    for k in range(rank):
        pivot = upper[k, k]
        if not pivot > DOUBTED * (matrix[k, k] + ridge):
            return False
        inverse = 1 / pivot
        for i in range(k + 1, rank):
            multiple = each(-inverse * upper[k, i])
            for c in range(i // EIGHT * EIGHT, width, EIGHT):
                at = i * width + c
                store(upper, at, fused(multiple, load(upper, k * width + c), load(upper, at)))
    for c in range(width):
        padded[c] = 0.0
    padded[rank] = -1.0
    for k in range(rank - 1, -1, -1):
        rest = each(0.0)
        for c in range(k // EIGHT * EIGHT, width, EIGHT):
            rest = fused(load(upper, k * width + c), load(padded, c), rest)
        padded[k] = -total(rest) / upper[k, k]
    return True


@inner
def _least_squares(work, b):  # type: ignore[no-untyped-def]
    """Solve by a Cholesky factorisation with pivots, of the matrix scaled to a unit diagonal.

    If it ends at `count` < R columns, the shortest solution is ``L S^-1 S^-1 L^T y``, where L (R, count) is the factor,
    ``S = L^T L``, and y the right-hand side.
    """
    matrix, lower, small, vectors, pivots = work[0], work[1], work[2], work[7], work[8]
    rank = b.size
    scale, left, y = vectors[0], vectors[1], vectors[2]
    for r in range(rank):
        scale[r] = np.sqrt(matrix[r, r])
        left[r] = 1.0 if scale[r] > 0 else 0.0
        pivots[r] = r
    count = 0
    while count < rank:
        at = count
        for i in range(count + 1, rank):
            if left[pivots[i]] > left[pivots[at]]:
                at = i
        pivots[count], pivots[at] = pivots[at], pivots[count]
        p = pivots[count]
        if not left[p] > LEAST_PIVOT:
            break
        pivot = np.sqrt(left[p])
        lower[p, count] = pivot
        for i in range(count + 1, rank):
            q = pivots[i]
            entry = matrix[q, p] / (scale[q] * scale[p]) if scale[q] > 0 else 0.0
            for j in range(count):
                entry -= lower[q, j] * lower[p, j]
            lower[q, count] = entry / pivot
            left[q] -= lower[q, count] * lower[q, count]
        count += 1
    if count == rank:
        _substitute(matrix, lower, pivots, scale, y, b)
        return False
    for r in range(rank):
        b[r] = 0.0
    _shortest(matrix, lower, small, pivots, scale, y, count, b)
    return True


@inlined
def _substitute(matrix, lower, pivots, scale, y, b):  # type: ignore[no-untyped-def]
    """Solve by forward and backward substitution."""
    rank = b.size
    for i in range(rank):
        p = pivots[i]
        entry = matrix[rank, p] / scale[p]
        for j in range(i):
            entry -= lower[p, j] * y[j]
        y[i] = entry / lower[p, i]
    for i in range(rank - 1, -1, -1):
        entry = y[i]
        for j in range(i + 1, rank):
            entry -= lower[pivots[j], i] * y[j]
        y[i] = entry / lower[pivots[i], i]
    for i in range(rank):
        b[pivots[i]] = y[i] / scale[pivots[i]]


@inlined
def _shortest(matrix, lower, small, pivots, scale, y, count, b):  # type: ignore[no-untyped-def]
    """Write the shortest solution; see `_least_squares`."""
    rank = b.size
    for i in range(rank):
        for j in range(count):
            lower[pivots[i], j] = lower[pivots[i], j] * scale[pivots[i]] if j <= i else 0.0
    for j in range(count):
        y[j] = 0.0
        for r in range(rank):
            y[j] += lower[r, j] * matrix[rank, r]
        for k in range(j + 1):
            small[j, k] = 0.0
            for r in range(rank):
                small[j, k] += lower[r, j] * lower[r, k]
    for j in range(count):  # Cholesky factorisation of S in place
        for k in range(j + 1):
            entry = small[j, k]
            for i in range(k):
                entry -= small[j, i] * small[k, i]
            small[j, k] = np.sqrt(entry) if j == k else entry / small[k, k]
    for _ in range(2):
        for j in range(count):
            for k in range(j):
                y[j] -= small[j, k] * y[k]
            y[j] /= small[j, j]
        for j in range(count - 1, -1, -1):
            for k in range(j + 1, count):
                y[j] -= small[k, j] * y[k]
            y[j] /= small[j, j]
    for r in range(rank):
        for j in range(count):
            b[r] += lower[r, j] * y[j]


@jit
def solve_rows(number, team, threads, turn, nonzeros, row_order, own, whole, terms, status):  # type: ignore[no-untyped-def]
    """Solve rows with the threads of a team; see `problems.solve_by_newton`, also for `own`.

    `terms` are the ridge, the sweeps of non-negative rows (0: no constraint), whether residuals are summed, and the
    equations from which those of the nonzeros are subtracted: a Gram matrix, and the right-hand side of each row, or
    empty arrays. Then the sum of squares of all values is missing in the sum of squared residuals.
    """
    columns, matrices, form = nonzeros
    rows, offsets, order, draws = row_order
    ridge, sweeps, measured, common, rights = terms
    if number == 0:
        turn[0] = 0
    called = fork(team, number, threads)
    b, work = np.empty(form[3]), work_of(form)
    chunk = add(turn, 0, 1)
    while chunk < draws.size - 1:
        for k in range(draws[chunk], draws[chunk + 1]):
            n = order[k]
            i, count = rows[n], offsets[n + 1] - offsets[n]
            if whole[0] <= i < whole[1] and count <= whole[2]:
                row = columns, matrices, form, offsets[n], count
                gram(row, work)
                if common.size > 0:
                    subtract(work[0], common, rights[i])
                for r in range(b.size):
                    b[r] = number_at(own[0], i * own[1] + r, form[1])
                status[number, DEFICIENT] += solve_equations(work, ridge, sweeps, b)
                for r in range(b.size):
                    put_number(own[0], i * own[1] + r, b[r], form[1])
                    work[9][r] = number_at(own[0], i * own[1] + r, form[1])  # as it is stored
                if measured:
                    squares = _squares(work[0], work[9])
                    if common.size == 0 and not squares > PRECISE * work[0][b.size, b.size]:
                        squares = residual(row, work, work[9])
                    status[number, RESIDUAL] += squares
        chunk = add(turn, 0, 1)
    return join(team, called)


@inner
def subtract(matrix, common, right):  # type: ignore[no-untyped-def]
    """Subtract a row's matrix from a common one; set its right-hand side."""
    rank = common.shape[0]
    for i in range(rank):
        for k in range(rank):
            matrix[i, k] = common[i, k] - matrix[i, k]
        matrix[rank, i] = matrix[i, rank] = right[i]
    matrix[rank, rank] = 0.0


@jit
def grams_of_parts(number, team, threads, turn, nonzeros, parts, out):  # type: ignore[no-untyped-def]
    """Write the Gram matrix of each part, ((R + 1)**2,), with the threads of a team; see `shared.sums_of_parts`."""
    columns, matrices, form = nonzeros
    _, starts, counts = parts
    if number == 0:
        turn[0] = 0
    called, work, size = fork(team, number, threads), work_of(form), form[3] + 1
    p = add(turn, 0, 1)
    while p < starts.size:
        gram((columns, matrices, form, starts[p], counts[p]), work)
        for i in range(size):
            for k in range(size):
                out[p, i * size + k] = work[0][i, k]
        p = add(turn, 0, 1)
    return join(team, called)


@jit
def residuals_of_parts(number, team, threads, turn, nonzeros, parts, rows, out):  # type: ignore[no-untyped-def]
    """Write the sum of squared residuals of each part, (parts, 1), with the threads of a team."""
    columns, matrices, form = nonzeros
    places, starts, counts = parts
    if number == 0:
        turn[0] = 0
    called, work = fork(team, number, threads), work_of(form)
    p = add(turn, 0, 1)
    while p < starts.size:
        _pad(rows[places[p]], work[9])
        out[p, 0] = residual((columns, matrices, form, starts[p], counts[p]), work, work[9])
        p = add(turn, 0, 1)
    return join(team, called)


@jit
def solve_sums(sums, rows, ridge, sweeps, form):  # type: ignore[no-untyped-def]
    """Solve rows from their Gram matrices, (count, (R + 1)**2); return how many have no unique solution."""
    work, deficient = work_of(form), 0
    columns = rows.shape[1] + 1
    for i in range(rows.shape[0]):
        for j in range(columns):
            for k in range(columns):
                work[0][j, k] = sums[i, j * columns + k]
        deficient += solve_equations(work, ridge, sweeps, rows[i])
    return deficient
