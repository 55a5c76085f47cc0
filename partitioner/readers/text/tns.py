"""Tensors in text: FROSTT's ``.tns``, plain or compressed by gzip, with or without headers of other tools.

Each thread takes the next block of whole lines from the file, parses it within its core's cache, and reserves memory
for its nonzeros in block order. The result and the first error do not depend on the number of threads.
"""

from __future__ import annotations

import gzip
import io
import os
import re
import stat
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack, suppress
from dataclasses import dataclass
from math import isinf
from os import PathLike
from threading import Lock
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from ...array_types import FloatDType, Floats
from ...errors import InputError
from ...host.jit import load_compiler
from ...host.threads import Turns
from ...sorting.tables import Nonzeros, Pile, copy_to
from ..first_line import FirstLine
from ..pieces import BrokenError, Outcome, Progress, naming, usable_threads
from .blocks import GZIP, BlockSlot, Cutter, PlainSource, line_start, text_source
from .head import SKIPPED, Head
from .plain import PARSED, PARSED_BY_LINE, PARSER, parse, parse_lines, skip_lines

BLOCK = 1 << 19  # bytes; small enough for text, marks and nonzeros to stay in the cache
SAMPLES, SAMPLE = 16, 4096  # number and size of the samples that estimate the number of lines
KEY, UNLIKE_KEYS = re.compile(rb"\+?[0-9]+"), (b".", b"e", b"E", b"-")
CHECKED = 1024  # values per block that are checked for being possible indices
SLACK = 0.02  # relative margin of the estimate


class TextPart:
    """The nonzeros of lines ``i j ... value``, or ``i j ...``, that begin in one of `of` byte ranges of a text file.

    See `FilePart` and `open_part`. Indices count from 1 unless a header or the caller declares otherwise; gzip is
    detected by the first bytes. The ranges divide the text after the header, which every part reads. A pipe or gzip
    file cannot be divided: part 0 reads all of it.
    """

    dtype: FloatDType = np.dtype(np.float64)

    def __init__(
        self,
        path: str | PathLike[str],
        part: int = 0,
        of: int = 1,
        *,
        threads: int | None = None,
        progress: Progress | None = None,
        no_values: bool = False,
        base: int | None = None,
        block: int = BLOCK,
    ) -> None:
        self._threads, self._progress, self._block = threads or usable_threads(), progress, block
        self._head = Head(no_values, base)
        self._files = ExitStack()
        self._cutter: Cutter | None = None
        self._first: BlockSlot | None = None  # the block after the header, already read
        self._drawing, self._turns, self._full = Lock(), Turns(), False
        self._overflow: list[Nonzeros] = []  # nonzeros that did not fit the last pile
        self._nonzeros = self.expected = 0
        self._all_whole = True  # whether all checked values are whole numbers from 1 up
        self._fault: InputError | None = None
        self._broken: BrokenError | None = None
        self._total: int | None = None
        with naming(path):
            if part == 0 or stat.S_ISREG(os.stat(path).st_mode):  # only part 0 reads a pipe
                self._open(path, part, of)
        self._lines = 0 if part else self._head.lines
        self.order, self.lengths = self._head.order, self._head.lengths
        self._starts, self._first_line = part == 0, self._head.first

    def _open(self, path: str | PathLike[str], part: int, of: int) -> None:
        with ExitStack() as files:
            file = files.enter_context(open(path, "rb"))
            status = os.fstat(file.fileno())
            size = status.st_size if stat.S_ISREG(status.st_mode) else None
            source, first = text_source(file), BlockSlot(self._block)
            cutter = Cutter(source, self._block)
            try:
                self._head.read(cutter, first)
            except BrokenError as error:
                raise InputError(str(error), line=self._head.lines + 1) from None
            if size is not None and isinstance(source, PlainSource):
                start, stop = (self._bound(file, size, k, of) for k in (part, part + 1))
                self._total = max(0, stop - start)  # negative after a line without a newline
                self.expected = _count_lines(file, start, self._total)
                file.seek(start)
                self._cutter = Cutter(PlainSource(file, self._total), self._block)
            elif part == 0:
                self._cutter, self._first, self._total = cutter, first, size
            self._files = files.pop_all()

    def _bound(self, file: io.BufferedReader, size: int, part: int, of: int) -> int:
        """Return the start of a part of a plain-text file."""
        first = self._head.size
        cut = first + (size - first) * part // of
        return cut if cut in (first, size) else line_start(file, cut, self._block)

    @property
    def outcome(self) -> Outcome:
        """See `FilePart`."""
        head = self._head
        read = self._nonzeros, self._lines, self._fault
        doubtful = head.bare and self._all_whole
        return Outcome(self.order, self.lengths, *read, head.declared, head.base, doubtful, first=self._first_line)

    def close(self) -> None:
        """See `FilePart`."""
        self._files.close()

    def fill(self, pile: Pile) -> bool:
        """See `FilePart`."""
        left, self._overflow, self._full = self._overflow, [], False
        for columns, values in left:
            copy_to(self._places(pile, columns, values), columns, values)
        with ThreadPoolExecutor(max(1, self._threads - 1)) as pool:  # this thread works too
            others = [pool.submit(self._work, pile) for _ in range(self._threads - 1)]
            self._work(pile)
        for other in others:
            other.result()
        if self._overflow:
            return True
        self._files.close()
        if self._broken is not None and self._fault is None:
            self._fault = InputError(str(self._broken), line=self._lines + 1)
        return False

    def _work(self, pile: Pile) -> None:
        """Parse blocks and add their nonzeros to the pile, until the file ends or the pile is full."""
        slot: BlockSlot | None = None
        with self._turns.shared():
            while (drawn := self._draw(slot)) is not None:
                number, slot = drawn
                lines = _parse(self._head, slot)
                others = lines.columns[:, int(self._starts and number == 0) :]
                first = self._head.first and self._first_line and self._head.first.beside(others)
                with self._turns.turn(number):
                    self._judge(first)
                    places = self._take(pile, slot, lines)
                copy_to(places, lines.columns, lines.values)

    def _judge(self, first: FirstLine | None) -> None:
        """Update the first line with a block's indices: it may turn out not to be a header."""
        line = self._first_line
        if line is not None and first is not None and first.highest:
            line = line.joined(first.highest)
            self._first_line = line if line.kinds else None

    def _draw(self, slot: BlockSlot | None) -> tuple[int, BlockSlot] | None:
        """Read the next block into a slot; return its number and the slot, or None at the end."""
        with self._drawing:
            if self._full or self._cutter is None or self._fault is not None:
                return None
            if self._first is not None:
                slot, self._first = self._first, None
                return self._turns.draw(), slot
            slot = slot or BlockSlot(self._block)
            try:
                return (self._turns.draw(), slot) if self._cutter.cut(slot) else None
            except BrokenError as error:
                self._broken = error
                return None

    def _take(self, pile: Pile, slot: BlockSlot, lines: _Lines) -> list[Nonzeros]:
        """Count a block's lines and nonzeros, in block order; return the memory reserved for its nonzeros."""
        if self._fault is not None:
            return []
        self._lines += lines.lines
        if lines.wrong is not None:
            self._fault = InputError(self._head.explain(lines.wrong), line=self._lines + 1)
            return []
        self._nonzeros += lines.values.size
        self._all_whole = self._all_whole and lines.all_whole
        if self._progress:
            self._progress(slot.consumed, self._total)
        return self._places(pile, lines.columns, lines.values)

    def _places(self, pile: Pile, columns: NDArray[np.int32], values: Floats) -> list[Nonzeros]:
        """Reserve memory for nonzeros; keep those that do not fit for the next pile."""
        places = pile.reserve(values.size)
        fitting = sum(numbers.size for _, numbers in places)
        if fitting < values.size:
            self._full = True
            self._overflow.append((columns[:, fitting:].copy(), values[fitting:].copy()))
        return places


@dataclass
class _Lines:
    """The nonzeros and number of lines of a block, up to its first invalid line."""

    columns: NDArray[np.int32]
    values: NDArray[np.float64]
    lines: int
    wrong: bytes | None
    all_whole: bool = True  # whether the checked values are whole numbers from 1 up


class _Parsed(NamedTuple):
    """The nonzeros of a block, the number of lines before the first invalid one, and its position or -1."""

    columns: NDArray[np.int32]
    values: NDArray[np.float64]
    lines: int
    wrong: int


def _parse(head: Head, slot: BlockSlot) -> _Lines:
    begin, skipped = slot.start, 0
    if slot.raw[begin] in SKIPPED:  # possibly the whole block, as a compressed file may have millions of them
        begin, skipped = skip_lines(slot.text, begin, slot.stop)
    limits = head.limits[: head.order - head.no_values]  # without values, the last index is parsed as one
    columns, values, line, wrong = _parsed(head, slot, begin, limits)
    if head.no_values:
        place = _wrong_key(head, slot, begin, values)
        if place >= 0:
            wrong, line = place, slot.raw.count(b"\n", begin, place)
        else:
            columns[-1], values[:] = values - head.base, 1
    cause = None if wrong < 0 else bytes(slot.raw[wrong : slot.raw.index(b"\n", wrong)])
    some = values[:: max(1, values.size // CHECKED)]
    whole = not head.bare or bool(np.all((some >= 1) & (some == np.rint(some))))
    return _Lines(columns, values, skipped + line, cause, whole)


def _parsed(head: Head, slot: BlockSlot, begin: int, limits: NDArray[np.uint64]) -> _Parsed:
    """Parse a block, with compiled code if that is worth its compilation."""
    size = slot.stop - begin
    if not PARSER.compiles(PARSED * size):
        found = _plain(head, slot, begin, limits)
        if found is not None:
            return found
        if not PARSER.compiles(PARSED_BY_LINE * size):
            return _by_line(head, slot, begin, limits)
    return _compiled(head, slot, begin, limits)


def _by_line(head: Head, slot: BlockSlot, begin: int, limits: NDArray[np.uint64]) -> _Parsed:
    """Parse a block line by line; see `parse_lines`."""
    found, lines, wrong = parse_lines(bytes(slot.raw[begin : slot.stop]), head.base, limits.tolist())
    columns, values, _ = slot.table(head.order, found.values.size)
    columns[: limits.size], values[:] = found.columns, found.values
    return _Parsed(columns, values, lines, wrong if wrong < 0 else begin + wrong)


def _plain(head: Head, slot: BlockSlot, begin: int, limits: NDArray[np.uint64]) -> _Parsed | None:
    """Parse a block with NumPy if it has the usual form; see `parse`."""
    found = parse(slot.text[begin : slot.stop], head.base, limits)
    if found is None:
        return None
    columns, values, _ = slot.table(head.order, found.values.size)
    columns[: limits.size], values[:] = found.columns, found.values
    return _Parsed(columns, values, slot.raw.count(b"\n", begin, slot.stop), -1)


def _compiled(head: Head, slot: BlockSlot, begin: int, limits: NDArray[np.uint64]) -> _Parsed:
    """Parse a block with compiled code."""
    load_compiler()  # the next line imports Numba: measure its memory first
    from .parse import mark_blanks, parse_aside, parse_block

    text = slot.text
    count, lines = mark_blanks(text, begin, slot.stop, slot.marks)
    columns, values, aside = slot.table(head.order, lines)
    rows, line, asides, wrong = parse_block(
        text, slot.marks, count, head.base, limits, slot.scratch, columns, values, aside
    )
    remaining, bad = parse_aside(text, aside[:asides], slot.scratch, slot.decimals, values) if asides else (0, -1)
    for_float = aside[:remaining].tolist()
    for row, start, stop, _ in for_float:
        values[row] = float(slot.raw[start:stop])
    invalid = [each for each in for_float if isinf(values[each[0]])] + aside[bad : bad + 1].tolist()
    if invalid:
        rows, start, _, line = invalid[0]
        wrong = max(begin, slot.raw.rfind(b"\n", 0, start) + 1)
    return _Parsed(columns[:, :rows], values[:rows], line, wrong)


def _wrong_key(head: Head, slot: BlockSlot, begin: int, keys: NDArray[np.float64]) -> int:
    """Return the start of the first line whose last index, parsed as a value, is invalid, or -1."""
    numbers = keys - head.base
    wrong = np.flatnonzero(~((numbers >= 0) & (numbers < head.limits[-1]) & (keys == np.rint(keys))))
    dubious = any(slot.raw.find(mark, begin, slot.stop) >= 0 for mark in UNLIKE_KEYS)  # or a comment contains one
    if not (wrong.size or dubious):
        return -1
    row, place = 0, begin
    for line in bytes(memoryview(slot.raw)[begin : slot.stop]).split(b"\n"):
        tokens = line.split()
        if row == keys.size:
            break
        if tokens and tokens[0][0] not in b"#%":
            if (wrong.size and row == wrong[0]) or not KEY.fullmatch(tokens[-1]):
                return place
            row += 1
        place += len(line) + 1
    return -1


def _count_lines(file: io.BufferedReader, start: int, size: int) -> int:
    """Estimate the number of lines in a byte range from samples, with the margin `SLACK`."""
    places = (size * (2 * k + 1) // (2 * SAMPLES) for k in range(SAMPLES))
    texts = [os.pread(file.fileno(), min(SAMPLE, size - place), start + place) for place in places]
    density = sum(text.count(b"\n") for text in texts) / max(1, sum(map(len, texts)))
    return int(size * density * (1 + SLACK))


def line_where(path: str | PathLike[str], wrong: Callable[[float], bool]) -> int | None:
    """Return the number, from 1, of the first line whose last number is `wrong`, or None."""
    with open(path, "rb") as file:
        packed = file.peek(2).startswith(GZIP)
    with suppress(OSError, EOFError), gzip.open(path) if packed else open(path, "rb") as lines:
        for number, line in enumerate(lines, 1):
            fields = line.split()
            if fields and fields[0][0] not in b"#%":
                with suppress(ValueError):
                    if wrong(float(fields[-1])):
                        return number
    return None
