"""Parsing of text without compiled code: comments, and blocks of plain lines ``i j ... value`` with NumPy.

`parse` takes the usual forms only: indices of digits, and values. Blocks with comments, signs of indices or errors are
for `parse_lines` if they are short, otherwise for the compiled parser; the results are the same.
"""

from __future__ import annotations

import math
import re
from pathlib import Path
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from ...host.worth import Compilable

PARSER = Compilable("parser", 2.0, [Path(__file__).parent])
PARSED, PARSED_BY_LINE = 4e-8, 1e-6  # seconds that `parse` and `parse_lines` take for a byte
PAD = 64  # bytes around a block that vector loads may touch
MANY = 256  # tokens that compiled code parses at once: intermediate results stay in the L1 cache
NEWLINE, ZERO = 10, 48
DIGITS = 15  # of a number, at most, that is exact in a double
WIDTH = 10  # digits of the highest index
VALUE = re.compile(rb"[0-9+\-.eE ]*")
INDEX, NUMBER = re.compile(rb"\+?0*[0-9]{1,10}"), re.compile(rb"[+-]?([0-9]+\.?[0-9]*|\.[0-9]+)([eE][+-]?[0-9]+)?")
_LINE = rb"[ \t\v\f\r]*[^#%\s]"  # neither empty nor a comment
_FIRST, _LATER = re.compile(_LINE), re.compile(rb"\n" + _LINE)
_BLANK = np.zeros(256, bool)
_BLANK[[9, 10, 11, 12, 13, 32]] = True


class PlainLines(NamedTuple):
    """The nonzeros of a block of whole lines."""

    columns: NDArray[np.int32]
    values: NDArray[np.float64]


def skip_lines(text: NDArray[np.uint8], at: int, stop: int) -> tuple[int, int]:
    """Return where the first line that is neither empty nor a comment begins in `text[at:stop]`, whole lines, or
    `stop`; and the number of lines before it.
    """
    if _FIRST.match(text.data, at, stop):
        return at, 0
    found = _LATER.search(text.data, at, stop)
    begin = found.start() + 1 if found else stop
    return begin, int(np.count_nonzero(text[at:begin] == NEWLINE))


def parse(text: NDArray[np.uint8], base: int, limits: NDArray[np.uint64]) -> PlainLines | None:
    """Parse whole lines; None if that is for the compiled parser.

    `base` is the lowest index in the text, `limits` holds the mode lengths.
    """
    blank, tokens = _BLANK[text], limits.size + 1
    if blank.all():
        return PlainLines(np.empty((limits.size, 0), np.int32), np.empty(0))
    ends: NDArray[np.int64] = np.flatnonzero(blank[1:] & ~blank[:-1]) + 1
    if ends.size % tokens:
        return None
    starts = np.flatnonzero(~blank[1:] & blank[:-1]) + 1
    starts = starts if blank[0] else np.append(0, starts)
    lines = np.cumsum(text == NEWLINE, dtype=np.int32)[starts].reshape(-1, tokens)
    lengths, ends = (each.reshape(-1, tokens) for each in (ends - starts, ends))
    whole = np.array_equal(lines[:, 0], lines[:, -1]) and bool(np.all(lines[1:, 0] > lines[:-1, 0]))
    if not whole or lengths[:, :-1].max() > WIDTH:
        return None
    columns = np.empty((limits.size, len(ends)), np.int32)
    for m, limit in enumerate(limits.tolist()):
        numbers = _numbers(text, ends[:, m], lengths[:, m])
        if numbers is None or numbers.min() < base or numbers.max() - base >= limit:
            return None
        columns[m] = numbers - base
    values = _values(text, ends[:, -1], lengths[:, -1])
    return None if values is None else PlainLines(columns, values)


def parse_lines(text: bytes, base: int, limits: list[int]) -> tuple[PlainLines, int, int]:
    """Parse whole lines of any form up to the first invalid one.

    Returns the nonzeros, the number of lines before the invalid one, and its position or -1. See `parse`.
    """
    rows, values, at, lines = list[list[int]](), list[float](), 0, text.removesuffix(b"\n").split(b"\n")
    number, wrong = len(lines), -1
    for k, line in enumerate(lines):
        words = line.split()
        if words and words[0][:1] not in b"#%":
            row = _nonzero(words, base, limits)
            if row is None:
                number, wrong = k, at
                break
            rows.append(row[0])
            values.append(row[1])
        at += len(line) + 1
    columns = np.array(rows, np.int64).reshape(-1, len(limits)).T.astype(np.int32)
    return PlainLines(columns, np.array(values)), number, wrong


def _nonzero(words: list[bytes], base: int, limits: list[int]) -> tuple[list[int], float] | None:
    """Return the indices, from 0, and the value of a line; None if it is invalid."""
    *indices, value = words
    if len(indices) != len(limits) or not all(map(INDEX.fullmatch, indices)) or not NUMBER.fullmatch(value):
        return None
    row, number = [int(index) - base for index in indices], float(value)
    valid = all(0 <= index < limit for index, limit in zip(row, limits, strict=True))
    return (row, number) if valid and math.isfinite(number) else None


def _numbers(text: NDArray[np.uint8], ends: NDArray[np.int64], lengths: NDArray[np.int64]) -> NDArray[np.int64] | None:
    """Return the numbers of digits only that end before `ends`; None if there are other characters."""
    numbers, scale = np.zeros(ends.size, np.int64), 1
    for k in range(int(lengths.max())):
        digits = text[ends - 1 - k].astype(np.int64) - ZERO
        there = lengths > k
        if np.any(there & ((digits < 0) | (digits > 9))):
            return None
        numbers += np.where(there, digits, 0) * scale
        scale *= 10
    return numbers


def _values(text: NDArray[np.uint8], ends: NDArray[np.int64], lengths: NDArray[np.int64]) -> NDArray[np.float64] | None:
    """Return the values that end before `ends`; None if one of them is no finite number."""
    if lengths.max() <= DIGITS and (numbers := _numbers(text, ends, lengths)) is not None:
        return numbers.astype(np.float64)
    raw = text.tobytes()
    tokens = [raw[end - length : end] for end, length in zip(ends.tolist(), lengths.tolist(), strict=True)]
    if not VALUE.fullmatch(b" ".join(tokens)):
        return None
    try:
        values = np.array([float(token) for token in tokens])
    except ValueError:
        return None
    return values if np.isfinite(values).all() else None
