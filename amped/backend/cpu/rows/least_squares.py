"""Least squares over the nonzeros of each row: normal equations in double precision, solved where they are summed.

For a row of nonzeros x, whose products of the other modes' factor rows are the rows of Pi, the normal equations are
``(Pi^T Pi + ridge I) b = Pi^T x``. The values x are treated as one more column of Pi, so that the Gram matrix of
all columns contains both sides. Blocks of Pi and the tuple `row` are those of `model`.
"""

from __future__ import annotations

import numpy as np

from partitioner.host.jit import inner, jit

from ...ops.rowproblems import DEFICIENT, RESIDUAL
from ..simd.doubles import EIGHT, FOUR, each, fold, fused, load, minus, plus, store, total
from ..simd.thread_team import add, fork, inlined, join
from .model import VALUE, _place, _width, fill

LEAST_PIVOT = 1e-12  # relative to the diagonal: columns that depend on others up to rounding are below this


@inner
def work_of(rank):  # type: ignore[no-untyped-def]
    """Return work arrays: the Gram matrix, the Cholesky factor, tiles and their sums, the solution, and three more."""
    columns = rank + 1
    tiles = np.empty(EIGHT * ((columns + 1) // 2) * ((columns + 3) // FOUR))
    matrices = np.empty((columns, columns)), np.empty((rank, rank)), np.empty((rank, rank))
    return (*matrices, tiles, np.empty(tiles.size), np.empty((3, rank)), np.empty(rank, np.int64))


@inner
def gram(row, work):  # type: ignore[no-untyped-def]
    """Write the Gram matrix of Pi and the values, both triangles; blocks that are kept must have been computed."""
    result, _, _, tiles, sums, _, _ = work
    for n in range(sums.size):
        sums[n] = 0.0
    columns, part = result.shape[0], row[2][6]
    for start in range(0, row[6], part):
        for n in range(tiles.size):
            tiles[n] = 0.0
        for first in range(start, min(start + part, row[6]), row[2][5]):
            if not row[7]:
                fill(row, first)
            _add_block(row, first, columns, tiles)
        for n in range(tiles.size):
            sums[n] += tiles[n]
    tile = 0
    for i in range(0, columns, 2):
        for k in range(0, min(i + 2, columns), FOUR):
            for n in range(EIGHT):
                p, q = i + n // FOUR, k + n % FOUR
                if q <= p < columns:
                    result[p, q] = result[q, p] = sums[tile + n]
            tile += EIGHT


@inlined
def _add_block(row, first, columns, tiles):  # type: ignore[no-untyped-def]
    """Add a block's contribution to the Gram matrix."""
    tile = 0
    for i in range(0, columns, 2):
        for k in range(0, min(i + 2, columns), FOUR):
            _add_tile(row, first, columns - 1, i, k, tiles, tile)
            tile += EIGHT


@inlined
def _column(row, first, last, i):  # type: ignore[no-untyped-def]
    """Return the position of a column of a block: the last one holds the values."""
    return _place(row, first) + (row[2][4] + VALUE if i >= last else i) * _width(row, first)


@inlined
def _add_tile(row, first, last, i, k, tiles, tile):  # type: ignore[no-untyped-def]
    """Add a block's contribution to 2 x 4 elements of the Gram matrix."""
    room, width = row[3], _width(row, first)
    p, q = _column(row, first, last, i), _column(row, first, last, i + 1)
    c, d = _column(row, first, last, k), _column(row, first, last, k + 1)
    e, f = _column(row, first, last, k + 2), _column(row, first, last, k + 3)
    s0 = s1 = s2 = s3 = t0 = t1 = t2 = t3 = each(0.0)
    for j in range(0, width, EIGHT):
        s, t = load(room, p + j), load(room, q + j)
        v = load(room, c + j)
        s0, t0 = fused(s, v, s0), fused(t, v, t0)
        v = load(room, d + j)
        s1, t1 = fused(s, v, s1), fused(t, v, t1)
        v = load(room, e + j)
        s2, t2 = fused(s, v, s2), fused(t, v, t2)
        v = load(room, f + j)
        s3, t3 = fused(s, v, s3), fused(t, v, t3)
    store(tiles, tile, plus(load(tiles, tile), fold(s0, s1, s2, s3, t0, t1, t2, t3)))


@inner
def residual(row, b):  # type: ignore[no-untyped-def]
    """Return the sum of the squared residuals of a row's nonzeros."""
    result, room = 0.0, row[3]
    for start in range(0, row[6], row[2][6]):
        squares = each(0.0)
        for first in range(start, min(start + row[2][6], row[6]), row[2][5]):
            if not row[7]:
                fill(row, first)
            at, width = _place(row, first), _width(row, first)
            values = at + (row[2][4] + VALUE) * width
            for j in range(0, width, EIGHT):
                m = each(0.0)
                for r in range(b.size):
                    m = fused(each(b[r]), load(room, at + r * width + j), m)
                error = minus(load(room, values + j), m)
                squares = fused(error, error, squares)
        result += total(squares)
    return result


@inner
def solve_equations(work, ridge, sweeps, b):  # type: ignore[no-untyped-def]
    """Solve a row's equations, given their Gram matrix; return whether their solution is not unique.

    With `sweeps`, the row `b` >= 0 is improved by sweeps over its components (HALS). Otherwise it becomes the solution,
    the shortest one if there are several.
    """
    matrix, rank = work[0], b.size
    for r in range(rank):
        matrix[r, r] += ridge
    if sweeps > 0:
        _descend(matrix, sweeps, b)
        return False
    return _least_squares(work, b)


@inlined
def _descend(matrix, sweeps, b):  # type: ignore[no-untyped-def]
    rank = b.size
    for _ in range(sweeps):
        moved = False
        for r in range(rank):
            slope = matrix[rank, r]
            for s in range(rank):
                slope -= matrix[r, s] * b[s]
            value = max(b[r] + slope / matrix[r, r], 0.0) if matrix[r, r] > 0 else 0.0
            moved |= value != b[r]
            b[r] = value
        if not moved:
            return


@inner
def _least_squares(work, b):  # type: ignore[no-untyped-def]
    """Solve by a Cholesky factorisation with pivots, of the matrix scaled to a unit diagonal.

    If it ends at `count` < R columns, the shortest solution is ``L S^-1 S^-1 L^T y``, where L (R, count) is the factor,
    ``S = L^T L``, and y the right-hand side.
    """
    matrix, lower, small, _, _, vectors, pivots = work
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
def solve_rows(  # type: ignore[no-untyped-def]
    number, team, threads, turn, nonzeros, row_order, own, whole, terms, rooms, most_kept, status
):
    """Solve rows with the threads of a team; see `problems.solve_by_newton`.

    `terms` are the ridge, the sweeps of non-negative rows (0: no constraint), and whether residuals are summed.
    """
    columns, matrices, form = nonzeros
    rows, offsets, order, draws = row_order
    ridge, sweeps, measured = terms
    if number == 0:
        turn[0] = 0
    called = fork(team, number, threads)
    b, work = np.empty(form[3]), work_of(form[3])
    chunk = add(turn, 0, 1)
    while chunk < draws.size - 1:
        for k in range(draws[chunk], draws[chunk + 1]):
            n = order[k]
            i, count = rows[n], offsets[n + 1] - offsets[n]
            if whole[0] <= i < whole[1] and count <= whole[2]:
                row = columns, matrices, form, rooms[number], 0.0, offsets[n], count, count <= most_kept
                if row[7]:
                    for first in range(0, count, form[5]):
                        fill(row, first)
                gram(row, work)
                for r in range(b.size):
                    b[r] = own[i, r]
                status[number, DEFICIENT] += solve_equations(work, ridge, sweeps, b)
                for r in range(b.size):
                    own[i, r] = b[r]
                    b[r] = own[i, r]  # as it is stored
                if measured:
                    status[number, RESIDUAL] += residual(row, b)
        chunk = add(turn, 0, 1)
    return join(team, called)


@jit
def grams_of_parts(number, team, threads, turn, nonzeros, parts, rooms, out):  # type: ignore[no-untyped-def]
    """Write the Gram matrix of each part, ((R + 1)**2,), with the threads of a team; see `shared.sums_of_parts`."""
    columns, matrices, form = nonzeros
    _, starts, counts = parts
    if number == 0:
        turn[0] = 0
    called, work = fork(team, number, threads), work_of(form[3])
    p = add(turn, 0, 1)
    while p < starts.size:
        gram((columns, matrices, form, rooms[number], 0.0, starts[p], counts[p], False), work)
        for i in range(work[0].shape[0]):
            for k in range(work[0].shape[0]):
                out[p, i * work[0].shape[0] + k] = work[0][i, k]
        p = add(turn, 0, 1)
    return join(team, called)


@jit
def residuals_of_parts(number, team, threads, turn, nonzeros, parts, rows, rooms, out):  # type: ignore[no-untyped-def]
    """Write the sum of squared residuals of each part, (parts, 1), with the threads of a team."""
    columns, matrices, form = nonzeros
    places, starts, counts = parts
    if number == 0:
        turn[0] = 0
    called = fork(team, number, threads)
    p = add(turn, 0, 1)
    while p < starts.size:
        row = columns, matrices, form, rooms[number], 0.0, starts[p], counts[p], False
        out[p, 0] = residual(row, rows[places[p]])
        p = add(turn, 0, 1)
    return join(team, called)


@jit
def solve_sums(sums, rows, ridge, sweeps):  # type: ignore[no-untyped-def]
    """Solve rows from their Gram matrices, (count, (R + 1)**2); return how many have no unique solution."""
    work, deficient = work_of(rows.shape[1]), 0
    columns = rows.shape[1] + 1
    for i in range(rows.shape[0]):
        for j in range(columns):
            for k in range(columns):
                work[0][j, k] = sums[i, j * columns + k]
        deficient += solve_equations(work, ridge, sweeps, rows[i])
    return deficient
