"""Least squares over the nonzeros of each row: normal equations in double precision, solved where they are summed.

For a row of nonzeros x, whose products of the other modes' factor rows are the rows of Pi, the normal equations are
``(Pi^T Pi + ridge I) b = Pi^T x``. The values x are treated as one more column of Pi, so that the Gram matrix of
all columns contains both sides and the sum of squares. `gram` sums it, and `equations` solves.
"""

from __future__ import annotations

import numpy as np

from partitioner.host.jit import inner, jit

from ...ops.rowproblems import DEFICIENT, RESIDUAL
from ...row_constants import DOUBTED, PRECISE
from ..simd.doubles import number as number_at
from ..simd.doubles import put_number
from ..simd.thread_team import add, fork, join
from .equations import pad, solve_equations, squares_of, subtract
from .gram import gram, only_row, residual, work_of


@inner
def _solve_single(row, ridge, work, b):  # type: ignore[no-untyped-def]
    """Solve a row with one nonzero in closed form: ``b = x v / (v^T v + ridge)``, v being its row of Pi.

    Return False, without a solution, if v is zero or the ridge is below what the general solution resolves. The padded
    row in `work` becomes b followed by -1.
    """
    only_row(row, work)
    pi, padded, square = work[6], work[9], 0.0
    for r in range(b.size):
        square += pi[0, r] * pi[0, r]
    if not square > 0 or (ridge > 0 and not ridge > DOUBTED * (square + ridge)):
        return False
    factor = pi[0, b.size] / (square + ridge)
    for r in range(b.size):
        b[r] = factor * pi[0, r]
    pad(b, padded)
    return True


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
                single = count == 1 and sweeps == 0 and common.size == 0 and _solve_single(row, ridge, work, b)
                if single:
                    status[number, DEFICIENT] += ridge == 0 and b.size > 1
                else:
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
                    squares = 0.0 if single else squares_of(work[0], work[9])
                    if common.size == 0 and (single or not squares > PRECISE * work[0][b.size, b.size]):
                        squares = residual(row, work)
                    status[number, RESIDUAL] += squares
        chunk = add(turn, 0, 1)
    return join(team, called)


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
        pad(rows[places[p]], work[9])
        out[p, 0] = residual((columns, matrices, form, starts[p], counts[p]), work)
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
