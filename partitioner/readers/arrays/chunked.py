"""Dense tensors in HDF5, netCDF-4 and Zarr files, read on demand through their libraries."""

from __future__ import annotations

import math
from collections.abc import Sequence
from os import PathLike, fspath
from pathlib import Path

import numpy as np

from ...array_types import HostArray
from ...errors import InputError
from ...host.memory import total_memory
from ...tensors.dense import DenseTensor
from ...tensors.stored import Stored
from ..pieces import cause_of, naming
from . import hdf5, zarrs
from .opened import Opened, Place

ENDINGS = (*zarrs.ARCHIVES, *zarrs.FOLDERS, *hdf5.ENDINGS)


def split(path: str | PathLike[str], endings: Sequence[str] = ENDINGS) -> tuple[str, str] | None:
    """Split ``FILE:NAME`` into a file or folder and an array's name, which may be empty; None for other files."""
    text = fspath(path).rstrip("/")
    for ending in endings:
        if text.lower().endswith(ending):
            return text, ""
        at = text.lower().rfind(f"{ending}:")
        if at >= 0:
            at += len(ending)
            return text[:at], text[at + 1 :]
    return None


def read_chunked(path: str | PathLike[str]) -> DenseTensor:
    """Open a tensor in an HDF5, netCDF-4 or Zarr file: ``FILE`` if it contains one array, or ``FILE:NAME``."""
    parts = split(path)
    assert parts is not None
    file, name = parts[0], parts[1].strip("/")
    if not Path(file).exists():
        raise InputError("no such file", path=path)
    with naming(path):
        is_hdf5 = file.lower().endswith(hdf5.ENDINGS)
        opened = hdf5.open_hdf5(file, name, path) if is_hdf5 else zarrs.open_zarr(file, name)
        return DenseTensor(stored(opened, path), path)


def stored(opened: Opened, path: str | PathLike[str]) -> Stored:
    """Return the elements of an open array; raise `InputError` if a chunk, which is read as a whole, exceeds memory."""
    needed = math.prod(opened.chunk or ()) * opened.array.dtype.itemsize
    if needed > (available := total_memory()):
        raise InputError(f"has chunks of {needed:,} bytes, which must fit memory: {available:,} bytes are available")
    return Stored(opened.plain or Chunked(opened, path))


class Chunked:
    """The elements of an array that its library reads. All errors become `InputError` with the file's name."""

    def __init__(self, opened: Opened, path: str | PathLike[str]) -> None:
        self.shape, self.dtype = tuple(opened.array.shape), opened.packing.dtype
        self._opened, self._path = opened, path

    def __getitem__(self, place: Place) -> HostArray:
        with naming(self._path):
            return self._opened.packing.unpacked(self._numbers(place), place)

    def with_gaps(self) -> Chunked:
        """Return the elements with NaN in place of those that the file declares missing."""
        return Chunked(self._opened._replace(packing=self._opened.packing.with_gaps()), self._path)

    def _numbers(self, place: Place) -> HostArray:
        try:
            numbers = np.asarray(self._opened.array[place])
        except Exception as error:
            self._opened.check(place)  # a change of the file may be the reason
            short = "not enough memory for them or their chunks: " * isinstance(error, MemoryError)
            raise InputError(f"elements cannot be read: {short}{cause_of(error)}") from None
        self._opened.check(place)
        return numbers
