"""Parse many numbers at once, in loops without branches, which LLVM vectorises."""

# Numba infers the types of the compiled functions.
# mypy: allow-untyped-defs, allow-untyped-calls, no-check-untyped-defs
# mypy: disable-error-code="assignment, return-value"

from __future__ import annotations

import numpy as np

from ...host.jit import inner
from .bits import leading_zeros, load_word
from .plain import NEWLINE
from .values import EIGHT_DIGITS, FULL, HIGHS, MAX_DIGITS, ZEROS, eight_digits, not_digits

KIND = np.uint64(32)  # first bit of a token's number of decimals, sign and ending
ENDS_LINE = np.uint64(1)  # bits from `ENDING` on for a plain number at the end of a line
ENDING = np.uint64(36)
ODD = np.uint64(1 << 63)
NUMBER = np.uint64(0xFFFFFFFF)
SCALES = np.array([sign * 10.0**decimals for sign in (1, -1) for decimals in range(8)])
"""The divisor of a token's number, indexed by the four bits from `KIND` on (decimals, sign)."""

_LOW = np.uint64(0x0101010101010101)
_DOTS = np.uint64(0x1E1E1E1E1E1E1E1E)  # "." ^ "0" in each byte
_MINUS = np.uint64(ord("-") ^ ord("0"))
_BYTE = np.uint64(0xFF)
_U0, _U1, _U3, _U7, _U8, _U63, _U64 = (np.uint64(u) for u in (0, 1, 3, 7, 8, 63, 64))
_SIGN = np.uint64(35)
_NEWLINE = ENDS_LINE << ENDING
_TENS = np.array([10**k for k in range(MAX_DIGITS + 1)], np.uint64)


@inner
def read_tokens(text, marks, first, count, words, ends, tokens):
    """Parse `count` tokens; token k lies between `marks[first + k]` and the next mark.

    The result is a 64-bit word: the lower half is the number formed by the digits; from bit `KIND` on follow the number
    of decimals, a sign bit, and a bit that is set if a newline ends the token. Plain tokens have up to eight
    characters: digits, and optionally a minus and a dot. Other tokens, and those not ended by a space, tab or newline,
    are `ODD`.
    """
    before, after = marks[first : first + count], marks[first + 1 : first + 1 + count]
    for k in range(count):
        stop = np.int64(after[k])
        words[k] = load_word(text, stop - 8)
        ends[k] = text[stop]
    for k in range(count):
        length = np.uint64(after[k]) - np.uint64(before[k]) - _U1
        word = words[k] ^ ZEROS
        lead = (_U64 - (length << _U3)) & _U63
        negative = np.uint64((word >> lead) & _BYTE == _MINUS)
        word &= (FULL << lead) << (negative << _U3)
        dot = _lowest_dot(word)
        below = (dot >> _U7) - _U1
        closed = (word & ~((dot << _U1) - _U1)) | ((word & below) << _U8)  # removes the dot
        dotted = dot != _U0
        word = closed if dotted else word
        digits = length - negative - np.uint64(dotted)
        decimals = (leading_zeros(dot) >> _U3) & _U7
        odd = (not_digits(word) != _U0) | (digits - _U1 >= _U8) | (length > _U8) | dotted & (decimals == _U0)
        number = eight_digits(word) | (decimals << KIND) | (negative << _SIGN)
        end = ends[k]
        ending = _NEWLINE if end == NEWLINE else (_U0 if (end == 32) | (end == 9) else ODD)
        tokens[k] = (ODD if odd else number) | ending


@inner
def _lowest_dot(word):
    """Return the high bit of the byte with the first dot in `word` (digits as bytes 0 to 9), or zero."""
    gap = word ^ _DOTS
    dots = (gap - _LOW) & ~gap & HIGHS
    return dots & (_U0 - dots)


@inner
def _upper(digits):
    """Return a mask of the last `digits` bytes of a word; `digits` is clamped to 0 to 8."""
    shift = np.uint64(4 * (8 - max(0, min(8, digits))))
    return FULL << shift << shift


@inner
def read_mantissas(text, places, words, mantissas, decimals):
    """Parse values of digits around a dot, with an optional minus, into a mantissa and the number of decimals.

    Columns 1 and 2 of a row of `places` are a value's start and stop. Values of another form, or with a mantissa of
    more than 64 bits, get -1 decimals.
    """
    count = len(places)
    for k in range(count):
        begin, stop = places[k, 1], places[k, 2]
        begin += text[begin] == 45
        words[0, k] = load_word(text, begin)
        for j in range(3):
            words[1 + j, k] = load_word(text, stop - 8 * (3 - j))
        decimals[k] = stop - begin
    start, fore, middle, last = words[0], words[1], words[2], words[3]
    for k in range(count):
        word = start[k] ^ ZEROS
        dot = _lowest_dot(word)
        above = leading_zeros(dot)
        before = 7 - np.int64(above >> _U3)
        after = decimals[k] - before - 1
        first = (word << _U8) << (above & _U63)
        one = (fore[k] ^ ZEROS) & _upper(after - 16)
        two = (middle[k] ^ ZEROS) & _upper(after - 8)
        three = (last[k] ^ ZEROS) & _upper(after)
        digits = (not_digits(first) | not_digits(one) | not_digits(two) | not_digits(three)) == _U0
        whole = eight_digits(first)
        fits = (after >= 0) & (after <= MAX_DIGITS) & (after + before - (whole == _U0) <= MAX_DIGITS)
        plain = digits & fits & (before >= 0) & (after + before > 0)
        fraction = (eight_digits(one) * EIGHT_DIGITS + eight_digits(two)) * EIGHT_DIGITS + eight_digits(three)
        mantissas[k] = whole * _TENS[after if plain else 0] + fraction
        decimals[k] = after if plain else -1
