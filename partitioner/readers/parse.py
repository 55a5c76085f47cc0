"""Numba parser of a block of lines ``i j ... value``.

`mark_blanks` finds every blank of the block, 64 bytes at a time, so that `parse_block` knows where each token
ends before it looks at it and turns up to eight digits into a number at once, without a branch on how many
there are. What is less plain (long tokens, comments, runs of blanks) goes byte by byte through `_line`.
The parser says which line is the first wrong one; what is wrong with it the caller finds out.
"""

# Numba infers the types of the compiled functions; mypy sees those that the reader calls.
# mypy: allow-untyped-defs, allow-untyped-calls, no-check-untyped-defs
# mypy: disable-error-code="assignment, return-value"

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from ..jit import jit
from .bits import NEWLINE, count_ones, find_blanks, load_word, trailing_zeros
from .values import BAD, FULL, LATE, SKIP, ZEROS, any_value, eight_digits, is_blank, long_value, not_digits, short_value

U8 = NDArray[np.uint8]
U32 = NDArray[np.uint32]
U64 = NDArray[np.uint64]
I32 = NDArray[np.int32]
I64 = NDArray[np.int64]
F64 = NDArray[np.float64]

PAD = 64  # bytes around a block that loads of whole words may touch
_U0, _U1, _U8 = (np.uint64(u) for u in (0, 1, 8))


@jit
def mark_blanks(text: U8, start: int, stop: int, marks: U32) -> tuple[int, int]:
    """Write the places of the blanks of `text[start:stop]` to `marks`; return their number and that of lines.

    Sixteen more places, all the last one, follow, so that a line cut short can be read on without harm.
    """
    count = lines = 0
    for at in range(start, stop, 64):
        blank, newline = find_blanks(text, at)
        if stop - at < 64:
            inside = FULL >> np.uint64(64 - (stop - at))
            blank &= inside
            newline &= inside
        lines += np.int64(count_ones(newline))
        found = np.int64(count_ones(blank))
        for first in range(0, found, 8):  # eight at once: how many there are is hard to predict
            for k in range(8):
                marks[count + first + k] = at + np.int64(trailing_zeros(blank))
                blank &= blank - _U1
        count += found
    for k in range(16):
        marks[count + k] = stop - 1
    return count, lines


@jit
def _index(text, at):
    """Read an index: the number (0 for none, past every limit if too long) and the place after it."""
    if text[at] == 43:
        at += 1
    start = at
    number = 0
    while 48 <= text[at] <= 57:
        number = min(number * 10 + np.int64(text[at]) - 48, 1 << 40)
        at += 1
    whole = at > start and is_blank(text[at])
    return number if whole else 1 << 40, at


@jit
def _line(text, at, base, limits, columns, values, row):
    """Read the line at `at`, any line: what it is, and the places where its value starts and ends."""
    for m in range(limits.size + 1):
        while is_blank(text[at]) and text[at] != NEWLINE:
            at += 1
        start = at
        if m == 0 and (text[at] == 35 or text[at] == 37 or text[at] == NEWLINE):
            return SKIP, at, at
        if m < limits.size:
            number, at = _index(text, at)
            if np.uint64(number - base) >= limits[m]:
                return BAD, start, at
            columns[m, row] = number - base
    status, values[row], at = any_value(text, start)
    stop = at
    while is_blank(text[at]) and text[at] != NEWLINE:
        at += 1
    return status if text[at] == NEWLINE else BAD, start, stop


@jit
def _short_index(word, length, after, base, limit):
    """An index of up to eight digits, the last of `word`: zero if it is one; the index counted from 0."""
    word = (word ^ ZEROS) & (FULL << np.uint64((64 - 8 * length) & 63))
    number = np.int64(eight_digits(word)) - base
    fits = np.uint64(length - 1) < _U8 and np.uint64(number) < limit
    return not_digits(word) | np.uint64(not (fits and (after == 32 or after == 9))), number


@jit
def parse_block(
    text: U8, start: int, marks: U32, count: int, base: int, limits: U64, columns: I32, values: F64, late: I64
) -> tuple[int, int, int, int]:
    """Read the lines from `start` on, whose blanks are the first `count` of `marks`.

    Nonzero `r` of the block goes to `columns[:, r]`, counted from 0, and `values[r]`. `base` is the lowest
    index in the text, `limits` holds the mode lengths. Each row of `late` tells of a value that is left to
    `float`: its nonzero, where it starts and stops, and its line. Returns how many nonzeros, lines and late
    values there are, and where the first wrong line is, or -1; reading ends there.
    """
    row = line = lates = t = 0
    begin = np.int64(start)
    while t < count:
        first = t
        at = begin
        bad = _U0
        for m in range(limits.size):
            stop = np.int64(marks[t])
            t += 1
            # Only numbers are passed on: an array would cost its reference count, a fifth of the speed.
            wrong, number = _short_index(load_word(text, stop - 8), stop - at, text[stop], base, limits[m])
            columns[m, row] = number
            bad |= wrong
            at = stop + 1
        status, stop = BAD, np.int64(marks[t])
        if bad == _U0:
            status, values[row] = short_value(load_word(text, stop - 8), text[at], stop - at)
            if status == BAD:
                status, values[row] = long_value(text, at, stop)
            if status == BAD:
                status, values[row], stop = any_value(text, at)
            while text[marks[t]] != NEWLINE and marks[t + 1] == marks[t] + 1 and is_blank(text[marks[t]]):
                t += 1
        if status == BAD or text[marks[t]] != NEWLINE:
            status, at, stop = _line(text, begin, base, limits, columns, values, row)
            if status == BAD:
                return row, line, lates, begin
            t = first
            while marks[t] < stop or text[marks[t]] != NEWLINE:
                t += 1
        if status == LATE:
            late[lates, 0], late[lates, 1], late[lates, 2], late[lates, 3] = row, at, stop, line
            lates += 1
        row += status != SKIP
        line += 1
        begin = np.int64(marks[t]) + 1
        t += 1
    return row, line, lates, -1
