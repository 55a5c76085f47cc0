"""Uncompressed members of a zip archive: read at any position by several threads, and verified as a whole."""

from __future__ import annotations

import os
import struct
import zipfile
import zlib
from collections.abc import Sequence
from functools import cache, reduce
from operator import xor

import numpy as np
from numpy.typing import NDArray

from ...host.checksums import read_bytes

HEADER = struct.Struct("<26xHH")  # local file header; its last fields are the lengths of name and extra field
SHORT = 64  # bytes
PIECE = 1 << 20  # bytes read at a time only for verification


class Member:
    """The bytes of one member of an open archive; `start` is the offset of its first byte in the file."""

    def __init__(self, handle: int, info: zipfile.ZipInfo) -> None:
        self._handle, self._info, self.size = handle, info, info.file_size
        name, extra = HEADER.unpack(os.pread(handle, HEADER.size, info.header_offset))
        self.start = info.header_offset + HEADER.size + name + extra
        self._sums = dict[int, tuple[int, int]]()  # by offset: length and checksum of what was read

    def read(self, begin: int, size: int) -> NDArray[np.uint8]:
        """Return `size` bytes from offset `begin` on. Each byte may be read only once."""
        data = np.empty(size, np.uint8)
        read_bytes(self._handle, data, self.start + begin)
        self._sums[begin] = size, zlib.crc32(data.data)
        return data

    def verify(self) -> None:
        """Read the remaining bytes; raise `zipfile.BadZipFile` unless all bytes match the archive's checksum."""
        at = 0
        for begin in [*sorted(self._sums), self.size]:
            for place in range(at, begin, PIECE):
                self.read(place, min(PIECE, begin - place))
            at = begin + self._sums[begin][0] if begin < self.size else begin
        total = 0
        for _, (size, part) in sorted(self._sums.items()):
            total = joined(total, part, size)
        if total != self._info.CRC:
            raise zipfile.BadZipFile(f"Bad CRC-32 for file {self._info.filename!r}")


def joined(first: int, second: int, size: int) -> int:
    """Return the checksum of two parts together, from the checksum of each; the second has `size` bytes."""
    return _multiply(_shift_matrix(size), first) ^ second


def _multiply(columns: Sequence[int], checksum: int) -> int:
    return reduce(xor, (column for bit, column in enumerate(columns) if checksum >> bit & 1), 0)


@cache
def _shift_matrix(size: int) -> tuple[int, ...]:
    """Return the matrix over GF(2), as columns, that maps a checksum to that after `size` more zero bytes."""
    if size <= SHORT:
        zeros = bytes(size)
        return tuple(zlib.crc32(zeros, 1 << bit) ^ zlib.crc32(zeros) for bit in range(32))
    half, rest = _shift_matrix(size // 2), _shift_matrix(size % 2)
    return tuple(_multiply(rest, _multiply(half, column)) for column in half)
