"""The header of a text file (the lines before the first nonzero), and error messages for invalid lines."""

from __future__ import annotations

import codecs
import re

import numpy as np
from numpy.typing import NDArray

from ...errors import InputError
from ...tensors.ingest import MAX_MODE_LENGTH, check_order
from ...wording import parameter, setting
from ..first_line import FirstLine
from .blocks import BlockSlot, Cutter
from .plain import NUMBER, PAD, skip_lines

_INTEGER = re.compile(rb"[+-]?[0-9]+")
COMMENT = "; a comment must be on a separate line"
_NOT_FINITE = re.compile(rb"[+-]?(nan|inf|infinity)", re.IGNORECASE)
_NOT_TEXT = re.compile(rb"[^\t\n\v\f\r -~]")
SKIPPED = b" \t\n\v\f\r#%"  # first bytes of empty lines and comments
_MARKET = b"%%MatrixMarket"
_OTHER_KINDS = (b"tensor", b"matrix", b"ktensor", b"ttensor", b"sumtensor")
_BASES = {b"indices-start-at-zero": 0, b"indices-start-at-one": 1}
# Expected content of the next line.
_FIRST, _NONZERO = "first line", "nonzero"
_ORDER, _LENGTHS, _COUNT = "order", "mode lengths", "number of nonzeros"


class Head:
    """The format of a text file, from its comments, header and first nonzero.

    Two kinds of headers are supported. The Tensor Toolbox and GenTen write a line ``sptensor`` (GenTen may add
    ``indices-start-at-zero`` or ``-one``), the order, the mode lengths and the number of nonzeros. ParTI and others
    write one line with the order and one with the mode lengths.
    """

    def __init__(self, no_values: bool = False, base: int | None = None) -> None:
        self.no_values = no_values  # lines contain only indices
        self.order = 0
        self.base, self._requested = 1 if base is None else base, base  # the lowest index; as requested by the caller
        self.lengths: tuple[int, ...] | None = None  # declared
        self.declared: tuple[int, int] | None = None  # number of nonzeros, and the line that declares it
        self.lines = self.size = 0  # lines and bytes before the first nonzero
        self._base_known = base is not None  # whether the header or the caller declares the lowest index
        self.first: FirstLine | None = None  # the first line if it may be a header
        self._reason = ""  # explains the expected number of columns
        self._numbers: tuple[int, ...] = ()  # of the first line
        self._after_lengths = _NONZERO
        self._next = _FIRST

    @property
    def bare(self) -> bool:
        """Whether no header declares the order, so that the last column is only assumed to hold values."""
        return self._next == _FIRST and not self.no_values

    @property
    def limits(self) -> NDArray[np.uint64]:
        """The declared mode lengths, or the longest allowed."""
        return np.array(self.lengths or (MAX_MODE_LENGTH,) * self.order, np.uint64)

    def read(self, cutter: Cutter, slot: BlockSlot) -> None:
        """Read up to the first nonzero; leave the block that starts with it in the slot."""
        while cutter.cut(slot):
            raw, at = slot.raw, PAD
            if not self.lines and raw.startswith(codecs.BOM_UTF8, PAD):
                at += len(codecs.BOM_UTF8)
                self.size = len(codecs.BOM_UTF8)
            while at < slot.stop:
                if (end := self._skip(slot, at)) > at:
                    at = end
                    continue
                end = raw.index(b"\n", at)
                try:
                    more = self._parse_line(bytes(raw[at:end]))
                except InputError as error:
                    raise InputError(error.cause, line=self.lines + 1) from None
                if not more:
                    slot.start = at
                    return
                self.lines += 1
                self.size += end + 1 - at
                at = end + 1
        if self._next in (_ORDER, _LENGTHS, _COUNT):
            raise InputError(f"the file ends before the {self._next} of its header", line=self.lines)
        raise InputError("no nonzeros" if self.lines else "the file is empty: no nonzeros")

    def _skip(self, slot: BlockSlot, at: int) -> int:
        """Count the empty lines and comments from `at` on, possibly millions; return their end."""
        if slot.raw[at] not in SKIPPED:
            return at
        end, lines = skip_lines(slot.text, at, slot.stop)
        market = at if slot.raw.startswith(_MARKET, at) else slot.raw.find(b"\n" + _MARKET, at, end) + 1
        if market:  # never 0, as blocks begin after padding
            line = self.lines + slot.raw.count(b"\n", at, market) + 1
            raise InputError("a Matrix Market file, whose name must end in .mtx", line=line)
        self.lines, self.size = self.lines + lines, self.size + end - at
        return int(end)

    def explain(self, line: bytes) -> str:
        """Return the error in a line that the parser rejected."""
        try:
            _refuse_binary(line)
            tokens = line.split()
            expected = self.order + (not self.no_values)
            if len(tokens) != expected:
                columns = f"{len(tokens)} column{'s' * (len(tokens) > 1)}"
                advice = COMMENT if b"#" in line else self._advice(len(tokens))
                raise InputError(f"{columns}, expected {expected} {self._reason}{advice}")
            self._check_indices(tokens)
        except InputError as error:
            return error.cause
        value = tokens[-1]
        if NUMBER.fullmatch(value):
            return f"value {_show(value)} is too large for a double"
        what = "finite" if _NOT_FINITE.fullmatch(value) else "a number"
        return f"value {_show(value)} is not {what}{COMMENT if b'#' in line else ''}"

    def _advice(self, columns: int) -> str:
        """Return a remedy for lines whose number of columns does not match the order."""
        if self._next == _FIRST:
            return self._advice_of_header(columns)
        if columns == self.order and not self.no_values:
            return f"; if lines contain no values, use {setting('no_values')}"
        return ", without values" if self.no_values else ""

    def _advice_of_header(self, columns: int) -> str:
        """Return a remedy if the first line, which differs from others, may be a header."""
        order, first = columns - (not self.no_values), self._numbers
        lengths = len(first) == order
        if not lengths and (len(first) != order + 2 or first[0] != order):
            return ""
        what = "mode lengths" if lengths else "order, mode lengths, number of nonzeros"
        return f"; if that is a header ({what}), put # before it"

    def _check_indices(self, tokens: list[bytes]) -> None:
        for mode, token in enumerate(tokens[: self.order]):
            what = f"index {_show(token)} of mode {mode}"
            index = _integer(token)
            if index is None:
                raise InputError(f"{what} is not an integer")
            if index < self.base or token.startswith(b"-"):  # the parser rejects -0, too
                known = bool(index) or self._base_known
                advice = "" if known else f"; if they count from 0, use {setting('index_base', 0)}"
                raise InputError(f"{what}: indices count from {self.base}{advice}")
            if index - self.base >= MAX_MODE_LENGTH:
                raise InputError(f"{what} is above the highest, {MAX_MODE_LENGTH - 1 + self.base}")
            if self.lengths and index - self.base >= self.lengths[mode]:
                raise InputError(f"{what} is beyond the declared length {self.lengths[mode]}")

    def _parse_line(self, line: bytes) -> bool:
        """Parse the next line; return False if it is the first nonzero."""
        tokens = line.split()
        _refuse_binary(line)
        if self._next == _FIRST:
            if b"#" in line:
                raise InputError(f"'#' after a number{COMMENT}")
            return self._parse_first(tokens)
        if self._next == _ORDER:
            self._set_order(tokens)
        elif self._next == _LENGTHS:
            self._set_lengths(tokens)
        elif self._next == _COUNT:
            self._set_count(tokens)
        else:
            return False
        return True

    def _parse_first(self, tokens: list[bytes]) -> bool:
        if (mark := _separator(tokens)) is not None:
            what = "comma-separated" if mark == "," else f"separated by '{mark}'"
            raise InputError(
                f"looks {what}: to read a table, use {parameter('key COLUMN for each mode', 'keys=[...]')}"
            )
        keyword = tokens[0].lower()
        if keyword in _OTHER_KINDS:
            raise InputError(f"a {keyword.decode()} of the Tensor Toolbox: export it as sptensor")
        if keyword == b"sptensor":
            self._set_base(tokens)
            self._after_lengths, self._next = _COUNT, _ORDER
            return True
        if len(tokens) > 1:
            self.order = len(tokens) - (not self.no_values)
            self._check_indices(tokens)
            check_order(self.order)
            self._reason = f"as in line {self.lines + 1}"
            numbers = [_integer(token) for token in tokens]
            self._numbers = tuple(number for number in numbers if number is not None)
            if len(self._numbers) == len(tokens):
                first = FirstLine(self._numbers, self.lines + 1, self.no_values)
                self.first = first if first.kinds else None
            return False
        if _integer(tokens[0]) is None:
            raise InputError(f"one column, {_show(tokens[0])}: expected indices and a value, separated by blanks")
        self._set_order(tokens)
        return True

    def _set_base(self, tokens: list[bytes]) -> None:
        declared = next((base for word, base in _BASES.items() if word in tokens), None)
        if declared is None:
            return
        if self._requested not in (None, declared):
            advice = f"remove {setting('index_base', self._requested)}"
            raise InputError(f"the header declares that indices count from {declared}: {advice}")
        self.base, self._base_known = declared, True

    def _set_order(self, tokens: list[bytes]) -> None:
        order = _integer(tokens[0])
        if order is None or len(tokens) > 1:
            raise InputError(f"{_show(b' '.join(tokens))} where the header's {_ORDER} should be")
        check_order(order)
        self.order, self._next = order, _LENGTHS
        self._reason = f"for the order {order} of the header"

    def _set_lengths(self, tokens: list[bytes]) -> None:
        if len(tokens) != self.order:
            raise InputError(f"{len(tokens)} {_LENGTHS}, expected {self.order} {self._reason}")
        lengths = [_integer(token) for token in tokens]
        for mode, length in enumerate(lengths):
            if length is None or not 1 <= length <= MAX_MODE_LENGTH:
                what = f"length {_show(tokens[mode])} of mode {mode}"
                raise InputError(f"{what} is not an integer in 1..{MAX_MODE_LENGTH}")
        self.lengths = tuple(length for length in lengths if length is not None)
        self._next = self._after_lengths

    def _set_count(self, tokens: list[bytes]) -> None:
        count = _integer(tokens[0])
        if count is None or count < 0 or len(tokens) > 1:
            raise InputError(f"{_show(b' '.join(tokens))} where the header's {_COUNT} should be")
        self.declared, self._next = (count, self.lines + 1), _NONZERO


def _integer(token: bytes) -> int | None:
    if not _INTEGER.fullmatch(token):
        return None
    if len(token) > 1000:  # too long for `int`; out of range unless it has leading zeros
        token = token[:1] + (token[1:].lstrip(b"0") or b"0")[:1000]
    return int(token)


def _show(token: bytes) -> str:
    text = token.decode("ascii", "backslashreplace")
    return f"'{text}'" if len(text) <= 32 else f"'{text[:29]}...'"


def _separator(tokens: list[bytes]) -> str | None:
    """Return the separator of columns other than blanks, or None; a comma in the last column may be a decimal comma."""
    text = b" ".join(tokens[: max(1, len(tokens) - 1)])
    return next((mark.decode() for mark in (b",", b";", b"|") if mark in text), None)


def _refuse_binary(line: bytes) -> None:
    match = _NOT_TEXT.search(line)
    if match:
        raise InputError(f"not text: byte 0x{match[0][0]:02x} at column {match.start() + 1}")
