"""A header on one line of a text, which would be read as a nonzero: what the rest of the file says of it.

Some tools write a header in several lines, which `head` reads. Others write one, as Matrix Market does: ``I J K nnz``,
or the order first, ``3 I J K``. Such a line has as many columns as a nonzero. It is a header if all other nonzeros are
within these lengths, and their number is the one declared, or their highest indices are the lengths.
"""

from __future__ import annotations

import warnings
from collections.abc import Sequence
from dataclasses import dataclass, replace
from os import PathLike, fspath
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from ..errors import InputError, InputWarning
from ..tensors.sparse import MIN_ORDER

FEW = 2  # nonzeros, of which one is no proof of anything
REMEDY = "if so, put # before it; if it is a nonzero, put two lines before it: the order {order}, and the mode lengths"


class LineKind(NamedTuple):
    """What a line may be: in words, the mode lengths, and the number of nonzeros if it declares that."""

    what: str
    lengths: tuple[int, ...]
    nonzeros: int | None


@dataclass(frozen=True)
class FirstLine:
    """The first line of whole numbers, and the highest indices of all others, counted from 1.

    Parameters
    ----------
    tokens : tuple of int
    line : int
        Its number.
    no_values : bool
        Whether lines are indices alone.
    highest : tuple of int
        None are known yet by default.
    """

    tokens: tuple[int, ...]
    line: int
    no_values: bool = False
    highest: tuple[int, ...] = ()

    @property
    def kinds(self) -> list[LineKind]:
        """What headers the line may be, by what is known of the others."""
        order = len(self.tokens) - (not self.no_values)
        found = [LineKind("mode lengths", self.tokens, None)] if self.no_values else []
        if not self.no_values and self.tokens[0] == order:
            found.append(LineKind("order and mode lengths", self.tokens[1:], None))
        if not self.no_values:
            found.append(LineKind("mode lengths and number of nonzeros", self.tokens[:-1], self.tokens[-1]))
        highest = self.highest or (1,) * order
        return [each for each in found if order >= MIN_ORDER and np.all(np.less_equal(highest, each.lengths))]

    def beside(self, columns: NDArray[np.int32]) -> FirstLine:
        """Return what is known after more nonzeros, whose indices count from 0."""
        if not columns.shape[1]:
            return self
        return self.joined((columns.max(axis=1) + np.int64(1)).tolist())

    def joined(self, highest: Sequence[int]) -> FirstLine:
        """Return what is known if some indices are this high."""
        return replace(self, highest=tuple(map(max, highest, self.highest or highest)))

    def verdict(self, nonzeros: int) -> tuple[str, bool] | None:
        """Return what header the line is, and whether that is certain; None if it is a nonzero, one of so many."""
        others = nonzeros - 1
        for what, lengths, declared in self.kinds if others >= FEW and self.highest else ():
            if declared not in (None, others):
                continue
            tight = self.highest == lengths and not self.no_values
            return what, tight or (declared is not None and others > FEW)
        return None

    def told(self, what: str) -> str:
        """Return a line about a header."""
        order = len(self.tokens) - (not self.no_values)
        return f"looks like a header on one line ({what}), not a nonzero; {REMEDY.format(order=order)}"


def judge(path: str | PathLike[str], first: FirstLine | None, nonzeros: int) -> None:
    """Raise `InputError` if the first line of a text is a header for certain."""
    found = None if first is None else first.verdict(nonzeros)
    if first is not None and found is not None and found[1]:
        raise InputError(first.told(found[0]), path=path, line=first.line)


def warn_of_header(path: str | PathLike[str], first: FirstLine | None, nonzeros: int) -> None:
    """Warn if the first line of a text is likely a header."""
    found = None if first is None else first.verdict(nonzeros)
    if first is not None and found is not None:
        told = f"{fspath(path)}, line {first.line}: is read as a nonzero, but {first.told(found[0])}"
        warnings.warn(told.replace(", not a nonzero", ""), InputWarning, stacklevel=3)


def join(parts: Sequence[tuple[FirstLine | None, int]]) -> FirstLine | None:
    """Join what is known in each part of a file, given with the number of nonzeros there."""
    known = [first for first, nonzeros in parts if nonzeros]
    whole = known[0] if known else None
    for first in known:
        if first is None or whole is None:
            return None
        whole = whole.joined(first.highest) if first.highest else whole
    return whole
