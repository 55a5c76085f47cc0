"""MTTKRP over nonzeros sorted by output row, or brought into that order by a permutation."""

from __future__ import annotations

from partitioner.jit import jit

from .vectors import LANE, accumulate, prefetch, put, zero

CHUNK = 32  # nonzeros; as many are summed up in the factors' precision
AHEAD = 24  # nonzeros from the one that is computed to the one whose rows are fetched


@jit
def segmented(  # type: ignore[no-untyped-def]
    indices, values, factors, out, first_row, begin, end, carried, carry, order, ahead, lanes, tail
):
    """Compute the output rows of the nonzeros `begin` to `end`; sums of chunks are added up in double precision.

    Parameters
    ----------
    indices : tuple of (nnz,) arrays
        The output index, then those of the input modes.
    values : (nnz,) array
    factors : tuple of (I_m, stride) arrays
    out : (rows, stride) float64 array
        Row 0 is that of output index `first_row`.
    begin, end : int
    carried : bool
        Whether the first row is added to `carry`, (1, stride), instead.
    order : (nnz,) array or None
        Which nonzero comes when; then rows are added to what is in `out`.
    ahead : tuple or None
        Whether rows are fetched ahead of time: worth it where factor matrices are not in the caches.
    lanes, tail : tuple, tuple or None
        What is computed together of a row, and what is left of it; see `vectors`.
    """
    rows = indices[0]
    width = len(lanes) * (LANE // factors[0].itemsize)
    panels = out.shape[1] // width
    row = -1
    p = begin
    while p < end:
        last = row
        row = rows[p] if order is None else rows[order[p]]
        carried = carried and (p == begin or row == last)
        add = order is not None or row == last
        most = min(end, p + CHUNK)
        stop = p + 1
        if order is None:
            while stop < most and rows[stop] == row:
                stop += 1
        else:
            while stop < most and rows[order[stop]] == row:
                stop += 1
        for panel in range(panels):
            column = panel * width
            total = zero(factors, lanes)
            for q in range(p, stop):
                if ahead is not None:
                    then = min(q + AHEAD, end - 1)
                    prefetch(indices, factors, then if order is None else order[then], column, lanes)
                at = q if order is None else order[q]
                total = accumulate(indices, factors, values, at, column, lanes, total)
            if carried:
                put(carry, 0, column, total, True)
            else:
                put(out, row - first_row, column, total, add)
        if tail is not None:
            column = panels * width
            rest = zero(factors, tail)
            for q in range(p, stop):
                at = q if order is None else order[q]
                rest = accumulate(indices, factors, values, at, column, tail, rest)
            if carried:
                put(carry, 0, column, rest, True)
            else:
                put(out, row - first_row, column, rest, add)
        p = stop
