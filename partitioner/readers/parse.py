"""Numba parser of a block of lines ``i j ... value``.

`mark_blanks` finds every blank of the block, 64 bytes at a time, so that `parse_block` knows where each token
ends before it looks at it and turns up to eight digits into a number at once, without a branch on how many
there are. What is less plain (long tokens, comments, runs of blanks) goes byte by byte through `_line`.
Values are correctly rounded: exactly (Clinger) where mantissa and power of ten are exact, else by the 128-bit
product of Eisel and Lemire; the few that neither decides are left to the caller, for `float`.
The parser says which line is the first wrong one; what is wrong with it the caller finds out.
"""

# Numba infers the types of the compiled functions; mypy sees those that the reader calls.
# mypy: allow-untyped-defs, allow-untyped-calls, no-check-untyped-defs
# mypy: disable-error-code="assignment, return-value"

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
from llvmlite import ir
from numba import types
from numba.extending import intrinsic
from numpy.typing import NDArray

from ..jit import jit

U8 = NDArray[np.uint8]
U32 = NDArray[np.uint32]
U64 = NDArray[np.uint64]
I32 = NDArray[np.int32]
I64 = NDArray[np.int64]
F64 = NDArray[np.float64]

PAD = 64  # bytes around a block that loads of whole words may touch
DATA, SKIP, LATE, BAD = 0, 1, 2, 3  # a line: a nonzero; nothing; a nonzero whose value is for `float`; wrong

_NEWLINE = 10
_FULL = np.uint64(0xFFFFFFFFFFFFFFFF)
_ZEROS = np.uint64(0x3030303030303030)
_NINES = np.uint64(0x7676767676767676)
_HIGH = np.uint64(0x8080808080808080)
_LOW = np.uint64(0x0101010101010101)
_DOTS = np.uint64(0x1E1E1E1E1E1E1E1E)  # "." ^ "0" in each byte
_PAIRS = np.uint64(0x000000FF000000FF)
_HUNDREDS = np.uint64(100 + (1000000 << 32))
_ONES = np.uint64(1 + (10000 << 32))
_U0, _U1, _U3, _U8, _U10, _U16, _U32, _U52, _U63 = (np.uint64(u) for u in (0, 1, 3, 8, 10, 16, 32, 52, 63))
_EIGHT_DIGITS = np.uint64(10**8)
_MAX_DIGITS = 19  # the longest mantissa that always fits 64 bits
_DROPPED = np.uint64(0x1FF)
_EXACT = np.uint64(1 << 53)
_inline: Callable[..., Any] = intrinsic  # a function of LLVM instructions
_LAST = np.array(
    [_FULL.item() << (64 - 8 * max(0, min(8, k - 16))) & _FULL.item() for k in range(_MAX_DIGITS + 17)], np.uint64
)
_TENS = np.array([10**k for k in range(_MAX_DIGITS + 1)], np.uint64)
_POWERS = np.array([float(10**k) for k in range(23)])  # those that a double holds exactly


def _powers_of_five(low: int, high: int) -> NDArray[np.uint64]:
    """5**q for q from `low` to `high`, scaled to 128 bits: truncated for q >= 0, rounded up below."""
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


@_inline
def _word(typing_context, text, at):
    """The eight bytes at `at`, the first one lowest."""

    def generate(context, builder, signature, args):
        data = context.make_array(signature.args[0])(context, builder, args[0]).data
        place = builder.bitcast(builder.gep(data, [args[1]]), ir.IntType(64).as_pointer())
        return builder.load(place, align=1)

    return types.uint64(text, types.int64), generate


@_inline
def _blanks(typing_context, text, at):
    """Bit b of the first result: byte `at` + b is a blank or a control byte; of the second: a newline."""
    pair = types.UniTuple(types.uint64, 2)

    def generate(context, builder, signature, args):
        byte, bits = ir.IntType(8), ir.IntType(64)
        vector = ir.VectorType(byte, 64)
        data = context.make_array(signature.args[0])(context, builder, args[0]).data
        place = builder.bitcast(builder.gep(data, [args[1]]), vector.as_pointer())
        chunk = builder.load(place, align=1)
        blank = builder.icmp_unsigned("<=", chunk, ir.Constant(vector, [byte(32)] * 64))
        newline = builder.icmp_unsigned("==", chunk, ir.Constant(vector, [byte(_NEWLINE)] * 64))
        masks = [builder.bitcast(blank, bits), builder.bitcast(newline, bits)]
        return context.make_tuple(builder, pair, masks)

    return pair(text, types.int64), generate


def _bit_count(name):
    """One of LLVM's ctlz, cttz (64 for zero) and ctpop."""

    @_inline
    def count(typing_context, word):
        def generate(context, builder, signature, args):
            zero_is_defined = [] if name == "ctpop" else [ir.Constant(ir.IntType(1), 0)]
            return getattr(builder, name)(*args, *zero_is_defined)

        return types.uint64(types.uint64), generate

    return count


_leading_zeros, _trailing_zeros, _count_ones = (_bit_count(name) for name in ("ctlz", "cttz", "ctpop"))


@_inline
def _product_high(typing_context, a, b):
    """The upper half of the 128-bit product; ``a * b`` is the lower one."""

    def generate(context, builder, signature, args):
        wide = ir.IntType(128)
        product = builder.mul(builder.zext(args[0], wide), builder.zext(args[1], wide))
        return builder.trunc(builder.lshr(product, ir.Constant(wide, 64)), ir.IntType(64))

    return types.uint64(types.uint64, types.uint64), generate


@_inline
def _as_double(typing_context, bits):
    """The double of these bits."""

    def generate(context, builder, signature, args):
        return builder.bitcast(args[0], ir.DoubleType())

    return types.float64(types.uint64), generate


@jit
def mark_blanks(text: U8, start: int, stop: int, marks: U32) -> tuple[int, int]:
    """Write the places of the blanks of `text[start:stop]` to `marks`; return their number and that of lines.

    Sixteen more places, all the last one, follow, so that a line cut short can be read on without harm.
    """
    count = lines = 0
    for at in range(start, stop, 64):
        blank, newline = _blanks(text, at)
        if stop - at < 64:
            inside = _FULL >> np.uint64(64 - (stop - at))
            blank &= inside
            newline &= inside
        lines += np.int64(_count_ones(newline))
        found = np.int64(_count_ones(blank))
        for first in range(0, found, 8):  # eight at once: how many there are is hard to predict
            for k in range(8):
                marks[count + first + k] = at + np.int64(_trailing_zeros(blank))
                blank &= blank - _U1
        count += found
    for k in range(16):
        marks[count + k] = stop - 1
    return count, lines


@jit
def _number(word):
    """The number that eight digits make, given as bytes 0 to 9, the first one lowest."""
    pairs = word * _U10 + (word >> _U8)
    return ((pairs & _PAIRS) * _HUNDREDS + ((pairs >> _U16) & _PAIRS) * _ONES) >> _U32


@jit
def _not_digits(word):
    """Nonzero unless every byte of `word` is 0 to 9."""
    return ((word + _NINES) | word) & _HIGH


@jit
def _is_blank(byte):
    return byte == 32 or 9 <= byte <= 13


@jit
def _short_value(word, sign, length):
    """A value of up to eight characters, the last of `word`: `DATA`, or `BAD` if less plain; the number."""
    negative = sign == 45
    length -= negative
    if length < 1 or length > 8:
        return BAD, 0.0
    word = (word ^ _ZEROS) & (_FULL << np.uint64(64 - 8 * length))
    gap = word ^ _DOTS
    dot = (gap - _LOW) & ~gap & _HIGH
    decimals = 0
    if dot != _U0:  # close the gap: the digits before the dot move up by one
        at = (_trailing_zeros(dot) >> _U3) << _U3
        above = _FULL << at
        word = (word & (above << _U8)) | ((word & ~above) << _U8)
        decimals = 7 - np.int64(at >> _U3)
        length -= 1
    number = np.float64(_number(word)) / _POWERS[decimals]
    good = length > 0 and _not_digits(word) == _U0
    return DATA if good else BAD, -number if negative else number


@jit
def _long_value(text, at, stop):
    """A value in plain digits around a dot, from `at` to `stop`: `DATA`, `LATE`, or `BAD` if less plain; the number."""
    negative = text[at] == 45
    at += negative
    word = _word(text, at) ^ _ZEROS
    gap = word ^ _DOTS
    dot = (gap - _LOW) & ~gap & _HIGH
    before = np.int64(_trailing_zeros(dot) >> _U3)
    after = stop - at - before - 1
    if before == 8 or not 0 <= after <= _MAX_DIGITS or before + after == 0:
        return BAD, 0.0
    # Masks instead of branches on how many digits there are, which is hard to predict.
    first = (word << _U8) << np.uint64(56 - 8 * before)
    last = (_word(text, stop - 8) ^ _ZEROS) & _LAST[after + 16]
    middle = (_word(text, stop - 16) ^ _ZEROS) & _LAST[after + 8]
    fore = (_word(text, stop - 24) ^ _ZEROS) & _LAST[after]
    if (_not_digits(first) | _not_digits(last) | _not_digits(middle) | _not_digits(fore)) != _U0:
        return BAD, 0.0
    whole = _number(first)
    if after + before - (whole == _U0) > _MAX_DIGITS:
        return BAD, 0.0
    mantissa = whole * _TENS[after] + (_number(fore) * _EIGHT_DIGITS + _number(middle)) * _EIGHT_DIGITS + _number(last)
    if mantissa == _U0:
        return DATA, -0.0 if negative else 0.0
    decided, number = _by_product(mantissa, -after)
    return DATA if decided else LATE, -number if negative else number


@jit
def _digits(text, at, mantissa, taken):
    """Read more digits into `mantissa`, `taken` so far; return both, the place after, if some were left."""
    over = False
    while True:
        if taken <= _MAX_DIGITS - 8:
            word = _word(text, at) ^ _ZEROS
            if _not_digits(word) == _U0:
                mantissa = mantissa * _EIGHT_DIGITS + _number(word)
                if taken > 0:
                    taken += 8
                elif word != _U0:  # leading zeros take no room
                    taken = 8 - np.int64(_trailing_zeros(word) >> _U3)
                at += 8
                continue
        digit = np.int64(text[at]) - 48
        if digit < 0 or digit > 9:
            return mantissa, taken, at, over
        if taken < _MAX_DIGITS:
            mantissa = mantissa * _U10 + np.uint64(digit)
            taken += mantissa != _U0
        else:
            over = True
        at += 1


@jit
def _exponent(text, at):
    """Read an exponent after its "e": whether it is one, the number, and the place after it."""
    negative = text[at] == 45
    if negative or text[at] == 43:
        at += 1
    start = at
    exponent = 0
    while 48 <= text[at] <= 57:
        exponent = min(exponent * 10 + np.int64(text[at]) - 48, 1 << 20)
        at += 1
    return at > start, -exponent if negative else exponent, at


@jit
def _value(text, at):
    """Read a value: `DATA`, `LATE` or `BAD`, the number, and the place after it."""
    negative = text[at] == 45
    if negative or text[at] == 43:
        at += 1
    start = at
    mantissa, taken, at, over = _digits(text, at, _U0, 0)
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
    if not good or not _is_blank(text[at]):
        return BAD, 0.0, at
    if over:
        return LATE, 0.0, at
    decided, number = _rounded(mantissa, power)
    return DATA if decided else LATE, -number if negative else number, at


@jit
def _rounded(mantissa, power):
    """The double nearest to mantissa * 10**power, if it can be told here."""
    if mantissa == _U0:
        return True, 0.0
    if mantissa <= _EXACT and -22 <= power <= 22:
        if power < 0:
            return True, np.float64(mantissa) / _POWERS[-power]
        return True, np.float64(mantissa) * _POWERS[power]
    if power < _LOWEST_POWER or power > _HIGHEST_POWER:
        return False, 0.0
    return _by_product(mantissa, power)


@jit
def _by_product(mantissa, power):
    """Round by the leading 128 bits of the product (D. Lemire, Number Parsing at a Gigabyte per Second)."""
    shift = _leading_zeros(mantissa)
    mantissa <<= shift
    five = _FIVES[power - _LOWEST_POWER]
    high, low = _product_high(mantissa, five[0]), mantissa * five[0]
    if high & _DROPPED == _DROPPED:  # the lower half of the power may carry into the bits that are kept
        more = _product_high(mantissa, five[1])
        low += more
        if low < more:
            high += _U1
    upper = high >> _U63
    bits = high >> (upper + np.uint64(9))
    # A halfway case, or one too near to it; a subnormal; an overflow: all rare.
    tie = low <= _U1 and bits & _U3 == _U1 and bits << (upper + np.uint64(9)) == high
    if low == _FULL or tie:
        return False, 0.0
    exponent = ((217706 * power) >> 16) + 63 + np.int64(upper) - np.int64(shift)
    if exponent <= -1023 or exponent >= 1023:
        return False, 0.0
    # The bits of the significand, from 2**52 on, carry into those of the exponent.
    return True, _as_double((np.uint64(exponent + 1022) << _U52) + ((bits + (bits & _U1)) >> _U1))


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
    whole = at > start and _is_blank(text[at])
    return number if whole else 1 << 40, at


@jit
def _line(text, at, base, limits, columns, values, row):
    """Read the line at `at`, any line: what it is, and the places where its value starts and ends."""
    for m in range(limits.size + 1):
        while _is_blank(text[at]) and text[at] != _NEWLINE:
            at += 1
        start = at
        if m == 0 and (text[at] == 35 or text[at] == 37 or text[at] == _NEWLINE):
            return SKIP, at, at
        if m < limits.size:
            number, at = _index(text, at)
            if np.uint64(number - base) >= limits[m]:
                return BAD, start, at
            columns[m, row] = number - base
    status, values[row], at = _value(text, start)
    stop = at
    while _is_blank(text[at]) and text[at] != _NEWLINE:
        at += 1
    return status if text[at] == _NEWLINE else BAD, start, stop


@jit
def _short_index(word, length, after, base, limit):
    """An index of up to eight digits, the last of `word`: zero if it is one; the index counted from 0."""
    word = (word ^ _ZEROS) & (_FULL << np.uint64((64 - 8 * length) & 63))
    number = np.int64(_number(word)) - base
    fits = np.uint64(length - 1) < _U8 and np.uint64(number) < limit
    return _not_digits(word) | np.uint64(not (fits and (after == 32 or after == 9))), number


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
            wrong, number = _short_index(_word(text, stop - 8), stop - at, text[stop], base, limits[m])
            columns[m, row] = number
            bad |= wrong
            at = stop + 1
        status, stop = BAD, np.int64(marks[t])
        if bad == _U0:
            status, values[row] = _short_value(_word(text, stop - 8), text[at], stop - at)
            if status == BAD:
                status, values[row] = _long_value(text, at, stop)
            if status == BAD:
                status, values[row], stop = _value(text, at)
            while text[marks[t]] != _NEWLINE and marks[t + 1] == marks[t] + 1 and _is_blank(text[marks[t]]):
                t += 1
        if status == BAD or text[marks[t]] != _NEWLINE:
            status, at, stop = _line(text, begin, base, limits, columns, values, row)
            if status == BAD:
                return row, line, lates, begin
            t = first
            while marks[t] < stop or text[marks[t]] != _NEWLINE:
                t += 1
        if status == LATE:
            late[lates, 0], late[lates, 1], late[lates, 2], late[lates, 3] = row, at, stop, line
            lates += 1
        row += status != SKIP
        line += 1
        begin = np.int64(marks[t]) + 1
        t += 1
    return row, line, lates, -1
