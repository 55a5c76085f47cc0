"""Numbers out of text, many side by side: loops without branches, of which LLVM makes vector instructions."""

# Numba infers the types of the compiled functions.
# mypy: allow-untyped-defs, allow-untyped-calls, no-check-untyped-defs
# mypy: disable-error-code="assignment, return-value"

from __future__ import annotations

import numpy as np

from ..jit import inner
from .bits import NEWLINE, leading_zeros, load_word
from .values import EIGHT_DIGITS, FULL, HIGHS, MAX_DIGITS, ZEROS, eight_digits, not_digits

MANY = 256  # that are read at once: what is between the steps stays in the nearest cache
KIND = np.uint64(32)  # the bits of a token from here on: decimals, sign, what ends it
ENDS_LINE = np.uint64(1)  # what is from bit `ENDING` on, of a plain number at the end of a line
ENDING = np.uint64(36)
ODD = np.uint64(1 << 63)
NUMBER = np.uint64(0xFFFFFFFF)
SCALES = np.array([sign * 10.0**decimals for sign in (1, -1) for decimals in range(8)])
"""What the number of a token is divided by, by its four bits from `KIND` on."""

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
    """Read `count` tokens, of which number k is between `marks[first + k]` and the next mark.

    A token is a number of up to eight characters, digits and perhaps a minus and a dot within: its digits in the lower
    half, how many are decimals from bit `KIND` on, then whether it is negative, then whether a newline ends it. It is
    `ODD` if it is anything else, or ended by anything else than a blank, a tab or a newline.
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
        closed = (word & ~((dot << _U1) - _U1)) | ((word & below) << _U8)  # the digits before the dot move up by one
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
    """The highest bit of the byte of `word`, digits as 0 to 9, that holds the first dot; zero if there is none."""
    gap = word ^ _DOTS
    dots = (gap - _LOW) & ~gap & HIGHS
    return dots & (_U0 - dots)


@inner
def _upper(digits):
    """A mask of a word's last bytes, as many as there are digits, none to eight."""
    shift = np.uint64(4 * (8 - max(0, min(8, digits))))
    return FULL << shift << shift


@inner
def read_mantissas(text, places, words, mantissas, decimals):
    """Read values of digits around a dot, perhaps with a sign: their digits as a number, and how many are decimals.

    Each starts and stops at columns 1 and 2 of a row of `places`. Where one is less plain, or its digits make a number
    of more than 64 bits, -1 decimals are written.
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
