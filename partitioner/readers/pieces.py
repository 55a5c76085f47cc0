"""Nonzeros in chunks of bounded size, from parts of a file that ranks read at the same time."""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, replace
from os import PathLike
from typing import Any, Protocol

import numpy as np
from numpy.typing import NDArray

from ..errors import InputError
from ..host.threads import usable_cores
from ..sorting.tables import Nonzeros, Pile
from ..tensors.labels import Labels
from ..tensors.sparse import check_order
from .first_line import FirstLine, join, judge

Progress = Callable[[int, int | None], None]

MOST_THREADS = 16  # reading the file is serial and feeds about this many parsing threads


class BrokenError(Exception):
    """The file is truncated, damaged or unreadable after the bytes returned so far."""


@dataclass(frozen=True)
class Outcome:
    """How the reading of a part ended; small, as ranks exchange it.

    The numbers of nonzeros and lines are those up to its fault if there is one. The header's lines count for part 0.
    """

    order: int  # 0 if only the reader of part 0 can know it (a pipe)
    lengths: tuple[int, ...] | None  # declared
    nonzeros: int
    lines: int = 0
    fault: InputError | None = None  # the first; its line is counted from the start of the part
    declared: tuple[int, int] | None = None  # number of nonzeros, and the line that declares it
    base: int = 0  # the lowest index in the file
    doubtful: bool = False  # text without a header, whose values, of which some are looked at, could be indices
    labels: Labels | None = None  # of a table
    first: FirstLine | None = None  # of text without a header: its first line, if that may be one


class FilePart(Protocol):
    """The nonzeros of a part of a file, read once. See `open_part`; `order` and `lengths` are as in `Outcome`."""

    order: int
    lengths: tuple[int, ...] | None
    dtype: np.dtype[Any]  # of the values: float32 if an archive holds these, else float64
    expected: int  # about how many nonzeros there are; 0 if unknown

    @property
    def outcome(self) -> Outcome:
        """The outcome, after reading has ended."""

    def fill(self, pile: Pile) -> bool:
        """Add nonzeros to a pile until it is full or all are read; return whether there are more.

        Indices are counted from 0. Reading ends at a fault, without raising.
        """


class ArrayPart:
    """A part whose nonzeros are arrays, for readers that get them as a whole. See `FilePart`.

    Parameters
    ----------
    columns : (order, n) array of int
        Indices, counted from 0.
    values : (n,) array of float
    lengths : sequence of int, optional
        The mode lengths that the file declares.
    """

    def __init__(self, columns: NDArray[Any], values: NDArray[Any], lengths: Sequence[int] | None = None) -> None:
        check_order(len(columns))
        single = values.dtype == np.float32
        self._left: Nonzeros | None = (columns.astype(np.int32), values.astype(np.float32 if single else np.float64))
        self.order, self.dtype, self.expected = len(columns), self._left[1].dtype, values.size
        self.lengths = None if lengths is None else tuple(lengths)
        self._outcome = Outcome(self.order, self.lengths, values.size)

    @property
    def outcome(self) -> Outcome:
        """See `FilePart`."""
        return self._outcome

    def fill(self, pile: Pile) -> bool:
        """See `FilePart`."""
        if self._left is not None:
            self._left = pile.add(*self._left)
        return self._left is not None


def chunks(part: FilePart, limit: int) -> Iterator[tuple[NDArray[np.int32], NDArray[np.floating], bool]]:
    """Yield a part's nonzeros, some at a time.

    Parameters
    ----------
    part : Part
        See `open_part`.
    limit : int
        Nonzeros at a time, at most.

    Yields
    ------
    (order, n) int32 array, (n,) float array, bool
        Indices counted from 0, values, and whether there are more.
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
        The file, which errors name.
    outcomes : sequence of Outcome
        Of all parts, in order.

    Returns
    -------
    Outcome
        Of the whole file: its order, declared mode lengths and number of nonzeros.

    Raises
    ------
    InputError
        The file's first fault, if there is one, with its line counted from the start of the file. Or if its first line
        is a header that would be read as a nonzero.
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
    path: str | PathLike[str], labels: Labels | None, lengths: Sequence[int], wanted: Sequence[int]
) -> None:
    """Raise `InputError` if modes that have labels are to have other lengths."""
    if labels is not None and tuple(wanted) != tuple(lengths):
        raise InputError("has a label for each index: --shape (shape=) does not go with labels", path=path)


def collect(path: str | PathLike[str], part: FilePart) -> Nonzeros:
    """Read a file in one part; return (order, nnz) indices and (nnz,) values."""
    pile = Pile(part.order, part.dtype, sys.maxsize, part.expected)
    part.fill(pile)
    settle(path, [part.outcome])
    return pile.take()


@contextmanager
def naming(path: str | PathLike[str]) -> Iterator[None]:
    """Turn errors of a file into an `InputError` that names it."""
    try:
        yield
    except FileNotFoundError:
        raise InputError("no such file", path=path) from None
    except OSError as error:
        raise InputError(error.strerror or str(error), path=path) from None
    except InputError as error:
        raise InputError(error.cause, path=path, line=error.line) from None


def cause_of(error: Exception) -> str:
    """Return what another library says is wrong, in one line."""
    return " ".join(str(error).split()) or type(error).__name__


def usable_threads() -> int:
    """Return the default number of parsing threads: one per usable core, at most `MOST_THREADS`."""
    return min(usable_cores(), MOST_THREADS)
