"""Headers of NumPy's files, read with as much memory as they are worth."""

from __future__ import annotations

import io
import zipfile
from typing import IO, Any

import numpy as np

METHODS = (zipfile.ZIP_STORED, zipfile.ZIP_DEFLATED)  # those of NumPy; others have no bound like `DEFLATED`
DEFLATED = 1032  # the largest expansion by deflate
HEADER = 10_000  # bytes of an array's header at most


def read_header(stream: IO[bytes]) -> tuple[tuple[int, ...], bool, np.dtype[Any]]:
    """Return shape, Fortran order (bool) and type from the ``.npy`` header that is next in `stream`.

    NumPy itself would allocate as many bytes as the header claims to have, up to 4 GB.
    """
    version = np.lib.format.read_magic(stream)
    size = stream.read(2 if version == (1, 0) else 4)
    length = int.from_bytes(size, "little")
    if length > HEADER:
        raise ValueError(f"a header of {length} bytes")
    read = np.lib.format.read_array_header_1_0 if version == (1, 0) else np.lib.format.read_array_header_2_0
    return read(io.BytesIO(size + stream.read(length)))


def check_sizes(archive: zipfile.ZipFile, size: int) -> None:
    """Raise `ValueError` if members claim more than an archive of `size` bytes can hold: it would be allocated."""
    members = archive.infolist()
    if any(m.compress_type not in METHODS for m in members):
        raise ValueError("it is compressed by a method that NumPy does not use")
    if sum(m.file_size for m in members) > DEFLATED * size or any(m.compress_size > size for m in members):
        raise ValueError("its arrays claim more bytes than its size allows")
