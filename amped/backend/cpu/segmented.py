"""MTTKRP over nonzeros cut into pieces of output rows."""

from __future__ import annotations

import numba
import numpy as np

from partitioner.jit import jit

from .vectors import (
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
    take,
    zero,
)

# Calls would pass vectors through memory, and calls with many arrays double the compile time.
_inlined = numba.njit(inline="always")


@jit
def segmented(  # type: ignore[no-untyped-def]
    nonzeros, factors, out, origin, way, parts, order, fibres, blocks, ahead, lanes, tail
):
    """Compute pieces of output rows, taking parts until none is left; sums of pieces are added in double precision.

    Parameters
    ----------
    nonzeros : tuple
        Where the pieces begin, and the end, (pieces + 1,); their output indices, (pieces,); the indices of the input
        modes, a tuple of (nnz,) arrays; the values, (nnz,).
    factors : tuple of (I_m, stride) arrays
    out : (rows, columns) float64 array
    origin : tuple of int
        Output index of row 0 of `out`, and column of `out` of column 0 of `factors`.
    way : int
        How the first sum of a row is written to `out`: STORE, ADD or PAST, see `vectors`. ADD if `out` has sums
        already.
    parts : tuple
        The number of the next part, (1,), a counter shared by the threads; the first piece of each part, and the end,
        (parts + 1,); each part's shared output index, (parts,), whose sum goes to the part's carry; the carries,
        (parts, columns); the first row of `out` where each part clears rows without nonzeros, and the end,
        (parts + 1,).
    order : (nnz,) array or None
        Permutation of the nonzeros.
    fibres : tuple or None
        The two arrays of `layout.Fibres`, then indices and matrix of the first input mode, which the arguments above
        leave out.
    blocks : tuple
        See `layout.Blocks`.
    ahead : int
        Prefetch distance in nonzeros; 0 disables.
    lanes, tail : tuple, tuple or None
        Size of the pieces in which a row is computed, and of the remainder; see `vectors`.
    """
    starts, rows, indices, values = nonzeros
    turn, bounds, shared, carries, empty = parts
    first_row, first_column = origin
    first_pieces, lows, highs, which = blocks
    step = len(lanes) * (LANE // factors[0].itemsize)
    rest = factors[0].shape[1] // step * step
    t = take(turn)
    while t < shared.size:
        begin, end, new = bounds[t], bounds[t + 1], empty[t]
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
                if new < row - first_row:
                    _clear(out, new, row - first_row, first_column, way, factors, rest, lanes, tail)
                new = max(new, row - first_row + 1)
            if c > begin and rows[c - 1] == row:
                how = ADD
            else:  # a row that gets further sums stays in the caches
                how = STORE if way == PAST and c + 1 < end and rows[c + 1] == row else way
            # Repeated for the tail instead of in a function, where sums would go through memory: 10 % slower.
            for column in range(0, rest, step):
                if fibres is None:
                    total = _sum(indices, values, factors, order, start, stop, last, ahead, column, lanes)
                else:
                    total = _sum_of_fibres(indices, values, factors, fibres, c, column, lanes)
                if row == shared[t]:
                    put(carries, t, first_column + column, total, ADD)
                else:
                    put(out, row - first_row, first_column + column, total, how)
            if tail is not None:
                if fibres is None:
                    remainder = _sum(indices, values, factors, order, start, stop, last, ahead, rest, tail)
                else:
                    remainder = _sum_of_fibres(indices, values, factors, fibres, c, rest, tail)
                if row == shared[t]:
                    put(carries, t, first_column + rest, remainder, ADD)
                else:
                    put(out, row - first_row, first_column + rest, remainder, how)
        if way != ADD and t == shared.size - 1:
            _clear(out, new, empty[-1], first_column, way, factors, rest, lanes, tail)
        t = take(turn)
    fence()


@_inlined
def _clear(out, begin, end, first_column, way, factors, rest, lanes, tail):  # type: ignore[no-untyped-def]
    for row in range(begin, end):
        for column in range(0, rest, len(lanes) * (LANE // factors[0].itemsize)):
            put(out, row, first_column + column, zero(factors, lanes), way)
        if tail is not None:
            put(out, row, first_column + rest, zero(factors, tail), way)


@_inlined
def _sum(indices, values, factors, order, start, stop, last, ahead, column, lanes):  # type: ignore[no-untyped-def]
    total = zero(factors, lanes)
    for q in range(start, stop):
        if ahead:
            then = min(q + ahead, last)
            prefetch(indices, factors, then if order is None else order[then], column, lanes)
        total = accumulate(indices, factors, values, q if order is None else order[q], column, lanes, total)
    return total


@_inlined
def _sum_of_fibres(indices, values, factors, fibres, piece, column, lanes):  # type: ignore[no-untyped-def]
    of_piece, starts, leading, factor = fibres
    total = zero(factors, lanes)
    for f in range(of_piece[piece], of_piece[piece + 1]):
        part = zero(factors, lanes)
        for q in range(starts[f], starts[f + 1]):
            part = accumulate(indices, factors, values, q, column, lanes, part)
        total = accumulate_row(factor, leading[starts[f]], column, part, total)
    return total


@_inlined
def _fetch(matrix, low, high):  # type: ignore[no-untyped-def]
    width = matrix.shape[1]
    for at in range(low * width, high * width, LINE // matrix.itemsize):
        read_line(matrix, at)
