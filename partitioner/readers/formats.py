"""The supported file formats, and the choice of a reader for a path."""

from __future__ import annotations

from collections.abc import Callable
from os import PathLike, fspath
from pathlib import Path
from typing import TYPE_CHECKING, Any

from ..errors import InputError
from ..host.checksums import MANIFEST
from ..wording import parameter
from .arrays import market, matlab
from .arrays.chunked import ENDINGS, split
from .form import PLAIN, ReadOptions
from .pieces import FilePart
from .reader import Reader
from .tables.database import FUNCTIONS

if TYPE_CHECKING:
    from ..tensors.dense import DenseTensor

# Modules that read files are imported on demand, to save start-up time.


class ChunkedReader(Reader):
    """HDF5, netCDF-4 and Zarr, optionally with the name of an array: ``FILE.h5:NAME``."""

    name = "HDF5, netCDF-4 or Zarr"
    extensions = ENDINGS
    kind = "dense"

    def recognizes(self, path: str | PathLike[str]) -> bool:
        return split(path) is not None

    def file(self, path: str | PathLike[str]) -> str:
        parts = split(path)
        assert parts is not None
        return parts[0]

    def dense(self, path: str | PathLike[str]) -> DenseTensor:
        from .arrays.chunked import read_chunked

        return read_chunked(path)


class NpyReader(Reader):
    """An array in NumPy's ``.npy`` format."""

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

    def part(self, path: str | PathLike[str], form: ReadOptions, part: int, of: int, **options: Any) -> FilePart:
        from .tables.table import TablePart

        return TablePart(path, form, part, **options)


class ArchiveReader(Reader):
    """A NumPy archive of a sparse or semi-sparse tensor. Rank 0 reads it, as it has one checksum per array."""

    name = "a NumPy archive"
    extensions = (".npz",)

    def recognizes(self, path: str | PathLike[str]) -> bool:
        return fspath(path).lower().endswith(self.extensions)

    def part(self, path: str | PathLike[str], form: ReadOptions, part: int, of: int, **options: Any) -> FilePart:
        from .arrays.npz import ArchivePart
        from .arrays.semisparse import SemiSparsePart, is_semisparse

        kind = SemiSparsePart if Path(path).is_file() and is_semisparse(path) else ArchivePart
        return kind(path, part, no_values=form.no_values, base=form.index_base, **options)


class TextReader(Reader):
    """Lines ``i j ... value``, optionally compressed by gzip. Reads every file that no other reader recognizes."""

    name = "text"

    def recognizes(self, path: str | PathLike[str]) -> bool:
        return True

    def is_divisible(self, path: str | PathLike[str]) -> bool:
        with open(path, "rb") as file:
            return file.read(2) != b"\x1f\x8b"

    def line_where(self, path: str | PathLike[str], wrong: Callable[[float], bool]) -> int | None:
        from .text.tns import line_where

        return line_where(path, wrong)

    def part(self, path: str | PathLike[str], form: ReadOptions, part: int, of: int, **options: Any) -> FilePart:
        from .text.tns import TextPart

        return TextPart(path, part, of, no_values=form.no_values, base=form.index_base, **options)


class MarketArrayReader(Reader):
    """A dense matrix in a Matrix Market file, according to its first line."""

    name = "a Matrix Market array"
    kind = "dense"

    def recognizes(self, path: str | PathLike[str]) -> bool:
        return fspath(path).lower().endswith(market.ENDINGS) and market.is_array(path)

    def dense(self, path: str | PathLike[str]) -> DenseTensor:
        return market.read_array(path)


class MarketReader(Reader):
    """A sparse matrix in a Matrix Market file, read by rank 0."""

    name = "a Matrix Market file"
    extensions = market.ENDINGS

    def part(self, path: str | PathLike[str], form: ReadOptions, part: int, of: int, **options: Any) -> FilePart:
        return market.market_part(path, form, part)


class MatlabFile(Reader):
    """A variable in a MATLAB file, the only array or that of a name: ``FILE.mat:NAME``."""

    def recognizes(self, path: str | PathLike[str]) -> bool:
        return split(path, matlab.ENDINGS) is not None and not Path(path).is_dir()

    def file(self, path: str | PathLike[str]) -> str:
        parts = split(path, matlab.ENDINGS)
        assert parts is not None
        return parts[0]


class MatlabArrayReader(MatlabFile):
    """A dense array in a MATLAB file."""

    name = "an array in a MATLAB file"
    kind = "dense"

    def recognizes(self, path: str | PathLike[str]) -> bool:
        return super().recognizes(path) and matlab.is_full(path)

    def dense(self, path: str | PathLike[str]) -> DenseTensor:
        return matlab.read_full(path)


class MatlabReader(MatlabFile):
    """A sparse matrix in a MATLAB file, read by rank 0."""

    name = "a MATLAB file"
    extensions = matlab.ENDINGS

    def part(self, path: str | PathLike[str], form: ReadOptions, part: int, of: int, **options: Any) -> FilePart:
        return matlab.matlab_part(path, form, part)


TABLE, TEXT = TableReader(), TextReader()
READERS: tuple[Reader, ...] = (
    *(ChunkedReader(), NpyReader(), TABLE, ArchiveReader()),
    *(MarketArrayReader(), MarketReader(), MatlabArrayReader(), MatlabReader()),
)
"""Readers by file name; the first that recognizes a path is used."""


def named_reader(path: str | PathLike[str]) -> Reader | None:
    """Return the reader that recognizes a path; None if its name indicates no format, which may be text."""
    return next((reader for reader in READERS if reader.recognizes(path)), None)


def reader_of(path: str | PathLike[str], form: ReadOptions = PLAIN) -> Reader:
    """Return the reader of a file; raise `InputError` if table options are set for a tensor."""
    reader = named_reader(path)
    if reader is None:
        return TABLE if form.tabular and not Path(path).is_dir() else TEXT
    if form.tabular and reader.kind == "sparse":
        refuse_keys(path, form)
    return reader


def refuse_keys(path: str | PathLike[str], form: ReadOptions) -> None:
    """Raise `InputError` if table options are set for a tensor."""
    if form.tabular and Path(path).is_dir() and not (Path(path) / MANIFEST).exists():
        raise InputError("a folder, not a table", path=path)
    if form.tabular:
        names = parameter("key", "keys"), *map(parameter, ("value", "where", "missing"))
        raise InputError(f"a tensor, not a table: {', '.join(names[:-1])} and {names[-1]} are for tables", path=path)
