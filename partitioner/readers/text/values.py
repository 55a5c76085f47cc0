"""Convert decimal numbers to doubles, correctly rounded.

Uses Clinger's method if mantissa and power of ten are exact doubles, else the 128-bit product of Eisel and Lemire. The
caller converts the few values that neither method decides with `float`.
"""

# Numba infers the types of the compiled functions.
# mypy: allow-untyped-defs, allow-untyped-calls, no-check-untyped-defs
# mypy: disable-error-code="assignment, return-value"

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from ...host.jit import inner
from .bits import as_double, leading_zeros, load_word, product_high, trailing_zeros

DATA, LATE, BAD = 0, 1, 2  # parsed; needs `float`; invalid
FULL = np.uint64(0xFFFFFFFFFFFFFFFF)
ZEROS = np.uint64(0x3030303030303030)
_NINES = np.uint64(0x7676767676767676)
HIGHS = np.uint64(0x8080808080808080)
_PAIRS = np.uint64(0x000000FF000000FF)
_HUNDREDS = np.uint64(100 + (1000000 << 32))
_ONES = np.uint64(1 + (10000 << 32))
_U0, _U1, _U3, _U8, _U10, _U16, _U32, _U52, _U63 = (np.uint64(u) for u in (0, 1, 3, 8, 10, 16, 32, 52, 63))
EIGHT_DIGITS = np.uint64(10**8)
MAX_DIGITS = 19  # a mantissa of this many digits fits 64 bits
_DROPPED = np.uint64(0x1FF)
_EXACT = np.uint64(1 << 53)
_POWERS = np.array([float(10**k) for k in range(23)])  # exact in a double


def _powers_of_five(low: int, high: int) -> NDArray[np.uint64]:
    """Return 5**q for q from `low` to `high`, scaled to 128 bits: truncated for q >= 0, rounded up for q < 0."""
    table = np.empty((high - low + 1, 2), np.uint64)
    for row, q in enumerate(range(low, high + 1)):
        power = 5 ** abs(q)
        if q >= 0:
            shift = power.bit_length() - 128
            scaled = power >> shift if shift > 0 else power << -shift
        else:
            scaled = (1 << (power.bit_length() + 127)) // power + 1
        table[row] = scaled >> 64, scaled & (2**64 - 1)
    return table


_LOWEST_POWER, _HIGHEST_POWER = -342, 308
_FIVES = _powers_of_five(_LOWEST_POWER, _HIGHEST_POWER)


@inner
def eight_digits(word):
    """Return the number formed by eight digits, bytes 0 to 9, the leading digit in the lowest byte."""
    pairs = word * _U10 + (word >> _U8)
    return ((pairs & _PAIRS) * _HUNDREDS + ((pairs >> _U16) & _PAIRS) * _ONES) >> _U32


@inner
def not_digits(word):
    """Return nonzero unless every byte of `word` is 0 to 9."""
    return ((word + _NINES) | word) & HIGHS


@inner
def is_blank(byte):
    return byte == 32 or 9 <= byte <= 13


@inner
def _digits(text, at, mantissa, taken):
    """Append digits to `mantissa`, which has `taken` digits.

    Returns both, the position after the digits, and whether digits were dropped.
    """
    over = False
    while True:
        if taken <= MAX_DIGITS - 8:
            word = load_word(text, at) ^ ZEROS
            if not_digits(word) == _U0:
                mantissa = mantissa * EIGHT_DIGITS + eight_digits(word)
                if taken > 0:
                    taken += 8
                elif word != _U0:  # leading zeros do not count
                    taken = 8 - np.int64(trailing_zeros(word) >> _U3)
                at += 8
                continue
        digit = np.int64(text[at]) - 48
        if digit < 0 or digit > 9:
            return mantissa, taken, at, over
        if taken < MAX_DIGITS:
            mantissa = mantissa * _U10 + np.uint64(digit)
            taken += mantissa != _U0
        else:
            over = True
        at += 1


@inner
def _exponent(text, at):
    """Parse an exponent after its "e". Return whether it is valid, the number, and the position after it."""
    negative = text[at] == 45
    if negative or text[at] == 43:
        at += 1
    start = at
    exponent = 0
    while 48 <= text[at] <= 57:
        exponent = min(exponent * 10 + np.int64(text[at]) - 48, 1 << 20)
        at += 1
    return at > start, -exponent if negative else exponent, at


@inner
def any_value(text, at):
    """Parse a value that ends at a blank. Return `DATA`, `LATE` or `BAD`, and the number."""
    negative = text[at] == 45
    if negative or text[at] == 43:
        at += 1
    start = at
    mantissa, taken, at, over = _digits(text, at, _U0, np.int64(0))
    digits = at - start
    power = 0
    if text[at] == 46:
        start = at + 1
        mantissa, taken, at, more = _digits(text, start, mantissa, taken)
        digits += at - start
        power = start - at
        over |= more
    good = digits > 0
    if good and (text[at] == 101 or text[at] == 69):
        good, exponent, at = _exponent(text, at + 1)
        power += exponent
    if not good or not is_blank(text[at]):
        return BAD, 0.0
    if over:
        return LATE, 0.0
    status, number = _rounded(mantissa, power)
    return status, -number if negative else number


@inner
def _rounded(mantissa, power):
    """Return `DATA` and the double nearest to mantissa * 10**power, or `LATE` if this method cannot decide."""
    if mantissa <= _EXACT and -22 <= power <= 22:
        if power < 0:
            return DATA, np.float64(mantissa) / _POWERS[-power]
        return DATA, np.float64(mantissa) * _POWERS[power]
    if mantissa != _U0 and (power < _LOWEST_POWER or power > _HIGHEST_POWER):
        return LATE, 0.0
    return by_product(mantissa, power)


@inner
def by_product(mantissa, power):
    """Like `_rounded`, by the leading 128 bits of the product (D. Lemire, Number Parsing at a Gigabyte per Second)."""
    if mantissa == _U0:
        return DATA, 0.0
    shift = leading_zeros(mantissa)
    mantissa <<= shift
    five = _FIVES[power - _LOWEST_POWER]
    high, low = product_high(mantissa, five[0]), mantissa * five[0]
    if high & _DROPPED == _DROPPED:  # the lower half of the power of five may carry into the significand
        more = product_high(mantissa, five[1])
        low += more
        if low < more:
            high += _U1
    upper = high >> _U63
    bits = high >> (upper + np.uint64(9))
    # Rare cases for `float`: values (nearly) halfway between two doubles; below, subnormals and overflow.
    tie = low <= _U1 and bits & _U3 == _U1 and bits << (upper + np.uint64(9)) == high
    if low == FULL or tie:
        return LATE, 0.0
    exponent = ((217706 * power) >> 16) + 63 + np.int64(upper) - np.int64(shift)
    if exponent <= -1023 or exponent >= 1023:
        return LATE, 0.0
    # The bits of the significand, from 2**52 on, carry into those of the exponent.
    return DATA, as_double((np.uint64(exponent + 1022) << _U52) + ((bits + (bits & _U1)) >> _U1))
