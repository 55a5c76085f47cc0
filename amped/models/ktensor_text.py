"""The ``ktensor`` text format of the Tensor Toolbox for CP models, as MATLAB, pyttb and GenTen write it.

    ktensor
    3               number of modes
    5 4 3           mode lengths
    2               number of components
    1.5 0.5         weights
    matrix          one block per mode; GenTen also writes facmatrix
    2               dimensions of the matrix
    5 2             its rows and columns
    ...             one row per line

Empty lines, and lines that begin with ``#``, ``%`` or ``//``, may stand between these parts. Labels are not stored.
"""

from __future__ import annotations

import os
import warnings
from collections.abc import Sequence
from typing import IO, Any

import numpy as np
from numpy.typing import NDArray

from partitioner.array_types import Floats
from partitioner.host.checksums import open_regular

from ..errors import InputError
from ..files import check_extension, check_factor, write_whole

KEYWORD = b"ktensor"
MATRICES = b"matrix", b"facmatrix"
COMMENTS = b"#", b"%", b"//"
LOOKED_AT = 1 << 12  # bytes searched for the keyword
LONGEST = 1 << 16  # longest line of a header, in bytes
ROWS = 1 << 12  # rows written at a time

Content = tuple[NDArray[np.float64], list[NDArray[np.float64]]]


def is_ktensor(path: str | os.PathLike[str]) -> bool:
    """Return whether the first word of a file, apart from comments, is ``ktensor``."""
    try:
        with open_regular(path) as file:
            start = file.read(LOOKED_AT)
    except OSError:
        return False  # the reader reports the error
    lines = (line.strip() for line in start.split(b"\n"))
    first = next((line for line in lines if line and not line.startswith(COMMENTS)), b"")
    return first.split()[:1] == [KEYWORD]


def read_ktensor(path: str | os.PathLike[str]) -> Content:
    """Read weights and factor matrices; raise `InputError` that names the line if the text is invalid."""
    try:
        with open_regular(path) as file:
            return _Text(file, path).model()
    except OSError as error:
        raise InputError(error.strerror or str(error), path=path) from None


def write_ktensor(
    path: str | os.PathLike[str],
    weights: NDArray[np.float64],
    factors: Sequence[Floats],
    replace: bool = True,
) -> None:
    """Write a model. Numbers round-trip exactly. See `write_whole`."""
    check_extension(path, "the output is text, a ktensor", ".ktn", ".txt", ".tns")

    def write(file: IO[bytes]) -> None:
        lengths = [len(factor) for factor in factors]
        _lines(
            file, [KEYWORD.decode(), str(len(lengths)), _words(lengths), str(weights.size), _words(weights.tolist())]
        )
        for factor in factors:
            _lines(file, ["matrix", "2", _words(factor.shape)])
            for begin in range(0, len(factor), ROWS):
                _lines(file, map(_words, factor[begin : begin + ROWS].astype(np.float64).tolist()))

    write_whole(path, write, replace)


def _words(numbers: Any) -> str:
    return " ".join(map(repr, numbers))


def _lines(file: IO[bytes], lines: Any) -> None:
    file.write(("\n".join(lines) + "\n").encode())


class _Text:
    """Parser of a ktensor text."""

    def __init__(self, file: IO[bytes], path: str | os.PathLike[str]) -> None:
        self._file, self._path, self._line = file, path, 0
        self._size = os.fstat(file.fileno()).st_size

    def model(self) -> Content:
        self._keyword("ktensor", [KEYWORD])
        (order,) = self._whole("number of modes", 1)
        lengths = self._whole("mode lengths", order)
        (rank,) = self._whole("number of components", 1)
        weights, factors = self._numbers("weights", rank), list[NDArray[np.float64]]()
        for mode, length in enumerate(lengths):
            self._keyword(f"matrix of mode {mode}", MATRICES)
            self._whole("number of dimensions", 1)
            shape = self._whole("rows and columns", 2)
            if shape != (length, rank):
                raise self._error(f"the matrix of mode {mode} is {shape}, expected {(length, rank)}")
            factors.append(self._numbers(f"matrix of mode {mode}", length * rank).reshape(shape))
            check_factor(factors[-1], f"the matrix of mode {mode}", self._path)
        if (found := self._next()) is not None:
            raise self._error(f"{_shown(found)} after the last matrix")
        if not np.all(np.isfinite(weights)):
            raise self._error("a weight is not finite")
        return weights, factors

    def _error(self, cause: str) -> InputError:
        return InputError(cause, path=self._path, line=self._line)

    def _next(self) -> list[bytes] | None:
        """Return the words of the next line that is neither empty nor a comment; None at the end of the file."""
        while line := self._file.readline(LONGEST):
            self._line += 1
            if line.strip() and not line.lstrip().startswith(COMMENTS):
                return line.split()
        return None

    def _next_of(self, what: str) -> list[bytes]:
        words = self._next()
        if words is None:
            raise self._error(f"the file ends before the {what}")
        return words

    def _keyword(self, what: str, words: Sequence[bytes]) -> None:
        if (line := self._next_of(what))[0].lower() not in words:
            raise self._error(f"{_shown(line)} where the {what} should begin with {words[0].decode()}")

    def _whole(self, what: str, count: int) -> tuple[int, ...]:
        words = self._next_of(what)
        if len(words) != count or not all(word.isdigit() and len(word) < 16 and int(word) for word in words):
            raise self._error(f"{_shown(words)} where the {what} should be")
        return tuple(map(int, words))

    def _numbers(self, what: str, count: int) -> NDArray[np.float64]:
        """Read `count` numbers, on any number of lines."""
        begin = self._skip()
        if 2 * count > self._size - begin + 1:
            raise self._error(f"the file ends before the end of the {what}")
        with warnings.catch_warnings():
            # NumPy before 2.3 warns about words that are not numbers.
            warnings.simplefilter("ignore", DeprecationWarning)
            try:
                numbers = np.fromfile(self._file, np.float64, count, sep=" ")
            except ValueError:
                numbers = np.empty(0)
        if numbers.size < count:
            raise self._number_error(what, begin, count)
        end = self._file.tell()
        self._file.seek(begin)
        self._line += self._file.read(end - begin).count(b"\n")
        return numbers

    def _skip(self) -> int:
        """Skip empty lines and comments; return the offset of the next line."""
        begin, line = self._file.tell(), self._line
        while (text := self._file.readline(LONGEST)) and (not text.strip() or text.lstrip().startswith(COMMENTS)):
            begin, line = self._file.tell(), line + 1
        self._file.seek(begin)
        self._line = line
        return begin

    def _number_error(self, what: str, begin: int, count: int) -> InputError:
        """Return the error for numbers that begin at an offset and are invalid or too few."""
        count_read = 0
        self._file.seek(begin)
        for line in self._file:
            self._line += 1
            for word in line.split():
                try:
                    float(word)
                except ValueError:
                    return self._error(f"{_shown([word])} in the {what} is not a number")
                count_read += 1
        return self._error(f"the file ends before the end of the {what}: {count_read} of {count} numbers")


def _shown(words: Sequence[bytes]) -> str:
    text = b" ".join(words).decode("ascii", "backslashreplace")
    return f"'{text}'" if len(text) <= 32 else f"'{text[:29]}...'"
