"""Tensors in text: FROSTT's ``.tns``, plain or compressed by gzip, with or without other tools' headers.

Threads parse blocks of whole lines side by side. The blocks are looked at in their order in the file, so that
neither the result nor an error depends on the threads: the first wrong line is the one that is named.
"""

from __future__ import annotations

import io
import itertools
import mmap
import os
import stat
from collections.abc import Iterator
from contextlib import ExitStack, closing, suppress
from dataclasses import dataclass
from functools import partial
from math import isinf
from os import PathLike
from threading import Lock

import numpy as np
from numpy.typing import NDArray

from ..coo import SparseTensor
from ..errors import InputError
from .blocks import Block, Plain, cut_blocks, line_start, text_source
from .head import Head
from .parse import mark_blanks, parse_block
from .pieces import BrokenError, Outcome, Piece, Progress, collect, in_order, naming, usable_threads

BLOCK = 1 << 20  # bytes: small enough that text and marks stay in the cache
STRETCH = 1 << 23  # bytes: several huge pages


def read_tns(
    path: str | PathLike[str], *, progress: Progress | None = None, threads: int | None = None
) -> SparseTensor:
    """Read a tensor from text.

    Parameters
    ----------
    path : str or PathLike
        A file of lines ``i j ... value``, indices counted from 1; gzip is told by its first bytes.
    progress : callable, optional
        Called with the bytes read so far, and those of the whole file where that is known.
    threads : int, optional
        By default as many as this process may use cores.

    Raises
    ------
    InputError
        If the file cannot be read or a line is wrong: it names the first such line.
    """
    part = TextPart(path, progress=progress, threads=threads)
    return SparseTensor.from_columns(*collect(path, part), part.lengths, path=path)


class TextPart:
    """The nonzeros in the lines that begin in one of `of` byte ranges of a text. See `Part` and `open_part`.

    The ranges divide what comes after the head, which every reader reads. What cannot be divided, a pipe or gzip,
    is the first part.
    """

    dtype = np.dtype(np.float64)

    def __init__(
        self,
        path: str | PathLike[str],
        part: int = 0,
        of: int = 1,
        *,
        threads: int | None = None,
        progress: Progress | None = None,
        block: int = BLOCK,
    ) -> None:
        self._threads, self._progress, self._block = threads or usable_threads(), progress, block
        self._head = Head()
        self._files, self._blocks = ExitStack(), iter(list[Block]())
        self._nonzeros = 0
        self._fault: InputError | None = None
        self._total: int | None = None
        with naming(path):
            if part == 0 or stat.S_ISREG(os.stat(path).st_mode):  # a pipe has one reader
                self._open(path, part, of)
        self._lines = 0 if part else self._head.lines
        self.order, self.lengths = self._head.order, self._head.lengths

    def _open(self, path: str | PathLike[str], part: int, of: int) -> None:
        with ExitStack() as files:
            file = files.enter_context(open(path, "rb"))
            status = os.fstat(file.fileno())
            size = status.st_size if stat.S_ISREG(status.st_mode) else None
            source = text_source(file)
            blocks = cut_blocks(source, self._block, self._threads + 1)
            try:
                first = self._head.read(blocks)
            except BrokenError as error:
                raise InputError(str(error), line=self._head.lines + 1) from None
            if of > 1 and size is not None and isinstance(source, Plain):
                self._blocks, self._total = self._range(file, size, part, of)
            elif part == 0:
                self._blocks, self._total = itertools.chain([first], blocks), size
            self._files = files.pop_all()

    def _range(self, file: io.BufferedReader, size: int, part: int, of: int) -> tuple[Iterator[Block], int]:
        first = self._head.size
        cuts = (first + (size - first) * k // of for k in (part, part + 1))
        start, stop = (cut if cut in (first, size) else line_start(file, cut, self._block) for cut in cuts)
        file.seek(start)
        return cut_blocks(Plain(file, stop - start), self._block, self._threads + 1), stop - start

    @property
    def outcome(self) -> Outcome:
        """See `Part`."""
        return Outcome(self.order, self.lengths, self._nonzeros, self._lines, self._fault, self._head.declared)

    def __iter__(self) -> Iterator[Piece]:
        """See `Part`."""
        try:
            with (
                self._files,
                closing(in_order(partial(_parse, self._head, _Room()), self._blocks, self._threads)) as results,
            ):
                for result in results:
                    self._lines += result.lines
                    if result.wrong is not None:
                        self._fault = InputError(self._head.explain(result.wrong), line=self._lines + 1)
                        return
                    self._nonzeros += result.values.size
                    if self._progress:
                        self._progress(result.consumed, self._total)
                    if result.values.size:
                        yield result.columns, result.values
        except BrokenError as error:
            self._fault = InputError(str(error), line=self._lines + 1)


@dataclass
class _Lines:
    """What a block holds, up to its first wrong line."""

    columns: NDArray[np.int32]
    values: NDArray[np.float64]
    lines: int
    consumed: int
    wrong: bytes | None


def _parse(head: Head, room: _Room, block: Block) -> _Lines:
    slot = block.slot
    count, lines = mark_blanks(slot.text, block.start, block.stop, slot.marks)
    columns, values = room.arrays(head.order, lines)
    late = np.empty((lines, 4), np.int64)
    rows, line, lates, wrong = parse_block(
        slot.text, block.start, slot.marks, count, head.base, head.limits, columns, values, late
    )
    for row, start, stop, its_line in late[:lates].tolist():
        values[row] = float(slot.raw[start:stop])
        if isinf(values[row]):
            rows, line, wrong = row, its_line, max(block.start, slot.raw.rfind(b"\n", 0, start) + 1)
            break
    text = None if wrong < 0 else bytes(slot.raw[wrong : slot.raw.index(b"\n", wrong)])
    return _Lines(columns[:, :rows], values[:rows], line, block.consumed, text)


class _Room:
    """Memory for arrays, mapped in stretches of many: far fewer page faults, a fifth of the time.

    A stretch goes back to the system with the last of its arrays, whatever malloc would keep.
    """

    def __init__(self) -> None:
        self._lock = Lock()
        self._at, self._stretch = 0, mmap.mmap(-1, 1)

    def arrays(self, order: int, lines: int) -> tuple[NDArray[np.int32], NDArray[np.float64]]:
        """Return (order, lines) indices and (lines,) values, not yet set."""
        size = -(-lines * (8 + 4 * order) // 64) * 64
        with self._lock:
            if self._at + size > len(self._stretch):
                self._at, self._stretch = 0, mmap.mmap(-1, max(size, STRETCH), mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS)
                with suppress(AttributeError, OSError):  # not on every system
                    self._stretch.madvise(mmap.MADV_HUGEPAGE)
            at, stretch = self._at, self._stretch
            self._at += size
        values = np.frombuffer(stretch, np.float64, lines, at)
        return np.frombuffer(stretch, np.int32, lines * order, at + 8 * lines).reshape(order, lines), values
