"""Members of NumPy archives: their headers in bounded memory, and their bytes, read by several threads and verified."""

from __future__ import annotations

import io
import os
import struct
import zipfile
import zlib
from collections.abc import Sequence
from functools import cache, reduce
from operator import xor
from typing import IO

import numpy as np
from numpy.typing import NDArray

from ...array_types import DType
from ...host.checksums import read_bytes

HEADER = struct.Struct("<26xHH")  # local file header; its last fields are the lengths of name and extra field
SHORT = 64  # bytes
PIECE = 1 << 20  # bytes read at a time only for verification
METHODS = (zipfile.ZIP_STORED, zipfile.ZIP_DEFLATED)  # those of NumPy; others have no bound such as `DEFLATED`
DEFLATED = 1032  # maximum compression ratio of deflate
MAX_HEADER = 10_000  # maximum bytes of an array's header


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


def read_header(stream: IO[bytes]) -> tuple[tuple[int, ...], bool, DType]:
    """Return shape, Fortran order (bool) and type from the ``.npy`` header at the position of `stream`.

    NumPy would allocate the header length that the file declares, up to 4 GB.
    """
    version = np.lib.format.read_magic(stream)
    size = stream.read(2 if version == (1, 0) else 4)
    length = int.from_bytes(size, "little")
    if length > MAX_HEADER:
        raise ValueError(f"the header has {length} bytes, expected at most {MAX_HEADER}")
    read = np.lib.format.read_array_header_1_0 if version == (1, 0) else np.lib.format.read_array_header_2_0
    return read(io.BytesIO(size + stream.read(length)))


def check_sizes(archive: zipfile.ZipFile, size: int) -> None:
    """Raise `ValueError` if members declare more bytes than an archive of `size` bytes can hold."""
    members = archive.infolist()
    if any(m.compress_type not in METHODS for m in members):
        raise ValueError("compressed by a method that NumPy does not use")
    if sum(m.file_size for m in members) > DEFLATED * size or any(m.compress_size > size for m in members):
        raise ValueError("declared array sizes exceed what the file can contain")
