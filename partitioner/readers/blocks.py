"""From a file to blocks of whole lines, gzip or not: bounded memory, however long the file."""

from __future__ import annotations

import io
import itertools
import zlib
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Protocol

import numpy as np

from ..errors import InputError
from .parse import PAD

_GZIP = b"\x1f\x8b"
_FOREIGN = {
    b"PK\x03\x04": "a zip archive, not text (the name of an .npz file must end so)",
    b"\x93NUMPY": "a NumPy array, not text",
    b"\x89HDF": "an HDF5 file, not text",
    b"BZh": "compressed by bzip2: only gzip is read",
    b"\xfd7zXZ": "compressed by xz: only gzip is read",
    b"\x28\xb5\x2f\xfd": "compressed by zstd: only gzip is read",
}


class BrokenError(Exception):
    """The bytes end, or cannot be read, after the lines that have been given."""


class Slot:
    """The memory of one block, used again and again."""

    def __init__(self, block: int) -> None:
        self.raw = bytearray(PAD + 2 * block + 1 + PAD)
        self.text = np.frombuffer(self.raw, np.uint8)
        self.marks = np.empty(len(self.raw), np.uint32)


@dataclass
class Block:
    """Whole lines: those of `slot` from `start` to `stop`, `consumed` bytes into the file."""

    slot: Slot
    stop: int
    consumed: int
    start: int = PAD


class _Source(Protocol):
    consumed: int  # bytes of the file

    def readinto(self, view: memoryview) -> int:
        """Write what comes next to `view` and say how many bytes; none is the end."""


class _Plain:
    def __init__(self, file: io.BufferedReader) -> None:
        self._file = file
        self.consumed = 0

    def readinto(self, view: memoryview) -> int:
        got = self._file.readinto(view)
        self.consumed += got
        return got


class _Gzip:
    """The text in one or more gzip members, one after the other."""

    def __init__(self, file: io.BufferedReader) -> None:
        self._file = file
        self._inflate = zlib.decompressobj(wbits=31)
        self._input = b""
        self.consumed = 0

    def readinto(self, view: memoryview) -> int:
        while True:
            if self._inflate.eof and not self._next_member():
                return 0
            data = self._input or self._more()
            piece = self._inflate.decompress(data, len(view))
            self._input = self._inflate.unconsumed_tail
            if piece:
                view[: len(piece)] = piece
                return len(piece)
            if not data and not self._inflate.eof:
                raise EOFError

    def _more(self) -> bytes:
        data = self._file.read(1 << 16)
        self.consumed += len(data)
        return data

    def _next_member(self) -> bool:
        data = self._inflate.unused_data.lstrip(b"\0")  # some tools pad the end
        while not data:
            data = self._more()
            if not data:
                return False
            data = data.lstrip(b"\0")
        self._inflate, self._input = zlib.decompressobj(wbits=31), data
        return True


def cut_blocks(file: io.BufferedReader, size: int, slots: int) -> Iterator[Block]:
    """Cut the text of `file` into blocks of about `size` bytes, each of whole lines.

    A block is good until `slots` - 1 more have been given. Raises `InputError` for another kind of file, and
    `BrokenError` after the last whole line of one that is cut short or damaged.
    """
    source = _source(file)
    rest: bytes | memoryview = b""
    for slot in itertools.cycle([Slot(size) for _ in range(slots)]):
        slot.raw[PAD : PAD + len(rest)] = rest
        end, broken, ended = _fill(slot, PAD + len(rest), source, size)
        if ended and end > PAD and slot.raw[end - 1] != ord("\n"):
            slot.raw[end] = ord("\n")
            end += 1
        stop = slot.raw.rfind(b"\n", PAD, end) + 1
        if stop:
            yield Block(slot, stop, source.consumed)
        if broken:
            raise broken
        if ended:
            return
        rest = memoryview(slot.raw)[stop:end]


def _source(file: io.BufferedReader) -> _Source:
    start = file.peek(8)
    for magic, what in _FOREIGN.items():
        if start.startswith(magic):
            raise InputError(what)
    return _Gzip(file) if start.startswith(_GZIP) else _Plain(file)


def _fill(slot: Slot, end: int, source: _Source, size: int) -> tuple[int, BrokenError | None, bool]:
    """Read on from `end`, `size` bytes in all and a newline among them: the new end, trouble, if all is read."""
    room = memoryview(slot.raw)[: PAD + 2 * size]
    while end < PAD + size or slot.raw.rfind(b"\n", PAD, end) < 0:
        if end == len(room):
            return end, BrokenError(f"a line of more than {size} bytes: is this text?"), False
        try:
            got = source.readinto(room[end:])
        except EOFError:
            return end, BrokenError("truncated gzip: the data stops before its end mark"), False
        except OSError as error:
            return end, BrokenError(error.strerror or str(error)), False
        except zlib.error as error:
            return end, BrokenError(f"damaged gzip: {error}"), False
        if not got:
            return end, None, True
        end += got
    return end, None, False
