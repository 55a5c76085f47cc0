"""Split a file, plain or gzip, into blocks of whole lines, in bounded memory."""

from __future__ import annotations

import io
import zlib
from typing import Protocol

import numpy as np
from numpy.typing import NDArray

from ...errors import InputError
from ..pieces import BrokenError
from .plain import MANY, PAD

GZIP = b"\x1f\x8b"
_FOREIGN = {
    b"PK\x03\x04": "a zip archive, not text (the name of an .npz file must end in .npz)",
    b"\x93NUMPY": "a NumPy array, not text",
    b"\x89HDF": "an HDF5 file, not text (.h5 or .hdf5 in its name; of AnnData, pass anndata.read_h5ad(FILE) in Python)",
    b"BZh": "compressed by bzip2: decompress it, or compress it by gzip",
    b"\xfd7zXZ": "compressed by xz: decompress it, or compress it by gzip",
    b"\x28\xb5\x2f\xfd": "compressed by zstd: decompress it, or compress it by gzip",
}


class BlockSlot:
    """Reusable buffers of one block: whole lines from `start` to `stop`, and the results of parsing them."""

    def __init__(self, block: int) -> None:
        self.raw = bytearray(PAD + 2 * block + 1 + PAD)
        self.text = np.frombuffer(self.raw, np.uint8)  # the same memory
        self.marks = np.empty(len(self.raw), np.uint32)
        self.scratch, self.decimals = np.empty((5, MANY), np.uint64), np.empty(MANY, np.int64)
        self.start = self.stop = PAD
        self.consumed = 0  # bytes of the file read up to the end of this block
        self._columns, self._values = np.empty(0, np.int32), np.empty(0)
        self._deferred = np.empty((0, 4), np.int64)

    def table(self, order: int, lines: int) -> tuple[NDArray[np.int32], NDArray[np.float64], NDArray[np.int64]]:
        """Return arrays for indices (order, lines), values (lines,) and deferred values (lines, 4)."""
        if lines > self._values.size:
            capacity = lines + lines // 8
            self._columns, self._values = np.empty(order * capacity, np.int32), np.empty(capacity)
            self._deferred = np.empty((capacity, 4), np.int64)
        return self._columns[: order * lines].reshape(order, lines), self._values[:lines], self._deferred[:lines]


class TextSource(Protocol):
    """A stream of text."""

    consumed: int  # bytes read from the file

    def readinto(self, view: memoryview) -> int:
        """Read the next bytes into `view`; return their number, 0 at the end."""


class PlainSource:
    """The bytes of a file from its position on, up to its end or `size`. See `TextSource`."""

    def __init__(self, file: io.BufferedReader, size: int | None = None) -> None:
        self._file, self._size = file, size
        self.consumed = 0

    def readinto(self, view: memoryview) -> int:
        """See `TextSource`."""
        count = self._file.readinto(view if self._size is None else view[: self._size - self.consumed])
        self.consumed += count
        return count


class GzipSource:
    """The text in one or more consecutive gzip members. See `TextSource`."""

    def __init__(self, file: io.BufferedReader) -> None:
        self._file = file
        self._inflate = zlib.decompressobj(wbits=31)
        self._input = b""
        self.consumed = 0

    def readinto(self, view: memoryview) -> int:
        """See `TextSource`."""
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
        data = self._inflate.unused_data.lstrip(b"\0")  # some tools pad the end with zeros
        while not data:
            data = self._more()
            if not data:
                return False
            data = data.lstrip(b"\0")
        self._inflate, self._input = zlib.decompressobj(wbits=31), data
        return True


def text_source(file: io.BufferedReader) -> TextSource:
    """Return the source for a file, according to its first bytes; raise `InputError` if it is not text or gzip."""
    start = file.peek(8)
    for magic, message in _FOREIGN.items():
        if start.startswith(magic):
            raise InputError(message)
    return GzipSource(file) if start.startswith(GZIP) else PlainSource(file)


def line_start(file: io.BufferedReader, at: int, size: int) -> int:
    """Return the offset of the first line at or after byte `at` > 0, or the end of the file.

    Also returns the end if the previous line is too long for `Cutter` with blocks of `size`: reading stops at that
    line.
    """
    file.seek(at - 1)
    line = file.readline(2 * size)
    return at - 1 + len(line) if line.endswith(b"\n") else file.seek(0, io.SEEK_END)


class Cutter:
    """Splits text into blocks of about `size` bytes of whole lines."""

    def __init__(self, source: TextSource, size: int) -> None:
        self._source, self._size = source, size
        self._rest = b""
        self._broken: BrokenError | None = None
        self._ended = False

    def cut(self, slot: BlockSlot) -> bool:
        """Read the next block into a slot; return False at the end.

        Raises `BrokenError` after the last complete line of a truncated or damaged file.
        """
        if self._broken is not None:
            raise self._broken
        if self._ended:
            return False
        begin = PAD + len(self._rest)
        slot.raw[PAD:begin] = self._rest
        end, self._broken, self._ended = _fill(slot, begin, self._source, self._size)
        if self._ended and end > PAD and slot.raw[end - 1] != ord("\n"):
            slot.raw[end] = ord("\n")
            end += 1
        stop = slot.raw.rfind(b"\n", PAD, end) + 1
        if not stop:
            return self.cut(slot) if self._broken is not None else False
        slot.start, slot.stop, slot.consumed = PAD, stop, self._source.consumed
        self._rest = bytes(memoryview(slot.raw)[stop:end])
        return True


def _fill(slot: BlockSlot, end: int, source: TextSource, size: int) -> tuple[int, BrokenError | None, bool]:
    """Read until the slot holds `size` bytes and a newline. Return the new end, an error, and whether all is read."""
    buffer, newline = memoryview(slot.raw)[: PAD + 2 * size], slot.raw.find(b"\n", PAD, end) >= 0
    while end < PAD + size or not newline:
        if end == len(buffer):
            return end, BrokenError(f"a line of more than {size} bytes: this may not be a text file"), False
        try:
            count = source.readinto(buffer[end : PAD + size] or buffer[end:])
        except EOFError:
            return end, BrokenError("truncated gzip: the data stops before its end mark"), False
        except OSError as error:
            return end, BrokenError(error.strerror or str(error)), False
        except zlib.error as error:
            return end, BrokenError(f"damaged gzip: {error}"), False
        if not count:
            return end, None, True
        newline = newline or slot.raw.find(b"\n", end, end + count) >= 0
        end += count
    return end, None, False
