"""Conversions of a table's text to the types of its columns, which fail where DuckDB would drop a part of the text.

DuckDB finds types in the first rows of a file. Its own reader rounds ``1.5`` in a column of whole numbers, and drops
the time of day in a column of dates and the offset in one of timestamps. So the columns in use are read as text. A text
that does not fit its column's type raises a conversion error: the types are then found again, in all rows.
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
"""The most frequent forms of timestamps. They are parsed faster than by a cast, which takes all other ones."""


def converted(text: str, kind: str, formats: Sequence[str], *, label: bool = False, whole: bool = False) -> str:
    """Return the expression of a text's value.

    Parameters
    ----------
    text : str
        An expression.
    kind : str
        The type in SQL.
    formats : sequence of str
        Of dates or timestamps, if they are not ISO 8601.
    label : bool
        Whether the value is a label: then 007 is not 7.
    whole : bool
        Whether the type was found in all rows, so that each fits it.
    """
    if kind == "TIMESTAMP":
        return moment(text, formats or ISO)
    if kind == "DATE":
        found = moment(text, formats or ("%Y-%m-%d",))
        return _checked(f"{found} = date_trunc('day', {found})", f"CAST({found} AS DATE)", text, kind)
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
    """Return the expression of a text's timestamp, in UTC if the text has an offset."""
    return f"coalesce(try_strptime({text}, [{listed(formats)}]), CAST({text} AS TIMESTAMPTZ) AT TIME ZONE 'UTC')"


def listed(texts: Sequence[str]) -> str:
    """Return strings of SQL, with commas between them."""
    return ", ".join(map(quoted, texts))


def _checked(condition: str, value: str, text: str, kind: str) -> str:
    """Return the expression of a value on a condition; else it is a conversion error, or missing if the text is."""
    return f"CASE WHEN {condition} THEN {value} ELSE CAST('\"' || {text} || '\"' AS {kind}) END"
