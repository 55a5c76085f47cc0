"""Members of an archive that are not compressed: read anywhere, by several threads, and verified as a whole."""

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

HEADER = struct.Struct("<26xHH")  # of a member: at its end, the lengths of two fields that follow
SHORT = 64  # bytes
CHECKED = 1 << 20  # bytes read together to be verified alone


class Member:
    """The bytes of one member, of an open file, from its first to its last; `start` is where that is in the file."""

    def __init__(self, handle: int, info: zipfile.ZipInfo) -> None:
        self._handle, self._info, self.size = handle, info, info.file_size
        name, extra = HEADER.unpack(os.pread(handle, HEADER.size, info.header_offset))
        self.start = info.header_offset + HEADER.size + name + extra
        self._sums = dict[int, tuple[int, int]]()  # of what was read: where it begins, its length and checksum

    def read(self, begin: int, size: int) -> NDArray[np.uint8]:
        """Return some bytes; each may be read once."""
        data = np.empty(size, np.uint8)
        read_bytes(self._handle, data, self.start + begin)
        self._sums[begin] = size, zlib.crc32(data.data)
        return data

    def verify(self) -> None:
        """Read what was not read so far; raise `zipfile.BadZipFile` unless all bytes have the archive's checksum."""
        at = 0
        for begin in [*sorted(self._sums), self.size]:
            for place in range(at, begin, CHECKED):
                self.read(place, min(CHECKED, begin - place))
            at = begin + self._sums[begin][0] if begin < self.size else begin
        whole = 0
        for _, (size, part) in sorted(self._sums.items()):
            whole = joined(whole, part, size)
        if whole != self._info.CRC:
            raise zipfile.BadZipFile(f"Bad CRC-32 for file {self._info.filename!r}")


def joined(first: int, second: int, size: int) -> int:
    """Return the checksum of bytes from that of a first part and that of a second one of `size` bytes."""
    return _changed(_behind(size), first) ^ second


def _changed(columns: Sequence[int], checksum: int) -> int:
    return reduce(xor, (column for bit, column in enumerate(columns) if checksum >> bit & 1), 0)


@cache
def _behind(size: int) -> tuple[int, ...]:
    """Return what each bit of a checksum becomes when so many bytes follow: checksums are linear in their bits."""
    if size <= SHORT:
        zeros = bytes(size)
        return tuple(zlib.crc32(zeros, 1 << bit) ^ zlib.crc32(zeros) for bit in range(32))
    half, rest = _behind(size // 2), _behind(size % 2)
    return tuple(_changed(rest, _changed(half, column)) for column in half)
