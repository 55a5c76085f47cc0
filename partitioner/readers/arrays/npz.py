"""Tensors in NumPy archives: ``indices`` (nnz, order) from 0, ``values`` (nnz,), optional ``shape`` and labels."""

from __future__ import annotations

import math
import os
import tokenize
import zipfile
import zlib
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from os import PathLike
from typing import IO

import numpy as np

from ...array_types import DType, FloatDType, HostArray
from ...errors import InputError
from ...host.checksums import open_regular
from ...host.threads import parallel_map
from ...sorting.tables import Indices, Nonzeros, Pile, Values
from ...tensors.ingest import MAX_MODE_LENGTH, check_order
from ...tensors.labels import Labels, find
from ...wording import setting
from ..pieces import Outcome, Progress, naming, usable_threads
from .members import Member, check_sizes, read_header

# Errors of zipfile and NumPy for a damaged member, or one of another type.
DAMAGED = (
    zipfile.BadZipFile,
    zlib.error,
    tokenize.TokenError,
    EOFError,
    KeyError,
    MemoryError,
    OSError,
    OverflowError,
    RuntimeError,
    SyntaxError,
    SystemError,  # Python 3.12's tokenizer, with which NumPy reads headers
    TypeError,
    ValueError,
)
ROWS = 1 << 17  # nonzeros read at a time, by all threads together unless each would read fewer than `FEWEST`
FEWEST = 1 << 14
BATCH = 64  # times as many are read in threads between progress reports
SHOWN, LONGEST = 10, 60  # array names in a message, and characters per name
TRUNCATED = "the data is truncated"
_CHUNK = 1 << 20  # bytes


class ArchivePart:
    """The nonzeros of an archive, all in part 0. See `FilePart` and `open_part`.

    One rank reads the file, as an archive has one checksum per array. It uses threads unless the archive is compressed.
    Nothing is unpickled.
    """

    _plain = True  # whether each row of the arrays is a nonzero

    def __init__(
        self,
        path: str | PathLike[str],
        part: int = 0,
        *,
        progress: Progress | None = None,
        no_values: bool = False,
        base: int | None = None,
        rows: int | None = None,
        threads: int | None = None,
    ) -> None:
        self._progress, self._threads = progress, threads or usable_threads()
        self._rows = rows or min(ROWS, max(FEWEST, ROWS // self._threads))
        self._base = base or 0  # the lowest index
        self._fault: InputError | None = None
        with naming(path), ExitStack() as files:
            file = files.enter_context(open_regular(path))
            self._total = os.fstat(file.fileno()).st_size
            with _damage("damaged archive"):
                if not zipfile.is_zipfile(file):
                    raise InputError("not an .npz archive, or truncated")
                archive = files.enter_context(zipfile.ZipFile(file))
                check_sizes(archive, self._total)
            self._indices = _Array(archive, "indices")
            self._values = _ones(archive, self._indices) if no_values else _Array(archive, "values")
            self._check_forms(archive)
            self.lengths = _lengths(archive, self.order)
            self._check_lengths()
            self._labels = _labels(archive, self.lengths) if self._plain and part == 0 else None
            self._members = self._plain and _members(file.fileno(), self._indices, self._values)
            self._files = files.pop_all()
        self._nonzeros = 0
        self.expected = self._values.shape[0] if part == 0 else 0
        self._pieces = self._read() if part == 0 else iter(list[Nonzeros]())
        self._remaining: Nonzeros | None = None  # nonzeros that did not fit the last pile

    def _check_lengths(self) -> None:
        """Raise `InputError` if the mode lengths do not match the arrays."""

    def _check_forms(self, archive: zipfile.ZipFile) -> None:
        indices, values = self._indices, self._values
        if len(indices.shape) != 2 or indices.dtype.kind not in "iu":
            raise InputError(f"'indices' is {indices}, expected (nnz, order) integers")
        if len(values.shape) != 1 or values.dtype.kind not in "iuf":
            raise InputError(f"'values' is {values}, expected (nnz,) real numbers")
        (nonzeros, self.order), (count,) = indices.shape, values.shape
        if nonzeros < 1:
            raise InputError("no nonzeros")
        check_order(self.order)
        if count != nonzeros:
            raise InputError(f"{count} values for {nonzeros} rows of indices")
        self.dtype = kept_as(values.dtype)

    @property
    def outcome(self) -> Outcome:
        """See `FilePart`."""
        read = self.order, self.lengths, self._nonzeros
        return Outcome(*read, fault=self._fault, base=self._base, labels=self._labels)

    def close(self) -> None:
        """See `FilePart`."""
        self._files.close()

    def fill(self, pile: Pile) -> bool:
        """See `FilePart`."""
        if self._members:
            return self.expected > 0 and self._fill_in_threads(pile)
        while (piece := self._remaining or next(self._pieces, None)) is not None:
            self._remaining = pile.add(*piece)
            if self._remaining is not None:
                return True
        return False

    def _fill_in_threads(self, pile: Pile) -> bool:
        total = self._values.shape[0]
        try:
            self._indices.check_length()
            self._values.check_length()
            while self._nonzeros < total:
                places = pile.reserve(min(BATCH * self._rows, total - self._nonzeros))
                if not places:
                    return True
                for to_columns, to_values in places:
                    self._take(to_columns, to_values)
            for array in (self._indices, self._values):
                array.verify()
        except InputError as error:
            self._fault = error
        self._files.close()
        return False

    def _take(self, to_columns: Indices, to_values: Values) -> None:
        """Fill arrays with the next nonzeros."""
        first, count = self._nonzeros, to_values.size

        def take(at: int) -> None:
            part = slice(at, min(at + self._rows, count))
            place = first + at, part.stop - at
            to_columns[:, part], to_values[part] = self._checked(
                self._indices.read(*place), self._values.read(*place)[0], first + at
            )

        begins = range(0, count, self._rows)
        parallel_map(take, begins, min(self._threads, len(begins)))
        self._count(count)

    def _count(self, nonzeros: int) -> None:
        self._nonzeros += nonzeros
        if self._progress:
            self._progress(self._total * self._nonzeros // self._values.shape[0], self._total)

    def _read(self) -> Iterator[Nonzeros]:
        with self._files:
            try:
                for indices, values in zip(self._indices.rows(self._rows), self._values.rows(self._rows), strict=True):
                    piece = self._checked(indices, values[0], self._nonzeros)
                    self._count(values.size)
                    yield piece
            except InputError as error:
                self._fault = error

    def _checked(self, indices: HostArray, raw: HostArray, first: int) -> Nonzeros:
        """Return nonzeros, starting with number `first`, converted; raise `InputError` if one is invalid."""
        lengths, base = self.lengths or (MAX_MODE_LENGTH,) * self.order, self._base
        if base:
            indices = indices.astype(np.int64) - base
        with np.errstate(over="ignore"):
            values = raw.astype(self.dtype)
        wrong = ~np.isfinite(values)
        for column, length in zip(indices, lengths, strict=True):
            if column.min() < 0 or column.max() >= length:
                wrong |= (column < 0) | (column >= length)
        if wrong.any():
            at = int(wrong.argmax())
            self._refuse(first + at, (indices[:, at] + base).tolist(), values[at], lengths)
        return indices.astype(np.int32, order="C"), values

    def _refuse(self, nonzero: int, indices: list[int], value: np.floating, lengths: tuple[int, ...]) -> None:
        for mode, (index, length) in enumerate(zip(indices, lengths, strict=True)):
            what = f"index {index} of mode {mode} in nonzero {nonzero}"
            if index < self._base:
                raise InputError(f"{what}: indices count from {self._base}")
            if index >= length + self._base:
                raise InputError(f"{what} is outside its length {length}")
        raise InputError(f"value {value} of nonzero {nonzero} is not finite")


def kept_as(dtype: DType) -> FloatDType:
    """Return the type to which values of an archive are converted."""
    return np.dtype(np.float32 if dtype.kind == "f" and dtype.itemsize == 4 else np.float64)


class _Ones:
    """Values of an archive without values. See `_Array`."""

    by_columns = False
    dtype = np.dtype(np.float64)

    def __init__(self, count: int) -> None:
        self.shape = (count,)

    def rows(self, count: int) -> Iterator[HostArray]:
        for start in range(0, self.shape[0], count):
            yield np.ones((1, min(count, self.shape[0] - start)))

    def open_member(self, handle: int) -> bool:
        return True

    def check_length(self) -> None:
        """See `_Array`."""

    def read(self, begin: int, count: int) -> HostArray:
        return np.ones((1, count))

    def verify(self) -> None:
        """See `_Array`."""


def _members(handle: int, *arrays: _Array | _Ones) -> bool:
    """Return whether threads can read these arrays of an open archive."""
    return all(array.open_member(handle) for array in arrays)


def _ones(archive: zipfile.ZipFile, indices: _Array) -> _Ones:
    if {"values", "values.npy"} & set(archive.namelist()):
        raise InputError(f"holds 'values': {setting('no_values')} applies to files without values")
    return _Ones(indices.shape[0] if indices.shape else 0)


class _Array:
    """An array in an archive: its shape, type and rows."""

    def __init__(self, archive: zipfile.ZipFile, name: str) -> None:
        members = archive.namelist()
        matches = [member for member in (name, f"{name}.npy") if member in members]
        if not matches:
            shown = [*(member.removesuffix(".npy")[:LONGEST] for member in members[:SHOWN]), "..."]
            names = ", ".join(shown[: len(members)]) or "nothing"
            advice = f"; {setting('no_values')} counts each as 1" if name == "values" else ""
            raise InputError(f"no array '{name}' in the archive, which holds {names}{advice}")
        self._archive, self._name, self._member = archive, name, matches[0]
        self._context = f"cannot read '{name}'"
        with _damage(self._context):
            self._open().close()

    def __str__(self) -> str:
        return f"a {self.shape} array of {self.dtype}"

    def _open(self) -> IO[bytes]:
        """Open the member and read its header."""
        stream = self._archive.open(self._member)
        if stream.read(6) != b"\x93NUMPY":
            raise InputError(f"'{self._name}' is not an array")
        stream.seek(0)
        self.shape, self.by_columns, self.dtype = read_header(stream)
        if self.dtype.hasobject:
            raise InputError(f"{self._context}: an array of Python objects")
        self._begin = stream.tell()
        return stream

    def open_member(self, handle: int) -> bool:
        """Prepare `read` for an open archive; return whether it can be used, that is, the member is not compressed."""
        info = self._archive.getinfo(self._member)
        plain = info.compress_type == zipfile.ZIP_STORED and info.compress_size == info.file_size
        if plain:
            with _damage(self._context):
                self._bytes = Member(handle, info)
        return plain

    def check_length(self) -> None:
        """Raise `InputError` if the member is shorter than its header declares."""
        with _damage(self._context):
            if self._begin + math.prod(self.shape) * self.dtype.itemsize > self._bytes.size:
                raise EOFError(TRUNCATED)

    def read(self, begin: int, count: int) -> HostArray:
        """Return `count` rows, transposed as in `rows`. Any thread may read, but each row only once."""
        rows, columns = (*self.shape, 1)[:2]
        with _damage(self._context):
            if self.by_columns:
                return np.stack([self._at(column * rows + begin, count) for column in range(columns)])
            return self._at(begin * columns, count * columns).reshape(count, columns).T

    def _at(self, begin: int, count: int) -> HostArray:
        size = self.dtype.itemsize
        return self._bytes.read(self._begin + begin * size, count * size).view(self.dtype)

    def verify(self) -> None:
        """Raise `InputError` unless the data that was read matches the archive's checksum."""
        with _damage(self._context):
            self._bytes.verify()

    def rows(self, count: int) -> Iterator[HostArray]:
        """Yield `count` rows at a time, transposed to (columns, n); a vector is one column."""
        rows, columns = (*self.shape, 1)[:2]
        with _damage(self._context), ExitStack() as files:
            # A Fortran-order array is read by one stream per column.
            streams = [files.enter_context(self._open()) for _ in range(columns if self.by_columns else 1)]
            for column, stream in enumerate(streams):
                _skip(stream, column * rows * self.dtype.itemsize)
            for start in range(0, rows, count):
                n = min(count, rows - start)
                if self.by_columns:
                    yield np.stack([self._numbers(stream, n) for stream in streams])
                else:
                    yield self._numbers(streams[0], n * columns).reshape(n, columns).T
            _skip(streams[-1], None)  # zipfile verifies the checksum at the member's end

    def _numbers(self, stream: IO[bytes], count: int) -> HostArray:
        size = count * self.dtype.itemsize
        data = stream.read(size)
        if len(data) < size:
            raise EOFError(TRUNCATED)
        return np.frombuffer(data, self.dtype)


def _skip(stream: IO[bytes], size: int | None) -> None:
    """Read and discard `size` bytes, or everything to the end; seeking would omit the checksum."""
    while size is None or size > 0:
        got = len(stream.read(_CHUNK if size is None else min(size, _CHUNK)))
        if not got:
            return
        size = None if size is None else size - got


@contextmanager
def _damage(context: str) -> Iterator[None]:
    try:
        yield
    except InputError:
        raise
    except DAMAGED as error:
        raise InputError(f"{context}: {' '.join(str(error).split()) or type(error).__name__}") from None


def small_integers(archive: zipfile.ZipFile, name: str, most: int) -> list[int]:
    """Return a whole number, or a vector of at most `most` whole numbers, from an archive."""
    array = _Array(archive, name)
    if len(array.shape) > 1 or array.dtype.kind not in "iu" or math.prod(array.shape) > most:
        raise InputError(f"'{name}' is {array}, expected one whole number or a few")
    array.shape = (math.prod(array.shape),)
    return [int(number) for piece in array.rows(most) for number in piece[0]]


def _lengths(archive: zipfile.ZipFile, order: int) -> tuple[int, ...] | None:
    if not {"shape", "shape.npy"} & set(archive.namelist()):
        return None
    shape = _Array(archive, "shape")
    if len(shape.shape) != 1 or shape.dtype.kind not in "iu":
        raise InputError(f"'shape' is {shape}, expected (order,) integers")
    if shape.shape[0] != order:
        raise InputError(f"'shape' has {shape.shape[0]} modes, 'indices' has {order}")
    lengths = tuple(int(length) for piece in shape.rows(order) for length in piece[0])
    for mode, length in enumerate(lengths):
        if not 1 <= length <= MAX_MODE_LENGTH:
            raise InputError(f"length {length} of mode {mode} is outside 1..{MAX_MODE_LENGTH}")
    return lengths


def _labels(archive: zipfile.ZipFile, lengths: tuple[int, ...] | None) -> Labels | None:
    """Return labels stored under the names that models use; see `partitioner.tensors.labels.named`."""
    names = [member.removesuffix(".npy") for member in archive.namelist()]
    if "labels_0" not in names:
        return None
    if lengths is None:
        raise InputError("holds labels, but no 'shape'")
    with _damage("cannot read labels"):
        arrays = {name: _vector(archive, name) for name in names if name.startswith(("labels_", "names"))}
        return Labels.of(find(arrays, len(lengths)), lengths)


def _vector(archive: zipfile.ZipFile, name: str) -> HostArray:
    array = _Array(archive, name)
    if len(array.shape) != 1:
        raise InputError(f"'{name}' is {array}, expected a vector")
    return np.concatenate([np.empty(0, array.dtype), *(piece[0] for piece in array.rows(ROWS))])
