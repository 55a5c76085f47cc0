"""How a tensor is to be read, and a warning where a file does not say what its last column is."""

from __future__ import annotations

import argparse
import warnings
from collections.abc import Callable
from dataclasses import dataclass, fields
from os import PathLike, fspath

from ..errors import InputError, InputWarning
from ..flags import flag, whole_number, whole_numbers
from ..tensors.sparse import ValueRange
from .pieces import Outcome

MISSING = "drop", "keep"


@dataclass(frozen=True)
class ReadOptions:
    """How a tensor is to be read: one object from the command line, or a Python call, to the readers.

    Parameters
    ----------
    no_values : bool
        Lines are indices alone, as in a log of events. Each counts as a value of 1, and equal ones add up.
    compact : bool
        Number the used indices of each mode anew, in ascending order. Labels keep what they were in the file.
    dense : bool
        Hold a sparse tensor with its zeros, as a dense one.
    shape : tuple of int, optional
        Mode lengths, at least those that the indices need.
    key : tuple of str
        Of a table: SQL expressions over its columns, one a mode.
    value : str, optional
        Of a table: an expression that is summed, or an aggregate of SQL; by default rows are counted.
    where : str, optional
        Of a table: the condition of the rows that are read.
    missing : {"drop", "keep"}
        Of a table: what becomes of rows that lack a key.
    index_base : {0, 1}, optional
        Of text or an archive: the lowest index. By default 1 in text without a header that says so, 0 in archives.
    more : tuple of str
        Further files of the same table.
    """

    no_values: bool = flag(False, "lines are indices alone: each counts 1, equal ones add up")
    compact: bool = flag(False, "number the used indices of each mode anew; labels keep the old ones")
    dense: bool = flag(False, "hold a sparse tensor with its zeros")
    shape: tuple[int, ...] | None = flag(
        None, "mode lengths (as indices need)", type=whole_numbers, metavar="I1,I2,..."
    )
    key: tuple[str, ...] = flag(None, "of a table: a mode's column or SQL expression", action="append", metavar="EXPR")
    value: str | None = flag(None, "of a table: what is summed, or an aggregate (count(*))", metavar="EXPR")
    where: str | None = flag(None, "of a table: the rows that are read (all)", metavar="EXPR")
    missing: str = flag("drop", "of a table: rows without a key (drop)", choices=MISSING)
    index_base: int | None = flag(
        None, "indices count from (1; in .npz 0)", type=whole_number, choices=(0, 1), metavar="0|1"
    )
    more: tuple[str, ...] = ()

    def __post_init__(self) -> None:
        for name in ("key", "more"):
            given = getattr(self, name) or ()
            object.__setattr__(self, name, (given,) if isinstance(given, str) else tuple(given))
        for name, given in (*(("keys", each) for each in self.key), ("value", self.value), ("where", self.where)):
            if given is not None and not isinstance(given, str):
                raise InputError(f"{name}: {given!r} is no column or expression, which are strings")
        if any(not each.strip() for each in self.key):
            raise InputError("keys: an empty expression (--key '')")
        if self.index_base not in (None, 0, 1):
            raise InputError(f"index_base {self.index_base!r}: expected 0 or 1")
        if self.missing not in MISSING:
            raise InputError(f"missing {self.missing!r}: expected {' or '.join(map(repr, MISSING))}")

    @property
    def tabular(self) -> bool:
        """Whether anything is said that is for tables alone."""
        return bool(self.key) or self.value is not None or self.where is not None or self.missing != "drop"

    @classmethod
    def of(cls, given: argparse.Namespace) -> ReadOptions:
        """Return what the command line says."""
        return cls(**{field.name: getattr(given, field.name) for field in fields(cls) if field.metadata})


PLAIN = ReadOptions()


def warn_of_keys(
    path: str | PathLike[str], outcome: Outcome, duplicates: int, values: Callable[[], ValueRange]
) -> None:
    """Warn where the last column of a text, taken for values, looks like one more column of indices.

    A header declares the order, so there is no doubt. Without one, whole numbers from 1 up are no proof: counts are
    such numbers too. But a table of counts has each coordinate once, where a log of events taken for one repeats its
    coordinates; and three columns are more often three keys than a matrix. Both are known after merging, for nothing.

    Parameters
    ----------
    path : path
    outcome : Outcome
        Of the whole file.
    duplicates : int
        Nonzeros that were merged into an equal coordinate.
    values : callable
        Called for bounds on the merged values if they matter.
    """
    if not (outcome.doubtful and (duplicates or outcome.order == 2)):
        return
    low, _, grain = values()
    if low < 1 or grain != 1:
        return
    lines = "1 line repeats" if duplicates == 1 else f"{duplicates:,} lines repeat"
    repeated = f", and {lines} the columns before it" if duplicates else ""
    warnings.warn(
        f"{fspath(path)}: column {outcome.order + 1} is taken for values, but may be a key: it holds whole numbers "
        f"from 1 up{repeated}; if lines hold no values, use --no-values (no_values=True); if they do, a header of the "
        "order and the mode lengths says so",
        InputWarning,
        stacklevel=3,
    )
