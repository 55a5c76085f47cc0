"""Tables of results as pandas DataFrames."""

from __future__ import annotations

import csv
import io
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any

from ..errors import InputError

if TYPE_CHECKING:
    from pandas import DataFrame


def pandas(what: str) -> Any:
    """Return the module pandas; raise `InputError`, which begins with `what`, if it is not installed."""
    try:
        import pandas
    except ImportError:
        raise InputError(f"{what}: pandas is not installed") from None
    return pandas


def dataframe(columns: Mapping[str, Sequence[object]]) -> DataFrame:
    """Return a DataFrame with columns by name; raise `InputError` if pandas is not installed."""
    return pandas("to_frame()").DataFrame({name: list(values) for name, values in columns.items()})


def unused_name(name: str, columns: Mapping[str, Any]) -> str:
    """Return a name, with underscores appended if columns of that name exist."""
    while name in columns:
        name += "_"
    return name


def from_one(columns: Mapping[str, Sequence[Any]], *names: str) -> dict[str, Sequence[object]]:
    """Return columns for people, who count from 1: the columns `names` hold numbers from 0, or None."""
    numbers = {name: [None if each is None else each + 1 for each in columns[name]] for name in names}
    return {**columns, **numbers}


def csv_text(columns: Mapping[str, Sequence[object]]) -> str:
    """Return columns as CSV text; None is an empty field, NaN is ``nan``."""
    text = io.StringIO()
    writer = csv.writer(text, lineterminator="\n")
    writer.writerow(columns)
    writer.writerows(zip(*columns.values(), strict=True))
    return text.getvalue()
