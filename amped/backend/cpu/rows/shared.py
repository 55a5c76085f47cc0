"""Rows that all threads solve together: passes over parts of their nonzeros, each part by one thread, and their sums.

A row's sums are those of its parts, added in order, exactly as when one thread solves the row: results are the same if
all nonzeros of the row are on this rank. The sums are the row of Phi, then the distance of the model from the floor,
the row's counts, and for PDNR all second derivatives.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from partitioner.host.jit import jit

from ...ops.rowproblems import ITERATIONS, KKT
from ...row_constants import BELOW, COUNTS, CURVED, MOVING, RAISED, SOLVED, WAITING
from ..simd.doubles import EIGHT
from ..simd.thread_team import add, fork, inlined, join
from . import newton, quasi_newton
from .model import changes, counts_of, curvature, gradient, keep
from .problems import RowOrder
from .steps import advance, choose_length, measure


class SharedParts(NamedTuple):
    """Parts of rows' nonzeros: position of the row among the shared rows, first nonzero, and number of nonzeros."""

    places: NDArray[np.int64]
    starts: NDArray[np.int64]
    counts: NDArray[np.int64]


def parts_of(row_order: RowOrder, places: Sequence[tuple[int, int]], most: int) -> SharedParts:
    """Cut the nonzeros of rows of a shard into parts of at most `most`."""
    parts = list[tuple[int, int, int]]()
    for place, row in places:
        n = int(np.searchsorted(row_order.rows, row))
        if n < row_order.rows.size and row_order.rows[n] == row:
            begin, end = int(row_order.offsets[n]), int(row_order.offsets[n + 1])
            parts += [(place, at, min(most, end - at)) for at in range(begin, end, most)]
    columns = np.array(parts, np.int64).reshape(-1, 3).T
    return SharedParts(*(np.ascontiguousarray(column) for column in columns))


@jit
def sums_of_parts(  # type: ignore[no-untyped-def]
    number, team, threads, turn, nonzeros, parts, rows, moves, floor, thread_scratch, most_kept, curved, out
):
    """Write the sums of each part with the threads of a team; see `problems.solve_by_newton`.

    Parameters
    ----------
    parts : tuple
        See `SharedParts`.
    rows : (count, rank) float64 array
    moves : (count,) int64 array
        State of each row; the sums of solved rows are zero.
    floor : float
    curved : bool
        Whether to compute second derivatives.
    out : (parts, sums) float64 array
    """
    columns, matrices, form = nonzeros
    places, starts, counts = parts
    if number == 0:
        turn[0] = 0
    called = fork(team, number, threads)
    rank, padded = form[3], form[4]
    phi, _, _, which, hessian, _, tiles, _, sums = newton.work_of(rank if curved else 1, padded)
    for i in range(which.size):
        which[i] = i
    p = add(turn, 0, 1)
    while p < places.size:
        for k in range(out.shape[1]):
            out[p, k] = 0.0
        if moves[places[p]] != SOLVED:
            b = rows[places[p]]
            row = columns, matrices, form, thread_scratch[number], floor, starts[p], counts[p], counts[p] <= most_kept
            keep(row)
            out[p, rank + BELOW] = gradient(row, b, phi, sums)
            out[p, rank + COUNTS] = counts_of(row)
            for r in range(rank):
                out[p, r] = phi[r]
            if curved:
                curvature(row, b, which, rank, tiles, sums, hessian)
                for r in range(rank):
                    for s in range(rank):
                        out[p, rank + CURVED + r * rank + s] = hessian[r, s]
        p = add(turn, 0, 1)
    return join(team, called)


@jit
def changes_of_parts(  # type: ignore[no-untyped-def]
    number, team, threads, turn, nonzeros, parts, rows, steps, moves, floor, thread_scratch, out
):
    """Write the changes of the objective by each part for the lengths of a line search; see `sums_of_parts`."""
    columns, matrices, form = nonzeros
    places, starts, counts = parts
    if number == 0:
        turn[0] = 0
    called = fork(team, number, threads)
    sums = np.empty(2 * EIGHT * out.shape[1])
    p = add(turn, 0, 1)
    while p < places.size:
        if moves[places[p]] == MOVING:
            kept = counts[p] < 0  # False, but not a literal, whose type would compile further functions
            row = columns, matrices, form, thread_scratch[number], floor, starts[p], counts[p], kept
            changes(row, rows[places[p]], steps[places[p]], sums, out[p])
        else:
            for k in range(out.shape[1]):
                out[p, k] = 0.0
        p = add(turn, 0, 1)
    return join(team, called)


@jit
def begin(sums, rows, steps, moves, tolerance, status):  # type: ignore[no-untyped-def]
    """Record the rows' KKT violations, and decide which rows are raised; see `steps`."""
    rank = rows.shape[1]
    for i in range(rows.shape[0]):
        violation, _ = measure(rows[i], sums[i])
        status[KKT] = max(status[KKT], violation)
        moves[i] = SOLVED if violation < tolerance else WAITING
        if sums[i, rank + BELOW] < 0:
            moves[i] = MOVING
            for r in range(rank):
                steps[i, r] = RAISED * sums[i, rank + COUNTS] / rank


@jit
def end_begin(changed, rows, steps, moves):  # type: ignore[no-untyped-def]
    """Raise rows if that decreases the objective."""
    for i in range(rows.shape[0]):
        if moves[i] == MOVING and steps[i].sum() + changed[i, 0] < 0:
            for r in range(rows.shape[1]):
                rows[i, r] += steps[i, r]


@inlined
def _step(  # type: ignore[no-untyped-def]
    number, team, threads, turn, sums, rows, steps, memory, downhill, moves, tolerance, status, work_of, aim
):
    if number == 0:
        turn[0] = 0
    called = fork(team, number, threads)
    rank = rows.shape[1]
    work = work_of(rank, rank)
    i = add(turn, 0, 1)
    while i < rows.shape[0]:
        if moves[i] != SOLVED:
            violation, near = measure(rows[i], sums[i])
            moves[i] = SOLVED if violation < tolerance else MOVING
            if moves[i] == MOVING:
                status[number, ITERATIONS] += 1
                for r in range(rank):
                    work[0][r] = sums[i, r]
                downhill[i] = aim(sums[i, rank + CURVED :], rows[i], near, work, memory[i])
                for r in range(rank):
                    steps[i, r] = work[1][r]
        i = add(turn, 0, 1)
    return join(team, called)


@jit
def step_by_newton(  # type: ignore[no-untyped-def]
    number, team, threads, turn, sums, rows, steps, memory, downhill, moves, tolerance, status
):
    """Compute the steps of unsolved rows, and the slopes along them, with the threads of a team."""
    return _step(
        number, team, threads, turn, sums, rows, steps, memory, downhill, moves, tolerance, status,
        newton.work_of, newton.aim_by_sums,
    )  # fmt: skip


@jit
def step_by_quasi_newton(  # type: ignore[no-untyped-def]
    number, team, threads, turn, sums, rows, steps, memory, downhill, moves, tolerance, status
):
    """See `step_by_newton`."""
    return _step(
        number, team, threads, turn, sums, rows, steps, memory, downhill, moves, tolerance, status,
        quasi_newton.work_of, quasi_newton.aim,
    )  # fmt: skip


@jit
def all_go(changed, steps, downhill, moves):  # type: ignore[no-untyped-def]
    """Return whether all rows take the whole step."""
    for i in range(moves.size):
        if moves[i] == MOVING and downhill[i] < 0:
            length, _ = choose_length(changed[i, :1], steps[i], downhill[i])
            if length == 0:
                return False
    return True


@inlined
def _advance(changed, sums, rows, steps, memory, downhill, moves, status, learn):  # type: ignore[no-untyped-def]
    for i in range(rows.shape[0]):
        if moves[i] == MOVING:
            length, first = choose_length(changed[i], steps[i], downhill[i])
            learn(memory[i], first)
            advance(rows[i], sums[i], steps[i], length, status)


@jit
def advance_by_newton(changed, sums, rows, steps, memory, downhill, moves, status):  # type: ignore[no-untyped-def]
    """Take the steps of unsolved rows."""
    _advance(changed, sums, rows, steps, memory, downhill, moves, status, newton.learn)


@jit
def advance_by_quasi_newton(changed, sums, rows, steps, memory, downhill, moves, status):  # type: ignore[no-untyped-def]
    """See `advance_by_newton`."""
    _advance(changed, sums, rows, steps, memory, downhill, moves, status, quasi_newton.learn)
