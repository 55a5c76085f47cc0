"""MTTKRP over nonzeros that come in pieces of output rows."""

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

# Vectors would go through memory otherwise; and what passes on many arrays takes as long to compile as the rest.
_inlined = numba.njit(inline="always")


@jit
def segmented(  # type: ignore[no-untyped-def]
    nonzeros, factors, out, origin, way, parts, order, fibres, blocks, ahead, lanes, tail
):
    """Compute pieces of output rows, part by part, until none is left; their sums are added up in double precision.

    Parameters
    ----------
    nonzeros : tuple
        Where the pieces begin, (pieces + 1,); their output indices, (pieces,); the indices of the input modes, a tuple
        of (nnz,) arrays; the values, (nnz,).
    factors : tuple of (I_m, stride) arrays
    out : (rows, columns) float64 array
    origin : tuple of int
        The output index that is row 0 of `out`, and the column of `out` that is column 0 of `factors`.
    way : int
        How the first sum of a row is brought into `out`, see `vectors`; ADD if others may have been.
    parts : tuple
        The number of the next part, (1,), which threads share; the first piece of each part and the end, (parts + 1,);
        an output index of each, (parts,), whose sum is added to a row of an array (parts, columns) instead; this array;
        the rows of `out` that are cleared where no nonzeros are in them: the first of each part, and the end,
        (parts + 1,).
    order : (nnz,) array or None
        Which nonzero comes when.
    fibres : tuple or None
        See `layout.Fibres`, and the indices and the matrix of the first input mode, then left out above.
    blocks : tuple
        See `layout.Blocks`.
    ahead : int
        Of which nonzero to come the rows are fetched, counted from the one that is computed; 0: of none.
    lanes, tail : tuple, tuple or None
        What is computed together of a row, and what is left of it; see `vectors`.
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
        block = 0  # a search by NumPy takes half a second to compile
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
            else:  # what is added to soon stays in the caches
                how = STORE if way == PAST and c + 1 < end and rows[c + 1] == row else way
            # Twice, not in a function: a sum that is passed on once more goes through memory, and takes a tenth longer.
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
