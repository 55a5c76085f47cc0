"""Options for reading a tensor, and a warning if the last column of a text file may be a key."""

from __future__ import annotations

import argparse
import codecs
from collections.abc import Callable, Mapping
from dataclasses import dataclass, fields
from os import PathLike, fspath

from ..errors import InputError, warn
from ..flags import flag, whole_number, whole_numbers
from ..tensors.value_range import ValueRange
from ..wording import parameter, setting
from .pieces import Outcome

MISSING = "drop", "keep"


@dataclass(frozen=True)
class ReadOptions:
    """Options for reading a tensor, from the command line or a Python call.

    Parameters
    ----------
    no_values : bool
        Lines contain only indices, as in an event log. Each line counts as 1, and repeated indices add up.
    compact : bool
        Renumber the used indices of each mode in ascending order. Labels keep the original indices.
    dense : bool
        Convert a sparse tensor to a dense one.
    shape : tuple of int, optional
        Mode lengths; each must be larger than the mode's highest index.
    key : tuple of str
        For tables: one column or SQL expression per mode, optionally with a name: ``EXPR AS NAME``. A mapping from
        names to expressions is converted to this form.
    value : str, optional
        For tables: SQL expression that is summed, or an aggregate; by default rows are counted.
    where : str, optional
        For tables: SQL condition that selects rows.
    missing : {"drop", "keep"}
        For tables: whether rows without a key are dropped.
    index_base : {0, 1}, optional
        For text and archives: the lowest index. The default is 1 in text without a header, and 0 in archives.
    keep_zeros : bool
        Keep explicit zeros, as observed elements, instead of dropping them.
    encoding : str, optional
        For tables in text files: the name of the encoding in Python. By default it is detected.
    more : tuple of str
        Further files of the same table.
    """

    no_values: bool = flag(False, "lines contain only indices: each counts 1, repeated ones add up")
    compact: bool = flag(False, "renumber the used indices of each mode; labels keep the old ones")
    dense: bool = flag(False, "convert a sparse tensor to a dense one")
    shape: tuple[int, ...] | None = flag(
        None, "mode lengths (default: as the indices require)", type=whole_numbers, metavar="I1,I2,..."
    )
    key: tuple[str, ...] = flag(
        None, "table: column or SQL expression of a mode [AS NAME]", action="append", metavar="EXPR"
    )
    value: str | None = flag(None, "table: expression to sum, or an aggregate (default: count(*))", metavar="EXPR")
    where: str | None = flag(None, "table: condition that selects rows (default: all)", metavar="EXPR")
    missing: str = flag("drop", "table: rows without a key (default: drop)", choices=MISSING)
    index_base: int | None = flag(
        None, "lowest index (default: 1; in .npz 0)", type=whole_number, choices=(0, 1), metavar="0|1"
    )
    keep_zeros: bool = flag(False, "keep explicit zeros: they are observed elements")
    encoding: str | None = flag(None, "table: encoding of text (default: detected)", metavar="NAME")
    more: tuple[str, ...] = ()

    def __post_init__(self) -> None:
        for name in ("key", "more"):
            value = getattr(self, name) or ()
            if isinstance(value, Mapping):
                value = [f'{text} AS "{str(title).replace(chr(34), 2 * chr(34))}"' for title, text in value.items()]
            object.__setattr__(self, name, (value,) if isinstance(value, str) else tuple(value))
        for name, value in (*(("keys", each) for each in self.key), ("value", self.value), ("where", self.where)):
            if value is not None and not isinstance(value, str):
                raise InputError(f"{name}: {value!r} is not a string: expected a column or an SQL expression")
        if any(not each.strip() for each in self.key):
            raise InputError(f"{parameter('key', 'keys')}: an empty expression")
        if self.index_base not in (None, 0, 1):
            raise InputError(f"index_base {self.index_base!r}: expected 0 or 1")
        if self.missing not in MISSING:
            raise InputError(f"missing {self.missing!r}: expected {' or '.join(map(repr, MISSING))}")

        if self.encoding is not None:
            object.__setattr__(self, "encoding", codec_name(self.encoding))

    @property
    def tabular(self) -> bool:
        """Whether any option that applies only to tables is set."""
        texts = self.value, self.where, self.encoding
        return bool(self.key) or any(text is not None for text in texts) or self.missing != "drop"

    @classmethod
    def of(cls, args: argparse.Namespace) -> ReadOptions:
        """Return the options of a command line."""
        return cls(**{field.name: getattr(args, field.name) for field in fields(cls) if field.metadata})


def codec_name(name: object) -> str:
    """Return Python's name of a text encoding; raise `InputError` if it has none of this name."""
    try:
        found = codecs.lookup(str(name))
    except (LookupError, ValueError):
        found = None
    if found is None or not found._is_text_encoding:
        raise InputError(f"encoding {name!r}: unknown; expected a name such as 'utf-8', 'latin-1' or 'shift_jis'")
    return found.name


PLAIN = ReadOptions()


def warn_of_keys(
    path: str | PathLike[str], outcome: Outcome, duplicates: int, values: Callable[[], ValueRange]
) -> None:
    """Warn if the last column of a text file, which is read as values, looks like another column of indices.

    A header declares the order and so removes the doubt. Without a header, whole numbers from 1 up prove nothing, since
    counts are such numbers, too. But a table of counts has unique indices, while an event log read as one repeats them;
    and three columns are more often three keys than a matrix. Both criteria are known after merging at no cost.

    Parameters
    ----------
    path : path
        The file.
    outcome : Outcome
        Outcome of reading the whole file.
    duplicates : int
        Number of nonzeros merged with an earlier one.
    values : callable
        Returns bounds on the merged values; called only if needed.
    """
    if not (outcome.doubtful and (duplicates or outcome.order == 2)):
        return
    low, _, grain = values()
    if low < 1 or grain != 1:
        return
    lines = "1 line repeats" if duplicates == 1 else f"{duplicates:,} lines repeat"
    repeated = f", and {lines} the columns before it" if duplicates else ""
    warn(
        f"{fspath(path)}: column {outcome.order + 1} is read as values, but may be a key: it holds whole numbers from "
        f"1 up{repeated}; if lines contain no values, use {setting('no_values')}; if they do, add a header with "
        "the order and the mode lengths",
    )
