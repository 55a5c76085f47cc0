"""A tensor's nonzeros in chunks of bounded size, and files in parts, which ranks read side by side."""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from os import PathLike
from typing import Any, Protocol

import numpy as np
from numpy.typing import NDArray

from ..errors import InputError
from ..tables import Nonzeros, Pile
from ..threads import usable_cores

Progress = Callable[[int, int | None], None]

MOST_THREADS = 16  # about as many as those that read the file in turn can feed


class BrokenError(Exception):
    """The bytes end, or cannot be read, after those that have been given."""


@dataclass(frozen=True)
class Outcome:
    """How the reading of a part ended; small, so that each rank can be told of all.

    Attributes
    ----------
    order : int
        The number of modes; 0 if nobody but the reader of the first part can know it (a pipe).
    lengths : tuple of int, optional
        The mode lengths, where the file declares them.
    nonzeros, lines : int
        How many the part holds; up to its fault, if there is one. Those of the file's head are the first part's.
    fault : InputError, optional
        What is wrong with it first; a line is counted from the part's own first one.
    declared : tuple of int, optional
        The number of nonzeros that the file declares, and the line where it does.
    """

    order: int
    lengths: tuple[int, ...] | None
    nonzeros: int
    lines: int = 0
    fault: InputError | None = None
    declared: tuple[int, int] | None = None


class Part(Protocol):
    """The nonzeros of a part of a file, read once. See `open_part`.

    Attributes
    ----------
    order, lengths
        As in `Outcome`, from the start.
    dtype : dtype
        Of the values: float64, or float32 if an archive holds such.
    expected : int
        About how many nonzeros there are; 0 if that cannot be told.
    """

    order: int
    lengths: tuple[int, ...] | None
    dtype: np.dtype[Any]
    expected: int

    @property
    def outcome(self) -> Outcome:
        """What was read, once that has ended."""

    def fill(self, pile: Pile) -> bool:
        """Put nonzeros on a pile until it is full or all are read; tell whether there are more.

        Indices are counted from 0. Reading ends at a fault, without raising.
        """


def chunks(part: Part, limit: int) -> Iterator[tuple[NDArray[np.int32], NDArray[np.floating], bool]]:
    """Yield a part's nonzeros, `limit` at a time, as (order, n) and (n,) arrays, and whether there are more."""
    more = True
    while more:
        pile = Pile(part.order, part.dtype, limit, part.expected)
        more = part.fill(pile)
        if pile.size:
            yield *pile.take(), more


def settle(path: str | PathLike[str], outcomes: Sequence[Outcome]) -> Outcome:
    """Make one outcome of those of all parts, in their order.

    Raises
    ------
    InputError
        If there is a fault: the first one of the file, with its line of the file, whichever part it was in.
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
    return Outcome(first.order, first.lengths, nonzeros, lines)


def collect(path: str | PathLike[str], part: Part) -> Nonzeros:
    """Return all nonzeros of a file that is read as one part: (order, nnz) indices and (nnz,) values."""
    pile = Pile(part.order, part.dtype, sys.maxsize, part.expected)
    part.fill(pile)
    settle(path, [part.outcome])
    return pile.take()


@contextmanager
def naming(path: str | PathLike[str]) -> Iterator[None]:
    """Turn what goes wrong with a file into an `InputError` that names it."""
    try:
        yield
    except FileNotFoundError:
        raise InputError("no such file", path=path) from None
    except OSError as error:
        raise InputError(error.strerror or str(error), path=path) from None
    except InputError as error:
        raise InputError(error.cause, path=path, line=error.line) from None


def usable_threads() -> int:
    """Return how many threads are of use: as many as this process may use cores, but not very many."""
    return min(usable_cores(), MOST_THREADS)
