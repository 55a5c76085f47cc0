"""The text reader agrees with a plain one that reads line by line: whole, in pieces, compressed and in parts."""

from __future__ import annotations

import gzip
import math
import re
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import NamedTuple

import numpy as np
import pytest
from hypothesis import assume, example, given
from hypothesis import strategies as st

from partitioner.errors import InputError
from partitioner.host.worth import SETTING
from partitioner.readers import chunks, settle
from partitioner.readers.text.tns import TextPart

SMALL = 512  # bytes per block: several blocks and threads for a few lines
HIGHEST = 2**31 - 1
PATHS = pytest.mark.parametrize("compiled", ["always", "never"])
INTEGER = re.compile(rb"[+-]?[0-9]+")
NUMBER = re.compile(rb"[+-]?([0-9]+\.?[0-9]*|\.[0-9]+)([eE][+-]?[0-9]+)?")


class Contents(NamedTuple):
    """What a file holds."""

    shape: tuple[int, ...] | None
    rows: list[tuple[int, ...]]
    values: list[float]


class Plainly:
    """Reads line by line, with `int` and `float`; lines may be without values."""

    def __init__(self, data: bytes, no_values: bool = False) -> None:
        self.bare, self.valued = no_values, not no_values
        self.lines = data.removesuffix(b"\n").split(b"\n") if data else []
        self.number, self.said = 0, False  # lines read; whether a header says what indices count from

    def read(self) -> Contents:
        """Return what the file holds; raise `InputError` for its first wrong line."""
        try:
            return self.contents()
        except InputError as error:
            line = None if error.cause.endswith("no nonzeros") else error.line or self.number
            raise InputError(error.cause, line=line) from None

    def next_line(self) -> list[bytes] | None:
        """Return the words of the next line that is no comment; None at the end."""
        for line in self.lines[self.number :]:
            self.number += 1
            if len(line) >= 2 * SMALL:
                raise InputError(f"a line of more than {SMALL} bytes: this may not be a text file")
            words = line.split() if self.number > 1 else line.removeprefix(b"\xef\xbb\xbf").split()
            if words and words[0][:1] not in b"#%":
                strange = re.search(
                    rb"[^\t\n\v\f\r -~]", line if self.number > 1 else line.removeprefix(b"\xef\xbb\xbf")
                )
                if strange:
                    raise InputError(f"not text: byte 0x{strange[0][0]:02x} at column {strange.start() + 1}")
                return words
        return None

    def contents(self) -> Contents:
        words, shape, count, base = self.next_line(), None, None, 1
        text = b" ".join(words[: max(1, len(words) - 1)]) if words else b""
        for mark in (b",", b";", b"|"):
            if mark in text:
                kind = "comma-separated" if mark == b"," else f"separated by '{mark.decode()}'"
                raise InputError(f"looks {kind}: to read a table, use keys=[...]")
        if words and (len(words) == 1 or words[0].lower() == b"sptensor"):
            toolbox = words[0].lower() == b"sptensor"
            if not toolbox and not INTEGER.fullmatch(words[0]):
                raise InputError(f"one column, {shown(words[0])}: expected indices and a value, separated by blanks")
            base = 0 if b"indices-start-at-zero" in words else 1
            self.said = b"indices-start-at-zero" in words or b"indices-start-at-one" in words
            order = self.header_number(self.next_line() if toolbox else words, "order")
            if not 2 <= order <= 8:
                raise InputError(f"order {order} tensor: amped decomposes orders 2 to 8")
            reason = f"for the order {order} of the header"
            shape = self.lengths(self.next_line(), order, reason)
            count = (self.header_number(self.next_line(), "number of nonzeros"), self.number) if toolbox else None
            words = self.next_line()
        elif words:
            order, reason = len(words) - self.valued, f"as in line {self.number}"
            first = [int(word) for word in words if INTEGER.fullmatch(word)]
            self.indices(words, 1, (HIGHEST,) * order, False)
            if not 2 <= order <= 8:
                raise InputError(f"order {order} tensor: amped decomposes orders 2 to 8")
        if words is None:
            raise InputError("no nonzeros" if self.lines else "the file is empty: no nonzeros")
        rows, values = [], []
        while words is not None:
            if len(words) != order + self.valued:
                found = f"{len(words)} column{'s' * (len(words) > 1)}, expected {order + self.valued} {reason}"
                advice = "; if lines contain no values, use no_values=True" * (len(words) == order)
                advice = ", without values" if self.bare else advice
                raise InputError(found + (advice if shape else header_advice(first, len(words) - self.valued)))
            rows.append(self.indices(words, base, shape or (HIGHEST,) * order, shape is not None))
            values.append(self.value(words[-1]) if self.valued else 1.0)
            words = self.next_line()
        if count and count[0] != len(rows):
            raise InputError(f"the header declares {count[0]} nonzeros, the file holds {len(rows)}", line=count[1])
        return Contents(shape, rows, values)

    def header_number(self, words: list[bytes] | None, what: str) -> int:
        if words is None:
            raise InputError(f"the file ends before the {what} of its header")
        if len(words) > 1 or not INTEGER.fullmatch(words[0]) or (what != "order" and int(words[0]) < 0):
            raise InputError(f"{shown(b' '.join(words))} where the header's {what} should be")
        return int(words[0])

    def lengths(self, words: list[bytes] | None, order: int, reason: str) -> tuple[int, ...]:
        if words is None:
            raise InputError("the file ends before the mode lengths of its header")
        if len(words) != order:
            raise InputError(f"{len(words)} mode lengths, expected {order} {reason}")
        for mode, word in enumerate(words):
            if not INTEGER.fullmatch(word) or not 1 <= int(word) <= HIGHEST:
                raise InputError(f"length {shown(word)} of mode {mode} is not an integer in 1..{HIGHEST}")
        return tuple(map(int, words))

    def indices(self, words: list[bytes], base: int, lengths: tuple[int, ...], declared: bool) -> tuple[int, ...]:
        for mode, (word, length) in enumerate(zip(words[: len(lengths)], lengths, strict=True)):
            what = f"index {shown(word)} of mode {mode}"
            if not INTEGER.fullmatch(word):
                raise InputError(f"{what} is not an integer")
            if int(word) < base or word.startswith(b"-"):
                advice = "; if they count from 0, use index_base=0" * (not int(word) and not self.said)
                raise InputError(f"{what}: indices count from {base}{advice}")
            if int(word) - base >= HIGHEST:
                raise InputError(f"{what} is above the highest, {HIGHEST - 1 + base}")
            if declared and int(word) - base >= length:
                raise InputError(f"{what} is beyond the declared length {length}")
        return tuple(int(word) - base for word in words[: len(lengths)])

    def value(self, word: bytes) -> float:
        if not NUMBER.fullmatch(word):
            infinite = word.lstrip(b"+-").lower() in (b"nan", b"inf", b"infinity") and not re.match(rb"[+-]{2}", word)
            raise InputError(f"value {shown(word)} is not {'finite' if infinite else 'a number'}")
        if math.isinf(float(word)):
            raise InputError(f"value {shown(word)} is too large for a double")
        return float(word)


def header_advice(first: list[int], order: int) -> str:
    """Say what to do where the integers of the first line may be a header of the lines after it."""
    whole = len(first) == order + 2 and first[0] == order
    what = "order, mode lengths, number of nonzeros" if whole else "mode lengths"
    return f"; if that is a header ({what}), put # before it" if whole or len(first) == order else ""


def shown(word: bytes) -> str:
    text = word.decode("ascii", "backslashreplace")
    return f"'{text}'" if len(text) <= 32 else f"'{text[:29]}...'"


def said(read: Callable[[], Contents]) -> Contents | tuple[int | None, str]:
    """What is read, or else the line and the cause."""
    try:
        return read()
    except InputError as error:
        return error.line, error.cause


def in_parts(path: Path, of: int, threads: int, limit: int, no_values: bool = False) -> Contents:
    """Read the file in parts, as `of` ranks would, each in chunks."""
    parts = [TextPart(path, part, of, threads=threads, no_values=no_values, block=SMALL) for part in range(of)]
    pieces = [chunk[:2] for part in parts for chunk in chunks(part, limit)]
    whole = settle(path, [part.outcome for part in parts])
    assert all(part.order == whole.order for part in parts)
    assert whole.nonzeros == sum(values.size for _, values in pieces)
    assert all(columns.dtype == np.int32 and columns.shape == (whole.order, values.size) for columns, values in pieces)
    rows = [tuple(row) for columns, _ in pieces for row in columns.T.tolist()]
    return Contents(whole.lengths, rows, [value for _, values in pieces for value in values.tolist()])


# ---- text of all kinds

BLANKS = st.sampled_from([" "] * 12 + ["\t", "  ", " \t ", "\v", "\f", "\r"])
ENDS = st.sampled_from(["\n"] * 12 + ["\r\n", " \n", "\t \r\n"])
SMALL_INDEX = st.integers(1, 99).map(str)
INDEX = st.one_of(
    SMALL_INDEX,
    st.integers(1, 2**31 - 1).map(str),
    st.sampled_from(["007", "+3", "2147483647", "00000000000000000012", "99999999", "100000000"]),
)
VALUE = st.one_of(
    st.integers(-999, 10**9).map(str),
    st.floats(allow_nan=False, allow_infinity=False).map(repr),
    st.decimals(allow_nan=False, allow_infinity=False, min_value=-(10**12), max_value=10**12).map(str),
    st.from_regex(r"[+-]?([0-9]{1,25}\.?[0-9]{0,25}|\.[0-9]{1,25})([eE][+-]?[0-9]{1,3})?", fullmatch=True),
)
WRONG = st.one_of(
    st.sampled_from(["0", "-0", "-1", "1.5", "1e3", "2147483648", "9" * 30, "1_0", "+", "-", "1 1", "x", "1x", "\x01"]),
    st.sampled_from(["nan", "inf", "1e400", "1e", "1e+", ".", "-.", "1.2.3", "--1", "0x1", "1,5", "1-", "é", "\x7f"]),
    st.sampled_from(["BZh91", "\x1f\x8b", "1" * (2 * SMALL), "#", "3", "sptensor"]),
    st.text(st.characters(max_codepoint=127, exclude_characters="\n"), max_size=12),
)
COMMENT = st.sampled_from(["", "#", "# 1 2 3", "%", "#x", "# " + "-" * 300, "#é\x00"])


@st.composite
def heads(draw: st.DrawFn, order: int, nonzeros: int) -> list[str]:
    """The lines before the first nonzero: right as a rule."""
    kind = draw(st.sampled_from(["none", "none", "parti", "toolbox"]))
    lengths = draw(st.sampled_from(["99", "2147483647"]))
    if kind == "none":
        lines = []
    else:
        lines = [str(order), " ".join([lengths] * order)]
    if kind == "toolbox":
        start = draw(st.sampled_from(["", " indices-start-at-one", " indices-start-at-zero"]))
        lines = ["sptensor" + start, *lines, str(nonzeros + draw(st.sampled_from([0, 0, 0, 1, -1])))]
    if lines and not draw(st.integers(0, 9)):
        lines[draw(st.integers(0, len(lines) - 1))] = draw(st.one_of(WRONG, SMALL_INDEX, st.just("1 1")))
    for _ in range(draw(st.sampled_from([0, 0, 1, 3]))):
        lines.insert(draw(st.integers(0, len(lines))), draw(COMMENT))
    return lines


@st.composite
def documents(draw: st.DrawFn, valued: bool = True) -> bytes:
    order, count = draw(st.integers(2, 5)), draw(st.integers(1, 60))
    index = draw(st.sampled_from([SMALL_INDEX, INDEX]))
    lines, nonzeros, wrongs = [], 0, draw(st.sampled_from([0, 0, 3]))
    for _ in range(count):
        kind = draw(st.integers(0, 40))
        tokens = [draw(index) for _ in range(order)] + [draw(VALUE) for _ in range(valued)]
        if kind < wrongs:
            tokens[draw(st.integers(0, order - (not valued)))] = draw(WRONG)
        elif kind == wrongs > 0:
            tokens = tokens[draw(st.integers(0, order)) :]
        elif kind > 38:
            tokens = [draw(COMMENT)]
        nonzeros += kind <= 38
        blank = draw(BLANKS)
        lines.append(draw(st.sampled_from(["", "", "", blank])) + blank.join(tokens) + draw(ENDS))
    head = [line + draw(ENDS) for line in draw(heads(order, nonzeros))]
    text = draw(st.sampled_from(["", "", "", "\ufeff"])) + "".join(head + lines)
    data = (text if draw(st.booleans()) else text.rstrip("\n")).encode()
    assume(not data.startswith(b"BZh"))  # refused as compressed by bzip2
    return data


@given(
    data=documents(), threads=st.integers(1, 3), repeat=st.sampled_from([1, 1, 5]), limit=st.sampled_from([7, 90, 9999])
)
@example(data=b"1 1 1\n" * 400 + b"1 " + b"1" * 3000 + b" 1\n" + b"1 1\n" * 400, threads=2, repeat=1, limit=999)
@example(data=b"1 1 1\n" * 300 + b"1 0 1\n" + b"1 1 1\n" * 300 + b"1 x 1\n", threads=2, repeat=1, limit=999)
@example(data=b"sptensor\n2\n9 9\n601\n" + b"1 1 1\n" * 600, threads=2, repeat=1, limit=999)
@example(data=b"3 1 1 1 0\n 1 1 1 0", threads=1, repeat=1, limit=7)
@example(data=b"sptensor indices-start-at-zero\n2\n9 9\n2\n0 8 1\n-0 8 1\n", threads=1, repeat=1, limit=999)
@PATHS
def test_the_same_as_a_plain_reader(
    tmp_path_factory: pytest.TempPathFactory, compiled: str, data: bytes, threads: int, repeat: int, limit: int
) -> None:
    data = b"\n".join([data] * repeat)
    folder = tmp_path_factory.getbasetemp()
    plain, compressed = folder / "property.tns", folder / "property.tns.gz"
    plain.write_bytes(data)
    compressed.write_bytes(gzip.compress(data))
    expected = said(Plainly(data).read)
    for path, of in [(plain, 1), (plain, 2), (plain, 3), (plain, 4), (compressed, 1), (compressed, 2)]:
        with pytest.MonkeyPatch.context() as patch:
            patch.setenv(SETTING, compiled)
            found = said(partial(in_parts, path, of, threads, limit))
        assert found == expected, f"{path.name} in {of} parts"
        if isinstance(found, Contents):  # the sign of zero too
            assert list(map(repr, found.values)) == list(map(repr, expected.values))


@given(data=documents(valued=False), threads=st.integers(1, 3), limit=st.sampled_from([7, 9999]))
@example(data=b"1 1\n" * 400 + b"1 7.0\n" + b"1 x\n" * 400, threads=2, limit=999)
@example(data=b"# 1.5\n\n1 1\n" + b"2 3\n# e\n" * 300 + b"1 -0\n", threads=1, limit=999)
@example(data=b"1 1e3\n2 4\n", threads=1, limit=999)
@example(data=b"1 1e300\n1 4.5\n", threads=1, limit=999)
@example(data=b"2\n9 9\n1 1\n1 10\n", threads=1, limit=999)
@example(data=b"2\n9 9\n1 1 1\n", threads=1, limit=999)
@PATHS
def test_lines_without_values(
    tmp_path_factory: pytest.TempPathFactory, compiled: str, data: bytes, threads: int, limit: int
) -> None:
    path = tmp_path_factory.getbasetemp() / "no-values.tns"
    path.write_bytes(data)
    expected = said(Plainly(data, no_values=True).read)
    for of in (1, 3):
        with pytest.MonkeyPatch.context() as patch:
            patch.setenv(SETTING, compiled)
            assert said(partial(in_parts, path, of, threads, limit, no_values=True)) == expected, f"in {of} parts"
