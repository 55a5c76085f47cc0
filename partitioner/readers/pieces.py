"""Nonzeros in chunks of bounded size, from parts of a file that ranks read in parallel."""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, replace
from os import PathLike
from typing import Protocol

import numpy as np
from numpy.typing import NDArray

from ..array_types import FloatDType, Floats, HostArray, Integers
from ..errors import InputError
from ..host.threads import usable_cores
from ..sorting.tables import Nonzeros, Pile
from ..tensors.ingest import check_order
from ..tensors.labels import Labels
from ..wording import parameter
from .first_line import FirstLine, join, judge

Progress = Callable[[int, int | None], None]

MAX_THREADS = 16  # one thread reads the file and can feed about this many parsing threads


class BrokenError(Exception):
    """The file is truncated, damaged or unreadable after the bytes returned so far."""


@dataclass(frozen=True)
class Outcome:
    """Result of reading a part; small, since ranks exchange it.

    The numbers of nonzeros and lines count up to the first error, if any. Header lines count for part 0.
    """

    order: int  # 0 if only part 0 knows it (a pipe)
    lengths: tuple[int, ...] | None  # as declared
    nonzeros: int
    lines: int = 0
    fault: InputError | None = None  # the first error; its line counts from the start of the part
    declared: tuple[int, int] | None = None  # number of nonzeros, and the line that declares it
    base: int = 0  # the lowest index in the file
    doubtful: bool = False  # text without a header whose values could be indices, judging by a sample
    labels: Labels | None = None
    first: FirstLine | None = None  # of text without a header: the first line, if it may be a header


class FilePart(Protocol):
    """The nonzeros of a part of a file, which can be read once. See `open_part` and `Outcome`."""

    order: int
    lengths: tuple[int, ...] | None
    dtype: FloatDType  # of the values: float32 if an archive contains that, else float64
    expected: int  # approximate number of nonzeros; 0 if unknown

    @property
    def outcome(self) -> Outcome:
        """The outcome, available after reading."""

    def fill(self, pile: Pile) -> bool:
        """Add nonzeros to a pile until it is full or all are read; return whether more remain.

        Indices count from 0. At an error reading ends without an exception.
        """

    def close(self) -> None:
        """Close the file, if the part is not read to its end."""


class ArrayPart:
    """A part whose nonzeros are complete arrays. See `FilePart`.

    Parameters
    ----------
    columns : (order, n) array of int
        Indices, counted from 0.
    values : (n,) array of float
        Values.
    lengths : sequence of int, optional
        Mode lengths declared by the file.
    """

    def __init__(self, columns: Integers, values: HostArray, lengths: Sequence[int] | None = None) -> None:
        check_order(len(columns))
        single = values.dtype == np.float32
        self._remaining: Nonzeros | None = (
            columns.astype(np.int32),
            values.astype(np.float32 if single else np.float64),
        )
        self.order, self.dtype, self.expected = len(columns), self._remaining[1].dtype, values.size
        self.lengths = None if lengths is None else tuple(lengths)
        self._outcome = Outcome(self.order, self.lengths, values.size)

    @property
    def outcome(self) -> Outcome:
        """See `FilePart`."""
        return self._outcome

    def fill(self, pile: Pile) -> bool:
        """See `FilePart`."""
        if self._remaining is not None:
            self._remaining = pile.add(*self._remaining)
        return self._remaining is not None

    def close(self) -> None:
        """See `FilePart`: the arrays are complete."""


def chunks(part: FilePart, limit: int) -> Iterator[tuple[NDArray[np.int32], Floats, bool]]:
    """Yield the nonzeros of a part in chunks.

    Parameters
    ----------
    part : FilePart
        See `open_part`.
    limit : int
        Maximum number of nonzeros per chunk.

    Yields
    ------
    (order, n) int32 array, (n,) float array, bool
        Indices counted from 0, values, and whether more follow.
    """
    more = True
    while more:
        pile = Pile(part.order, part.dtype, limit, part.expected)
        more = part.fill(pile)
        if pile.size:
            yield *pile.take(), more


def settle(path: str | PathLike[str], outcomes: Sequence[Outcome]) -> Outcome:
    """Join the outcomes of all parts.

    Parameters
    ----------
    path : path
        The file, for error messages.
    outcomes : sequence of Outcome
        Outcomes of all parts, in order.

    Returns
    -------
    Outcome
        Outcome of the whole file: order, declared mode lengths, number of nonzeros.

    Raises
    ------
    InputError
        The first error in the file, with its line counted from the start of the file; or if the first line is a header
        that would be read as a nonzero.
    """
    first, lines = outcomes[0], 0
    for outcome in outcomes:
        fault = outcome.fault
        if fault is not None:
            raise InputError(fault.cause, path=path, line=None if fault.line is None else lines + fault.line)
        lines += outcome.lines
    nonzeros = sum(outcome.nonzeros for outcome in outcomes)
    if first.declared is not None and first.declared[0] != nonzeros:
        cause = f"the header declares {first.declared[0]} nonzeros, the file holds {nonzeros}"
        raise InputError(cause, path=path, line=first.declared[1])
    doubtful = all(outcome.doubtful for outcome in outcomes)
    line = join([(outcome.first, outcome.nonzeros) for outcome in outcomes])
    judge(path, line, nonzeros)
    return replace(first, nonzeros=nonzeros, lines=lines, declared=None, doubtful=doubtful, first=line)


def check_labelled(
    path: str | PathLike[str], labels: Labels | None, lengths: Sequence[int], requested: Sequence[int]
) -> None:
    """Raise `InputError` if `requested` mode lengths differ from those of a labelled tensor."""
    if labels is not None and tuple(requested) != tuple(lengths):
        raise InputError(f"has a label for each index: {parameter('shape')} cannot be combined with labels", path=path)


def collect(path: str | PathLike[str], part: FilePart) -> Nonzeros:
    """Read a whole file; return (order, nnz) indices and (nnz,) values."""
    pile = Pile(part.order, part.dtype, sys.maxsize, part.expected)
    part.fill(pile)
    settle(path, [part.outcome])
    return pile.take()


@contextmanager
def naming(path: str | PathLike[str]) -> Iterator[None]:
    """Convert errors about a file to an `InputError` with its name."""
    try:
        yield
    except FileNotFoundError:
        raise InputError("no such file", path=path) from None
    except OSError as error:
        raise InputError(error.strerror or str(error), path=path) from None
    except InputError as error:
        raise InputError(error.cause, path=path, line=error.line) from None


def cause_of(error: Exception) -> str:
    """Return the message of another library's error on one line."""
    return " ".join(str(error).split()) or type(error).__name__


def usable_threads() -> int:
    """Return the default number of parsing threads: one per usable core, at most `MAX_THREADS`."""
    return min(usable_cores(), MAX_THREADS)
