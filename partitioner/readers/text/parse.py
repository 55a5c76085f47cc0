"""Numba parser of a block of lines ``i j ... value``.

`mark_blanks` finds all blanks of the block, 64 bytes at a time, and so the end of each token. `parse_block` reads many
tokens at once, vectorised, and combines them to lines; rarer forms (long indices, signs, comments, runs of blanks) are
parsed byte by byte in `_line`. Values longer than eight characters are deferred to `parse_aside`, which is also
vectorised. The parser returns the first invalid line; the caller determines the error in it.
"""

# Numba infers the types of compiled functions; annotations are for mypy, of functions that the reader calls.
# mypy: allow-untyped-defs, allow-untyped-calls, no-check-untyped-defs
# mypy: disable-error-code="assignment, return-value"

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from ...host.jit import inner, jit
from .bits import count_ones, find_blanks, trailing_zeros
from .plain import MANY, NEWLINE
from .tokens import ENDING, ENDS_LINE, KIND, NUMBER, ODD, SCALES, read_mantissas, read_tokens
from .values import BAD, FULL, LATE, any_value, by_product, is_blank

U8 = NDArray[np.uint8]
U32 = NDArray[np.uint32]
U64 = NDArray[np.uint64]
I32 = NDArray[np.int32]
I64 = NDArray[np.int64]
F64 = NDArray[np.float64]

# Kinds of lines: completely parsed; value deferred; comment or empty; invalid.
NONZERO, ASIDE, SKIP, WRONG = range(4)
_U1, _U15 = np.uint64(1), np.uint64(15)


@jit
def mark_blanks(text: U8, start: int, stop: int, marks: U32) -> tuple[int, int]:
    """Write the positions of the blanks in `text[start:stop]` to `marks`; return the numbers of blanks and lines.

    The position before the text is the first mark, so token k lies between marks k and k + 1.
    """
    marks[0] = start - 1
    count = lines = 0
    for at in range(start, stop, 64):
        blank, newline = find_blanks(text, at)
        if stop - at < 64:
            inside = FULL >> np.uint64(64 - (stop - at))
            blank &= inside
            newline &= inside
        lines += np.int64(count_ones(newline))
        blanks = np.int64(count_ones(blank))
        for first in range(1, blanks + 1, 8):  # eight at a time, as a branch on their number is hard to predict
            for k in range(8):
                marks[count + first + k] = at + np.int64(trailing_zeros(blank))
                blank &= blank - _U1
        count += blanks
    return count, lines


@inner
def _index(text, at):
    """Parse an index. Return the number, or 2**40 if it is invalid or too long, and the position after it."""
    if text[at] == 43:
        at += 1
    start = at
    number = 0
    while 48 <= text[at] <= 57:
        number = min(number * 10 + np.int64(text[at]) - 48, 1 << 40)
        at += 1
    complete = at > start and is_blank(text[at])
    return number if complete else 1 << 40, at


@inner
def _line(text, at, base, limits, columns, row):
    """Parse any line byte by byte. Return its kind, and the start and end of its value."""
    for m in range(limits.size + 1):
        while is_blank(text[at]) and text[at] != NEWLINE:
            at += 1
        start = at
        if m == 0 and (text[at] == 35 or text[at] == 37 or text[at] == NEWLINE):
            return SKIP, at, at
        if m < limits.size:
            number, at = _index(text, at)
            if np.uint64(number - base) >= limits[m]:
                return WRONG, start, at
            columns[m, row] = number - base
    while not is_blank(text[at]):
        at += 1
    stop = at
    while is_blank(text[at]) and text[at] != NEWLINE:
        at += 1
    return ASIDE if start < stop and text[at] == NEWLINE else WRONG, start, stop


@inner
def _is_gap(text, mark, following):
    """Return whether the blank at `mark` is not a newline and the next mark follows directly."""
    return following == mark + 1 and is_blank(text[mark]) and text[mark] != NEWLINE


@jit
def parse_block(
    text: U8, marks: U32, count: int, base: int, limits: U64, scratch: U64, columns: I32, values: F64, aside: I64
) -> tuple[int, int, int, int]:
    """Parse the lines of a block with `count` tokens; `scratch` is scratch memory, three rows of `MANY`.

    Nonzero `r` of the block is stored in `columns[:, r]`, counted from 0, and `values[r]`. `base` is the lowest index
    in the text, `limits` are the mode lengths. Each row of `aside` describes a value deferred to `parse_aside`: its
    nonzero, start, stop, and line. Returns the numbers of nonzeros, lines and deferred values, and the position of the
    first invalid line, where parsing ends, or -1.
    """
    words, ends, tokens = scratch[0], scratch[1], scratch[2]
    lowest = np.uint64(base)
    row: int = np.int64(0)  # int64 from the start, so that called functions are compiled once
    line = asides = t = row
    while t < count:
        first, many = t, min(MANY, count - t)
        read_tokens(text, marks, first, many, words, ends, tokens)
        for k in range(many, MANY):
            tokens[k] = ODD
        while t < min(count, first + MANY - limits.size):
            good = True
            for m in range(limits.size):
                number = tokens[t - first + m] - lowest  # exceeds every limit if the token is not a plain index
                columns[m, row] = number
                good &= number < limits[m]
            token = tokens[t - first + limits.size]
            values[row] = np.float64(token & NUMBER) / SCALES[(token >> KIND) & _U15]
            kind, last = NONZERO, t + limits.size
            if not (good and token >> ENDING == ENDS_LINE):  # inline, as passing arrays costs reference counting
                kind, start, stop = ASIDE, np.int64(marks[last]) + 1, np.int64(marks[last + 1])
                while good and _is_gap(text, np.int64(marks[last + 1]), np.int64(marks[last + 2])):
                    last += 1
                if not good or start == stop or text[marks[last + 1]] != NEWLINE:
                    kind, start, stop = _line(text, np.int64(marks[t]) + 1, base, limits, columns, row)
                    if kind == WRONG:
                        return row, line, asides, np.int64(marks[t]) + 1
                    last = t
                    while marks[last + 1] < stop or text[marks[last + 1]] != NEWLINE:
                        last += 1
                if kind == ASIDE:
                    aside[asides, 0], aside[asides, 1], aside[asides, 2], aside[asides, 3] = row, start, stop, line
                    asides += 1
            row += kind != SKIP
            line += 1
            t = last + 1
    return row, line, asides, -1


@jit
def parse_aside(text: U8, aside: I64, scratch: U64, decimals: I64, values: F64) -> tuple[int, int]:
    """Parse the deferred values; scratch memory: `scratch`, five rows of `MANY`, and `decimals`, one.

    Values that need `float` are moved to the front of `aside`. Returns their number, and the number of the first
    invalid value, where parsing ends, or -1.
    """
    words, mantissas = scratch[:4], scratch[4]
    remaining = 0
    for first in range(0, len(aside), MANY):
        batch = aside[first : first + MANY]
        read_mantissas(text, batch, words, mantissas, decimals)
        for k in range(len(batch)):
            row, at = batch[k, 0], batch[k, 1]
            if decimals[k] >= 0:
                status, number = by_product(mantissas[k], -decimals[k])
                values[row] = -number if text[at] == 45 else number
            else:
                status, values[row] = any_value(text, at)
            if status == BAD:
                return remaining, first + k
            if status == LATE:
                aside[remaining, 0], aside[remaining, 1], aside[remaining, 2], aside[remaining, 3] = (
                    row,
                    at,
                    batch[k, 2],
                    batch[k, 3],
                )
                remaining += 1
    return remaining, -1
