"""Scheduling of units, clearing of rows, and carries: code that is compiled once for all orders, ranks and precisions.

The units of a part are computed one after the other, by any thread, so that the order of additions is always the same.
"""

# Numba infers the types of the compiled functions.
# mypy: disable-error-code="no-untyped-def"

from __future__ import annotations

from partitioner.host.jit import inner

from ..simd.row_sums import ZEROS, put_zeros
from ..simd.thread_team import load, replace
from ..simd.vectors import ADD, LINE, read_line

AT_ONCE = ZEROS.count


@inner
def first_unit(number, threads, parts, units):
    """Return the initial state for `next_unit`: no unit yet, first part, rounds through the thread's own parts."""
    own, end_of_own = number * parts // threads, (number + 1) * parts // threads
    return -1, own - 1, units if end_of_own > own else 0, 0


@inner
def next_unit(number, threads, progress, units, state):
    """Begin the next unit: first of the thread's own parts, then of parts that others have not finished.

    The result is the state for the next call.

    Returns
    -------
    unit : int
        Number of the unit within the part; -1 if none is left.
    part : int
    rounds : int
        Remaining rounds through the thread's own parts.
    failed : int
        Number of consecutive parts in which no unit was available.
    """
    unit, part, rounds, failed = state
    parts = progress.size
    own, end_of_own = number * parts // threads, (number + 1) * parts // threads
    while failed < parts:
        if unit < 0 or rounds > 0:
            part += 1
            if rounds > 0 and part == end_of_own:
                rounds -= 1
                part = own
            elif part == parts:
                part = 0
        unit = _begin(progress, part, units)
        if unit >= 0:
            return unit, part, rounds, 0
        if rounds == 0:
            failed += 1
    return -1, part, rounds, failed


@inner
def _begin(progress, part, units):
    """Begin the next unit of a part and return its number; -1 if another thread is computing one, or none is left.

    The progress of a part is 2 x the finished units, plus 1 while a unit is being computed.
    """
    done = load(progress, part)
    free = done % 2 == 0 and done < 2 * units and replace(progress, part, done, done + 1)
    return done // 2 if free else -1


@inner
def clear_part(out, separate, carries, part, rows, new, way, first_column, width):
    """Clear a part's carry, and the rows that it adds to.

    With separate outputs (`separate`) these are all rows without sums, otherwise those of `rows`.
    """
    clear_sums(carries, part, part + 1, first_column, width)
    if separate:
        clear_sums(out, 0 if part else new[0], out.shape[0] if part else new[1], first_column, width)
    elif way == ADD:
        clear_sums(out, max(rows[0], new[0]), min(rows[1], new[1]), first_column, width)


@inner
def clear_sums(out, begin, end, first_column, width):
    """Set rows `begin` to `end` to zero, `width` columns from `first_column` on."""
    for row in range(begin, end):
        for column in range(first_column, first_column + width):
            out[row, column] = 0.0


@inner
def clear_rows(out, begin, end, first_column, width, way):
    """Write zeros to rows without nonzeros, in the same way as sums."""
    for row in range(begin, end):
        for column in range(first_column, first_column + width, AT_ONCE):
            put_zeros(out, row, column, way)


@inner
def fetch_blocks(matrix, blocks, block, piece):
    """Prefetch the rows of blocks, from `block` on, that begin at or before a piece; return the next block."""
    first_pieces, lows, highs, _ = blocks
    width = matrix.shape[1]
    while block < lows.size and first_pieces[block] <= piece:
        for at in range(lows[block] * width, highs[block] * width, LINE // matrix.itemsize):
            read_line(matrix, at)
        block += 1
    return block


@inner
def skip_blocks(blocks, piece):
    """Return the first block that does not begin before a piece (linear search: NumPy's takes long to compile)."""
    first_pieces, block = blocks[0], 0
    while block < first_pieces.size and first_pieces[block] < piece:
        block += 1
    return block


@inner
def add_carries(out, carries, shared, first_row, first_column, width):
    """Add the parts' carries to the output rows that they share."""
    for part in range(shared.size):
        if shared[part] >= 0:
            for column in range(first_column, first_column + width):
                out[shared[part] - first_row, column] += carries[part, column]
