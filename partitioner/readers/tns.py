"""Tensors in text: FROSTT's ``.tns``, plain or compressed by gzip, with or without other tools' headers.

Threads parse blocks of whole lines side by side. The blocks are looked at in their order in the file, so that
neither the result nor an error depends on the threads: the first wrong line is the one that is named.
"""

from __future__ import annotations

import itertools
import mmap
import os
import stat
from collections import deque
from collections.abc import Callable, Generator, Iterable, Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import closing, suppress
from dataclasses import dataclass
from functools import partial
from math import isinf
from os import PathLike
from typing import TypeVar

import numpy as np
from numpy.typing import NDArray

from ..coo import SparseTensor
from ..errors import InputError
from .blocks import Block, BrokenError, cut_blocks
from .head import Head
from .parse import mark_blanks, parse_block

Progress = Callable[[int, int | None], None]
Arrays = tuple[NDArray[np.int32], NDArray[np.float64]]
T = TypeVar("T")
R = TypeVar("R")

BLOCK = 1 << 22  # bytes: small enough that text and marks stay in the cache
_MOST_THREADS = 16  # about as many as the one that reads the file can feed


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
    columns, values, shape = read_columns(path, progress=progress, threads=threads)
    return SparseTensor.from_columns(columns, values, shape, path=path)


def read_columns(
    path: str | PathLike[str],
    *,
    progress: Progress | None = None,
    threads: int | None = None,
    block: int = BLOCK,
) -> tuple[NDArray[np.int32], NDArray[np.float64], tuple[int, ...] | None]:
    """Read nonzeros as the file gives them: (order, nnz) indices from 0 on, values, the declared shape."""
    threads = threads or min(usable_cores(), _MOST_THREADS)
    try:
        with open(path, "rb") as file:
            status = os.fstat(file.fileno())
            total = status.st_size if stat.S_ISREG(status.st_mode) else None
            blocks = cut_blocks(file, block, threads + 1)
            head, parts = _read(blocks, threads, lambda done: progress(done, total) if progress else None)
    except FileNotFoundError:
        raise InputError("no such file", path=path) from None
    except OSError as error:
        raise InputError(error.strerror or str(error), path=path) from None
    except InputError as error:
        raise InputError(error.cause, path=path, line=error.line) from None
    columns, values = _join(head.order, parts, threads)
    return columns, values, head.lengths


def usable_cores() -> int:
    """Return the number of cores that this process may run on."""
    if hasattr(os, "sched_getaffinity"):
        return len(os.sched_getaffinity(0))
    return os.cpu_count() or 1


def _read(blocks: Iterator[Block], threads: int, report: Callable[[int], None]) -> tuple[Head, deque[_Part]]:
    head = Head()
    parts: deque[_Part] = deque()
    try:
        first = head.read(blocks)
        with closing(_in_order(partial(_parse, head), itertools.chain([first], blocks), threads)) as results:
            for part in results:
                head.lines += part.lines
                if part.wrong is not None:
                    raise InputError(head.explain(part.wrong), line=head.lines + 1)
                parts.append(part)
                report(part.consumed)
    except BrokenError as error:
        raise InputError(str(error), line=head.lines + 1) from None
    head.check_count(sum(part.values.size for part in parts))
    return head, parts


def _in_order(work: Callable[[T], R], items: Iterable[T], threads: int) -> Generator[R, None, None]:
    """Do `work` on `items` in threads, few at a time; give the results in the order of the items."""
    pending: deque[Future[R]] = deque()
    broken = None
    with ThreadPoolExecutor(threads) as pool:
        try:
            for item in items:
                pending.append(pool.submit(work, item))
                if len(pending) > threads:
                    yield pending.popleft().result()
        except BrokenError as error:  # what was given before it comes first
            broken = error
        while pending:
            yield pending.popleft().result()
    if broken is not None:
        raise broken


@dataclass
class _Part:
    """What a block holds, up to its first wrong line."""

    columns: NDArray[np.int32]
    values: NDArray[np.float64]
    lines: int
    consumed: int
    wrong: bytes | None


def _parse(head: Head, block: Block) -> _Part:
    slot = block.slot
    count, lines = mark_blanks(slot.text, block.start, block.stop, slot.marks)
    columns, values = _arrays(head.order, lines)
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
    return _Part(columns[:, :rows], values[:rows], line, block.consumed, text)


def _arrays(order: int, lines: int) -> Arrays:
    # Mapped by themselves, so that what is freed goes back to the system whatever malloc would keep.
    room = mmap.mmap(-1, lines * (8 + 4 * order), mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS)
    with suppress(AttributeError, OSError):  # not on every system
        room.madvise(mmap.MADV_HUGEPAGE)  # far fewer page faults: a fifth of the time
    columns = np.frombuffer(room, np.int32, lines * order, 8 * lines).reshape(order, lines)
    return columns, np.frombuffer(room, np.float64, lines)


def _join(order: int, parts: deque[_Part], threads: int) -> Arrays:
    nonzeros = sum(part.values.size for part in parts)
    columns, values = np.empty((order, nonzeros), np.int32), np.empty(nonzeros, np.float64)

    def places() -> Iterator[tuple[int, _Part]]:
        at = 0
        while parts:  # each is freed once it is copied
            part = parts.popleft()
            yield at, part
            at += part.values.size

    def copy(place: tuple[int, _Part]) -> None:
        at, part = place
        columns[:, at : at + part.values.size] = part.columns
        values[at : at + part.values.size] = part.values

    for _ in _in_order(copy, places(), threads):
        pass
    return columns, values
