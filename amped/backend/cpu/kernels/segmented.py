"""MTTKRP and Phi over nonzeros cut into pieces of output rows."""

from __future__ import annotations

import numpy as np

from partitioner.host.jit import jit

from ..simd.thread_team import add, fork, inlined, join, load, replace, store
from ..simd.vectors import (
    ADD,
    LANE,
    LINE,
    PAST,
    STORE,
    accumulate,
    accumulate_row,
    fence,
    prefetch,
    put,
    read_line,
    zero,
)
from .phi import keep_quotients, sum_of_phi, weighted_sum

ROWS = 64  # rows that a thread takes at once


@jit
def segmented(  # type: ignore[no-untyped-def]
    number,
    team,
    nonzeros,
    factors,
    outs,
    origin,
    way,
    new,
    parts,
    order,
    fibres,
    blocks,
    ahead,
    lanes,
    tail,
    own_factor,
    floor,
    quotients,
):
    """Compute pieces of output rows with the threads of a team; the sums of pieces are added in double precision.

    Each thread computes its own parts first, then helps with units of others. The units of a part are computed one
    after the other, by any thread, so that the order of additions is always the same.

    Parameters
    ----------
    number : int
        Number of the calling thread in the team, 0 for the first; see `thread_team`.
    team : array
    nonzeros : tuple
        The starts of the pieces and the end, (pieces + 1,); their output indices, (pieces,); the indices of the input
        modes, a tuple of (nnz,) arrays; the values, (nnz,).
    factors : tuple of (I_m, stride) arrays
    outs : tuple
        The (rows, columns) float64 output, and one output for each part but the first, (parts - 1, rows, columns), if
        parts may write any row (the caller adds these up), else an empty array.
    origin : tuple of int
        Output index of row 0 of the output, and the output's column for column 0 of `factors`.
    way : int
        How the first sum of a row is written: STORE, ADD or PAST, see `vectors`. ADD is needed if the row already has a
        sum or gets one from another unit.
    new : tuple of int
        Range of the output's rows that have no sums yet.
    parts : tuple
        The number of threads; the progress of each part, (parts,) words, see `_begin`; its carry, (parts, columns); and
        the arrays of `layout.Parts`.
    order : (nnz,) array or None
        Permutation of the nonzeros.
    fibres : tuple or None
        The two arrays of `layout.Fibres`, then indices and matrix of the first input mode, which `nonzeros` and
        `factors` omit in this case.
    blocks : tuple
        See `layout.Blocks`.
    ahead : int
        Prefetch distance in nonzeros; 0 disables prefetching.
    lanes, tail : tuple, tuple or None
        Size of the column pieces of a row, and of the remainder; see `vectors`.
    own_factor : (rows, stride) array or None
        For Phi: rows of the output mode's factor matrix.
    floor : float
        For Phi: lower bound of the divisor.
    quotients : (parts, PIECE) array or None
        For Phi: scratch for quotients, of the factors' type; None if `lanes` cover a whole row.

    Returns
    -------
    int
        The number of threads that failed.
    """
    starts, rows, indices, values = nonzeros
    threads, progress, carries, bounds, shared, firsts = parts
    first_row, first_column = origin
    first_pieces, lows, highs, which = blocks
    width, step = factors[0].shape[1], len(lanes) * (LANE // factors[0].itemsize)
    rest, units, separate = width // step * step, (bounds.size - 1) // shared.size, outs[1].shape[0] > 0
    if number == 0:
        progress[:] = 0
    called = fork(team, number, threads)
    own, end_of_own = number * shared.size // threads, (number + 1) * shared.size // threads
    rounds, attempts, t = units if end_of_own > own else 0, 0, own
    while attempts < shared.size:
        unit = _begin(progress, t, units)
        if unit >= 0:
            attempts = 0
            out = outs[1][t - 1] if separate and t > 0 else outs[0]
            low = new[0] if t == 0 else firsts[t] - first_row  # cleared by this part if they have no nonzeros
            high = new[1] if t == shared.size - 1 else firsts[t + 1] - first_row
            if unit == 0:
                _set_zero(carries, t, t + 1, first_column, width)
                if separate:
                    _set_zero(out, 0 if t else new[0], out.shape[0] if t else new[1], first_column, width)
                elif way == ADD:
                    _set_zero(out, max(low, new[0]), min(high, new[1]), first_column, width)
            begin, end = bounds[t * units + unit], bounds[t * units + unit + 1]
            last = np.int64(starts[end]) - 1
            block = 0  # linear search: NumPy's takes half a second to compile
            while block < lows.size and first_pieces[block] < begin:
                block += 1
            for c in range(begin, end):
                while block < lows.size and first_pieces[block] <= c:
                    _fetch(factors[which], lows[block], highs[block])
                    block += 1
                start, stop, row = np.int64(starts[c]), np.int64(starts[c + 1]), np.int64(rows[c])
                if way != ADD:
                    if low < row - first_row:
                        _clear(out, low, row - first_row, first_column, way, factors, rest, lanes, tail)
                    low = max(low, row - first_row + 1)
                if c > begin and rows[c - 1] == row:
                    row_way = ADD
                else:  # a row that gets further sums stays in the caches
                    row_way = STORE if way == PAST and c + 1 < end and rows[c + 1] == row else way
                if quotients is not None:
                    keep_quotients(
                        indices, values, factors, own_factor, floor, order, row - first_row, start, stop, last, ahead,
                        lanes, tail, quotients, t
                    )  # fmt: skip
                # Repeated for the tail: in a separate function, the sums would go through memory, 10 % slower.
                for column in range(0, rest, step):
                    if quotients is not None:
                        total = weighted_sum(indices, factors, order, quotients, t, start, stop, column, lanes)
                    elif own_factor is not None:
                        total = sum_of_phi(
                            indices, values, factors, own_factor, floor, order, row - first_row, start, stop, last,
                            ahead, lanes
                        )  # fmt: skip
                    elif fibres is None:
                        total = _sum(indices, values, factors, order, start, stop, last, ahead, column, lanes)
                    else:
                        total = _sum_of_fibres(indices, values, factors, fibres, c, column, lanes)
                    if row == shared[t]:
                        put(carries, t, first_column + column, total, ADD)
                    else:
                        put(out, row - first_row, first_column + column, total, row_way)
                if tail is not None:
                    if quotients is not None:
                        remainder = weighted_sum(indices, factors, order, quotients, t, start, stop, rest, tail)
                    elif fibres is None:
                        remainder = _sum(indices, values, factors, order, start, stop, last, ahead, rest, tail)
                    else:
                        remainder = _sum_of_fibres(indices, values, factors, fibres, c, rest, tail)
                    if row == shared[t]:
                        put(carries, t, first_column + rest, remainder, ADD)
                    else:
                        put(out, row - first_row, first_column + rest, remainder, row_way)
            if way != ADD and t == shared.size - 1:
                _clear(out, low, new[1], first_column, way, factors, rest, lanes, tail)
            store(progress, t, 2 * unit + 2)
        elif rounds == 0:
            attempts += 1
        if unit < 0 or rounds > 0:
            t += 1
            if rounds > 0 and t == end_of_own:
                rounds -= 1
                t = own
            elif t == shared.size:
                t = 0
    fence()
    faults = join(team, called)
    if number == 0:
        for t in range(shared.size):
            if shared[t] >= 0:
                for column in range(first_column, first_column + width):
                    outs[0][shared[t] - first_row, column] += carries[t, column]
    return faults


@inlined
def _begin(progress, t, units):  # type: ignore[no-untyped-def]
    """Begin the next unit of a part and return its number; -1 if another thread is computing one, or none is left.

    The progress of a part is 2 x the finished units, plus 1 while a unit is being computed.
    """
    done = load(progress, t)
    free = done % 2 == 0 and done < 2 * units and replace(progress, t, done, done + 1)
    return done // 2 if free else -1


@inlined
def _set_zero(out, begin, end, first_column, width):  # type: ignore[no-untyped-def]
    for row in range(begin, end):
        for column in range(first_column, first_column + width):
            out[row, column] = 0.0


@jit
def add_up(number, team, threads, turn, out, others):  # type: ignore[no-untyped-def]
    """Add the separate outputs `others`, (parts - 1, rows, columns), to the output. `turn` is a counter."""
    if number == 0:
        turn[0] = 0
    called = fork(team, number, threads)
    begin = add(turn, 0, ROWS)
    while begin < out.shape[0]:
        end = min(begin + ROWS, out.shape[0])
        for k in range(others.shape[0]):
            for row in range(begin, end):
                for column in range(out.shape[1]):
                    out[row, column] += others[k, row, column]
        begin = add(turn, 0, ROWS)
    return join(team, called)


@jit
def copy_panels(number, team, threads, turn, matrix, panels, first):  # type: ignore[no-untyped-def]
    """Copy panels of a matrix's columns to rows of `panels`, (panels, rows, columns), from `first` on; see `add_up`."""
    if number == 0:
        turn[0] = 0
    called, width = fork(team, number, threads), panels.shape[2]
    begin = add(turn, 0, ROWS)
    while begin < matrix.shape[0]:
        for row in range(begin, min(begin + ROWS, matrix.shape[0])):
            for panel in range(panels.shape[0]):
                for column in range(width):
                    panels[panel, first + row, column] = matrix[row, panel * width + column]
        begin = add(turn, 0, ROWS)
    return join(team, called)


@inlined
def _clear(out, begin, end, first_column, way, factors, rest, lanes, tail):  # type: ignore[no-untyped-def]
    for row in range(begin, end):
        for column in range(0, rest, len(lanes) * (LANE // factors[0].itemsize)):
            put(out, row, first_column + column, zero(factors, lanes), way)
        if tail is not None:
            put(out, row, first_column + rest, zero(factors, tail), way)


@inlined
def _sum(indices, values, factors, order, start, stop, last, ahead, column, lanes):  # type: ignore[no-untyped-def]
    total = zero(factors, lanes)
    for q in range(start, stop):
        if ahead:
            then = min(q + ahead, last)
            prefetch(indices, factors, then if order is None else order[then], column, lanes)
        total = accumulate(indices, factors, values, q if order is None else order[q], column, lanes, total)
    return total


@inlined
def _sum_of_fibres(indices, values, factors, fibres, piece, column, lanes):  # type: ignore[no-untyped-def]
    of_piece, starts, leading, factor = fibres
    total = zero(factors, lanes)
    for f in range(of_piece[piece], of_piece[piece + 1]):
        part = zero(factors, lanes)
        for q in range(starts[f], starts[f + 1]):
            part = accumulate(indices, factors, values, q, column, lanes, part)
        total = accumulate_row(factor, leading[starts[f]], column, part, total)
    return total


@inlined
def _fetch(matrix, low, high):  # type: ignore[no-untyped-def]
    width = matrix.shape[1]
    for at in range(low * width, high * width, LINE // matrix.itemsize):
        read_line(matrix, at)
