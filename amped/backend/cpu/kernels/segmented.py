"""MTTKRP and Phi over nonzeros cut into pieces of output rows."""

from __future__ import annotations

import numpy as np

from partitioner.host.jit import jit

from ..simd.row_sums import put_sum, sum_of_fibres, sum_of_rows
from ..simd.thread_team import add, fork, join, store
from ..simd.vectors import ADD, LANE, PAST, STORE, fence
from .phi import keep_quotients, sum_of_phi, weighted_sum
from .units import add_carries, clear_part, clear_rows, fetch_blocks, first_unit, next_unit, skip_blocks

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
        The number of threads; the progress of each part, (parts,) words, see `units`; its carry, (parts, columns);
        and the arrays of `layout.Parts`.
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
    matrix, width, step = factors[blocks[3]], factors[0].shape[1], len(lanes) * (LANE // factors[0].itemsize)
    rest, units, separate = width // step * step, (bounds.size - 1) // shared.size, outs[1].shape[0] > 0
    if number == 0:
        progress[:] = 0
    called = fork(team, number, threads)
    seen = next_unit(number, threads, progress, units, first_unit(number, threads, shared.size, units))
    while seen[0] >= 0:
        unit, t, _, _ = seen
        out = outs[1][t - 1] if separate and t > 0 else outs[0]
        low = new[0] if t == 0 else firsts[t] - first_row  # cleared by this part if they have no nonzeros
        high = new[1] if t == shared.size - 1 else firsts[t + 1] - first_row
        if unit == 0:
            clear_part(out, separate, carries, t, (low, high), new, way, first_column, width)
        begin, end = bounds[t * units + unit], bounds[t * units + unit + 1]
        last = np.int64(starts[end]) - 1
        block = skip_blocks(blocks, begin)
        for c in range(begin, end):
            if block < blocks[0].size and blocks[0][block] <= c:
                block = fetch_blocks(matrix, blocks, block, c)
            start, stop, place = np.int64(starts[c]), np.int64(starts[c + 1]), np.int64(rows[c]) - first_row
            if way != ADD and place >= low:
                if place > low:
                    clear_rows(out, low, place, first_column, width, way)
                low = place + 1
            if c > begin and rows[c - 1] == rows[c]:
                row_way = ADD
            else:  # a row that gets further sums stays in the caches
                row_way = STORE if way == PAST and c + 1 < end and rows[c + 1] == rows[c] else way
            carried = rows[c] == shared[t]
            if quotients is not None:
                keep_quotients(
                    indices, values, factors, own_factor, floor, order, place, start, stop, last, ahead, lanes, tail,
                    quotients, t
                )  # fmt: skip
            # Repeated for the tail: in a separate function, the sums would go through memory, 10 % slower.
            for column in range(0, rest, step):
                if quotients is not None:
                    total = weighted_sum(indices, factors, order, quotients, t, start, stop, column, lanes)
                elif own_factor is not None:
                    total = sum_of_phi(
                        indices, values, factors, own_factor, floor, order, place, start, stop, last, ahead, lanes
                    )
                elif fibres is None:
                    total = sum_of_rows(indices, factors, values, order, start, stop, last, ahead, column, lanes)
                else:
                    total = sum_of_fibres(indices, factors, values, fibres, c, column, lanes)
                put_sum(out, place, carries, t, carried, first_column + column, total, row_way)
            if tail is not None:
                if quotients is not None:
                    remainder = weighted_sum(indices, factors, order, quotients, t, start, stop, rest, tail)
                elif fibres is None:
                    remainder = sum_of_rows(indices, factors, values, order, start, stop, last, ahead, rest, tail)
                else:
                    remainder = sum_of_fibres(indices, factors, values, fibres, c, rest, tail)
                put_sum(out, place, carries, t, carried, first_column + rest, remainder, row_way)
        if way != ADD and t == shared.size - 1:
            clear_rows(out, low, new[1], first_column, width, way)
        store(progress, t, 2 * unit + 2)
        seen = next_unit(number, threads, progress, units, seen)
    fence()
    faults = join(team, called)
    if number == 0:
        add_carries(outs[0], carries, shared, first_row, first_column, width)
    return faults


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
