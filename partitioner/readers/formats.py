"""The file formats that are read, and which of them a path is in."""

from __future__ import annotations

from os import PathLike, fspath
from pathlib import Path
from typing import TYPE_CHECKING, Any

from ..errors import InputError
from .arrays.chunked import ENDINGS, split
from .form import PLAIN, ReadOptions
from .pieces import FilePart
from .reader import Reader
from .tables.database import FUNCTIONS

if TYPE_CHECKING:
    from ..tensors.dense import DenseTensor

# What reads a file is imported where it is used, to save start-up time.


class ChunkedReader(Reader):
    """HDF5, netCDF-4 and Zarr, perhaps with the name of an array: ``FILE.h5:NAME``."""

    name = "HDF5, netCDF-4 or Zarr"
    extensions = ENDINGS
    kind = "dense"

    def recognizes(self, path: str | PathLike[str]) -> bool:
        return split(path) is not None

    def file(self, path: str | PathLike[str]) -> str:
        found = split(path)
        assert found is not None
        return found[0]

    def dense(self, path: str | PathLike[str]) -> DenseTensor:
        from .arrays.chunked import read_chunked

        return read_chunked(path)


class NpyReader(Reader):
    """An array in NumPy's format."""

    name = "a NumPy array"
    extensions = (".npy",)
    kind = "dense"

    def dense(self, path: str | PathLike[str]) -> DenseTensor:
        from .arrays.npy import read_dense

        return read_dense(path)


class TableReader(Reader):
    """A table, read by DuckDB on rank 0."""

    name = "a table"
    extensions = tuple(FUNCTIONS)
    kind = "table"

    def part(self, path: str | PathLike[str], form: ReadOptions, part: int, of: int, **how: Any) -> FilePart:
        from .tables.table import TablePart

        return TablePart(path, form, part, **how)


class ArchiveReader(Reader):
    """A NumPy archive of a sparse or semi-sparse tensor, read by rank 0: it has one checksum per array."""

    name = "a NumPy archive"
    extensions = (".npz",)

    def recognizes(self, path: str | PathLike[str]) -> bool:
        return fspath(path).lower().endswith(self.extensions)

    def part(self, path: str | PathLike[str], form: ReadOptions, part: int, of: int, **how: Any) -> FilePart:
        from .arrays.npz import ArchivePart
        from .arrays.semisparse import SemiSparsePart, is_semisparse

        kind = SemiSparsePart if Path(path).is_file() and is_semisparse(path) else ArchivePart
        return kind(path, part, no_values=form.no_values, base=form.index_base, **how)


class TextReader(Reader):
    """Lines ``i j ... value``, perhaps compressed by gzip: a file of any name that no other reader recognizes."""

    name = "text"

    def recognizes(self, path: str | PathLike[str]) -> bool:
        return True

    def is_divisible(self, path: str | PathLike[str]) -> bool:
        with open(path, "rb") as file:
            return file.read(2) != b"\x1f\x8b"

    def negative_line(self, path: str | PathLike[str]) -> int | None:
        from .text.negative import first_negative

        return first_negative(path)

    def part(self, path: str | PathLike[str], form: ReadOptions, part: int, of: int, **how: Any) -> FilePart:
        from .text.tns import TextPart

        return TextPart(path, part, of, no_values=form.no_values, base=form.index_base, **how)


TABLE, TEXT = TableReader(), TextReader()
READERS: tuple[Reader, ...] = (ChunkedReader(), NpyReader(), TABLE, ArchiveReader())
"""By the names of files; the first that recognizes a path reads it."""


def named_reader(path: str | PathLike[str]) -> Reader | None:
    """Return the reader that recognizes a path; None if its name is that of no format, as that of a text may be."""
    return next((reader for reader in READERS if reader.recognizes(path)), None)


def reader_of(path: str | PathLike[str], form: ReadOptions = PLAIN) -> Reader:
    """Return what reads a file; raise `InputError` if keys are given for a tensor, which is no table."""
    found = named_reader(path)
    if found is None:
        return TABLE if form.tabular and not Path(path).is_dir() else TEXT
    if form.tabular and found.kind == "sparse":
        refuse_keys(path, form)
    return found


def refuse_keys(path: str | PathLike[str], form: ReadOptions) -> None:
    """Raise `InputError` if keys are given for what is a tensor already."""
    if form.tabular:
        raise InputError("a tensor, not a table: --key, --value, --where and --missing are for tables", path=path)
