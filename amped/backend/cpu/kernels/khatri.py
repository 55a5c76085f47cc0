"""Khatri-Rao products in pieces, and contractions with them: compiled code.

A group is a range of consecutive modes; its rows are numbered like the elements of a tensor of these modes. The factor
matrices of all modes are stored below each other in one (rows, R) matrix in double precision; mode m begins at row
``begins[m]``. The code is compiled once for any number of modes.
"""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from partitioner.array_types import Floats
from partitioner.host.jit import inner, jit

Matrix = Floats
Numbers = NDArray[np.int64]


@inner
def _leading(rows: Matrix, begins: Numbers, lengths: Numbers, run: int, skipped: int, lead: Matrix) -> int:
    """Multiply the rows of all modes but the last and `skipped`; return the index in mode `skipped`."""
    own = 0
    lead[:] = 1.0
    for m in range(lengths.size - 2, -1, -1):
        index = run % lengths[m]
        run //= lengths[m]
        if m == skipped:
            own = index
        else:
            row = rows[begins[m] + index]
            for r in range(lead.size):
                lead[r] *= row[r]
    return own


@jit
def khatri_rao(rows: Matrix, begins: Numbers, lengths: Numbers, first: int, target: Matrix) -> None:
    """Write consecutive rows of the Khatri-Rao product of a group, from row `first`; each number is rounded once."""
    last, lead = lengths[-1], np.empty(target.shape[1])
    p, run, j, none = 0, first // last, first % last, np.int64(-1)  # a literal has another type
    while p < target.shape[0]:
        _leading(rows, begins, lengths, run, none, lead)
        stop = min(target.shape[0], p + last - j)
        while p < stop:
            row, to = rows[begins[-1] + j], target[p]
            for r in range(lead.size):
                to[r] = lead[r] * row[r]
            p += 1
            j += 1
        j = 0
        run += 1


@jit
def contract(
    partial: Matrix,
    first: int,
    rows: Matrix,
    begins: Numbers,
    lengths: Numbers,
    mode: int,
    low: int,
    high: int,
    out: Matrix,
) -> None:
    """Contract rows of a partial result, (n, R), with the other modes of its group; add to rows `low` to `high` of
    `mode`.

    Row 0 of `partial` is row `first` of the group.
    """
    modes, columns = lengths.size, partial.shape[1]
    last, lead, total = lengths[-1], np.empty(columns), np.empty(columns)
    p, run, j = 0, first // last, first % last
    while p < partial.shape[0]:
        own = _leading(rows, begins, lengths, run, mode, lead)
        count = min(partial.shape[0] - p, last - j)
        if mode == modes - 1:
            for k in range(max(j, low), min(j + count, high)):
                row, to = partial[p + k - j], out[k]
                for r in range(columns):
                    to[r] += row[r] * lead[r]
        elif low <= own < high:
            total[:] = 0.0
            for k in range(count):
                row, other = partial[p + k], rows[begins[-1] + j + k]
                for r in range(columns):
                    total[r] += row[r] * other[r]
            to = out[own]
            for r in range(columns):
                to[r] += total[r] * lead[r]
        p += count
        j = 0
        run += 1


@jit
def put(target: Matrix, source: Matrix, add: bool) -> None:
    """Copy a matrix to one in double precision, or add it there if `add`."""
    for p in range(source.shape[0]):
        to, row = target[p], source[p]
        if add:
            for r in range(row.size):
                to[r] += row[r]
        else:
            for r in range(row.size):
                to[r] = row[r]
