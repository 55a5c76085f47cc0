"""Conversions of a table's text to column types, which fail where DuckDB would drop part of the text.

DuckDB infers types from the first rows of a file. Its reader rounds ``1.5`` in a column of integers, drops the time of
day in a column of dates, and the offset in a column of timestamps. Therefore the columns in use are read as text. Text
that does not match its column's type raises a conversion error, and types are inferred again from all rows.
"""

from __future__ import annotations

from collections.abc import Sequence

from .database import quoted
from .keys import LARGE, WHOLE

INTEGER = r"\s*[+-]?[0-9]+\s*"
NO_ZEROS = r"\s*[+-]?(0|[1-9][0-9]*)\s*"
TIME = r"\s*[0-9]{1,2}:[0-9]{1,2}(:[0-9]{1,2}(\.[0-9]+)?)?\s*"
TEMPORAL = "DATE", "TIMESTAMP"
ISO = "%Y-%m-%d %H:%M:%S", "%Y-%m-%dT%H:%M:%S", "%Y-%m-%d %H:%M:%S.%f", "%Y-%m-%dT%H:%M:%SZ"
"""The most frequent formats of timestamps, which parse faster than the cast that handles all others."""


def converted(text: str, kind: str, formats: Sequence[str], *, label: bool = False, whole: bool = False) -> str:
    """Return the SQL expression of a text's value.

    Parameters
    ----------
    text : str
        SQL expression of the text.
    kind : str
        SQL type of the value.
    formats : sequence of str
        Formats of dates or timestamps that are not ISO 8601.
    label : bool
        Whether the value becomes a label, so that 007 differs from 7.
    whole : bool
        Whether the type was inferred from all rows, so that all texts match it.
    """
    if kind == "TIMESTAMP":
        return moment(text, formats or ISO)
    if kind == "DATE":
        date = moment(text, formats or ("%Y-%m-%d",))
        return _checked(f"{date} = date_trunc('day', {date})", f"CAST({date} AS DATE)", text, kind)
    condition = None
    if kind in (*WHOLE, *LARGE):
        condition = f"regexp_full_match({text}, {quoted(NO_ZEROS if label else INTEGER)})"
    elif kind == "TIME":
        condition = f"regexp_full_match({text}, {quoted(TIME)})"
    elif kind == "BOOLEAN":
        condition = f"{text} NOT IN ('0', '1')"
    value = f"CAST({text} AS {kind})"
    return value if whole or condition is None else _checked(condition, value, text, kind)


def moment(text: str, formats: Sequence[str]) -> str:
    """Return the SQL expression of a text's timestamp, in UTC if the text has an offset."""
    return f"coalesce(try_strptime({text}, [{listed(formats)}]), CAST({text} AS TIMESTAMPTZ) AT TIME ZONE 'UTC')"


def listed(texts: Sequence[str]) -> str:
    """Return SQL string literals separated by commas."""
    return ", ".join(map(quoted, texts))


def _checked(condition: str, value: str, text: str, kind: str) -> str:
    """Return the SQL expression of a value with a condition; a conversion error if false, NULL if the text is NULL."""
    return f"CASE WHEN {condition} THEN {value} ELSE CAST('\"' || {text} || '\"' AS {kind}) END"
