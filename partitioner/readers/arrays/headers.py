"""Headers of NumPy files, read in bounded memory."""

from __future__ import annotations

import io
import zipfile
from typing import IO, Any

import numpy as np

METHODS = (
    zipfile.ZIP_STORED,
    zipfile.ZIP_DEFLATED,
)  # the methods that NumPy uses; others have no bound such as `DEFLATED`
DEFLATED = 1032  # maximum compression ratio of deflate
HEADER = 10_000  # maximum bytes of an array's header


def read_header(stream: IO[bytes]) -> tuple[tuple[int, ...], bool, np.dtype[Any]]:
    """Return shape, Fortran order (bool) and type from the ``.npy`` header at the position of `stream`.

    NumPy would allocate the header length that the file declares, up to 4 GB.
    """
    version = np.lib.format.read_magic(stream)
    size = stream.read(2 if version == (1, 0) else 4)
    length = int.from_bytes(size, "little")
    if length > HEADER:
        raise ValueError(f"the header has {length} bytes, expected at most {HEADER}")
    read = np.lib.format.read_array_header_1_0 if version == (1, 0) else np.lib.format.read_array_header_2_0
    return read(io.BytesIO(size + stream.read(length)))


def check_sizes(archive: zipfile.ZipFile, size: int) -> None:
    """Raise `ValueError` if members declare more bytes than an archive of `size` bytes can hold."""
    members = archive.infolist()
    if any(m.compress_type not in METHODS for m in members):
        raise ValueError("compressed by a method that NumPy does not use")
    if sum(m.file_size for m in members) > DEFLATED * size or any(m.compress_size > size for m in members):
        raise ValueError("declared array sizes exceed what the file can contain")
