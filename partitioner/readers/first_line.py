"""Detect a one-line header in a text file, which would otherwise be read as a nonzero.

Some tools write a header of several lines, which `head` reads. Others write one line, as Matrix Market does: ``I J K
nnz``, or the order first, ``3 I J K``. Such a line has as many columns as a nonzero. It is a header if all other
nonzeros are within these lengths, and either their number is the declared one or their highest indices equal the
lengths.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from os import PathLike, fspath
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from ..errors import InputError, warn
from ..tensors.ingest import MIN_ORDER

MIN_OTHERS = 2  # nonzeros; fewer prove nothing
REMEDY = (
    "if so, put # before it; if it is a nonzero, insert two lines before it: the order {order}, and the mode lengths"
)


class LineKind(NamedTuple):
    """A possible meaning of a line: description, mode lengths, and the number of nonzeros if declared."""

    what: str
    lengths: tuple[int, ...]
    nonzeros: int | None


@dataclass(frozen=True)
class FirstLine:
    """The first line of whole numbers, and the highest indices of all other lines, counted from 1.

    Parameters
    ----------
    tokens : tuple of int
        The numbers in the line.
    line : int
        Line number.
    no_values : bool
        Whether lines contain only indices.
    highest : tuple of int
        Highest index per mode in other lines; empty if unknown.
    """

    tokens: tuple[int, ...]
    line: int
    no_values: bool = False
    highest: tuple[int, ...] = ()

    @property
    def kinds(self) -> list[LineKind]:
        """The headers that the line may be, given the other lines so far."""
        order = len(self.tokens) - (not self.no_values)
        found = [LineKind("mode lengths", self.tokens, None)] if self.no_values else []
        if not self.no_values and self.tokens[0] == order:
            found.append(LineKind("order and mode lengths", self.tokens[1:], None))
        if not self.no_values:
            found.append(LineKind("mode lengths and number of nonzeros", self.tokens[:-1], self.tokens[-1]))
        highest = self.highest or (1,) * order
        return [each for each in found if order >= MIN_ORDER and np.all(np.less_equal(highest, each.lengths))]

    def beside(self, columns: NDArray[np.int32]) -> FirstLine:
        """Return this line updated with further nonzeros, whose indices count from 0."""
        if not columns.shape[1]:
            return self
        return self.joined((columns.max(axis=1) + np.int64(1)).tolist())

    def joined(self, highest: Sequence[int]) -> FirstLine:
        """Return this line updated with further highest indices."""
        return replace(self, highest=tuple(map(max, highest, self.highest or highest)))

    def verdict(self, nonzeros: int) -> tuple[str, bool] | None:
        """Return which header the line is, and whether that is certain; None if it is one of `nonzeros` nonzeros."""
        others = nonzeros - 1
        for what, lengths, declared in self.kinds if others >= MIN_OTHERS and self.highest else ():
            if declared not in (None, others):
                continue
            tight = self.highest == lengths and not self.no_values
            return what, tight or (declared is not None and others > MIN_OTHERS)
        return None

    def message(self, what: str) -> str:
        """Return a message about a header."""
        order = len(self.tokens) - (not self.no_values)
        return f"looks like a header on one line ({what}), not a nonzero; {REMEDY.format(order=order)}"


def judge(path: str | PathLike[str], first: FirstLine | None, nonzeros: int) -> None:
    """Raise `InputError` if the first line of a text file is certainly a header."""
    verdict = None if first is None else first.verdict(nonzeros)
    if first is not None and verdict is not None and verdict[1]:
        raise InputError(first.message(verdict[0]), path=path, line=first.line)


def warn_of_header(path: str | PathLike[str], first: FirstLine | None, nonzeros: int) -> None:
    """Warn if the first line of a text file is probably a header."""
    verdict = None if first is None else first.verdict(nonzeros)
    if first is not None and verdict is not None:
        text = f"{fspath(path)}, line {first.line}: is read as a nonzero, but {first.message(verdict[0])}"
        warn(text.replace(", not a nonzero", ""))


def join(parts: Sequence[tuple[FirstLine | None, int]]) -> FirstLine | None:
    """Join the first lines of all parts of a file, each with the number of nonzeros in its part."""
    lines = [first for first, nonzeros in parts if nonzeros]
    joined_line = lines[0] if lines else None
    for first in lines:
        if first is None or joined_line is None:
            return None
        joined_line = joined_line.joined(first.highest) if first.highest else joined_line
    return joined_line
