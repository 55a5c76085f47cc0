"""Keys of a table: SQL expressions, the types of their labels, and the labels."""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from ...array_types import HostArray
from ...errors import InputError
from ...tensors.labels import TEXT, plain_times
from ...wording import parameter
from .bins import filled
from .database import EVENTS, Database, quoted
from .expressions import TableColumns

WHOLE = "TINYINT SMALLINT INTEGER BIGINT UTINYINT USMALLINT UINTEGER UBIGINT".split()
LARGE = "HUGEINT", "UHUGEINT"
REAL = "FLOAT", "DOUBLE"
MOMENTS = "DATE", "TIMESTAMP", "TIMESTAMP_S", "TIMESTAMP_MS", "TIMESTAMP_NS"
DURATIONS = "TIME", "INTERVAL", "TIME_NS"
NUMBERS = ("BOOLEAN", *WHOLE, *LARGE, *REAL, "DECIMAL")
MAX_LABEL = 1 << 20  # bytes of a computed label; DuckDB's memory limit does not count intermediate texts
NESTED = re.compile(r"\]$|^(STRUCT|TUPLE|ROW|MAP|UNION|VARIANT|LIST)\b")
"""Types with several values."""
PARTS = "date_part", "datepart"
NAMED = re.compile(r"\s*(.*\S)\s+AS\s+(?:\"((?:[^\"]|\"\")+)\"|(\w+))\s*", re.IGNORECASE | re.DOTALL)
"""An expression and its name. No expression ends like this, as casts end with a parenthesis."""


@dataclass
class Key:
    """A key: the expression that defines a mode of the tensor.

    Attributes
    ----------
    text : str
        The expression as the user wrote it.
    sql : str
        The expression in parentheses.
    kind : str
        Its SQL type.
    function, unit : str or None
        The outermost function, and the time unit in its arguments.
    written : str or None
        For a non-text column of a text file: expression of the original text.
    computed : bool
        Whether it is not just a column, so that labels may be longer than any value in the table.
    column : int or None
        Position of the column, if the key is just a column.
    title : str
        The name of the mode: the name in ``EXPR AS NAME``, otherwise the expression.
    """

    text: str
    sql: str
    kind: str
    function: str | None = None
    unit: str | None = None
    written: str | None = None
    computed: bool = False
    column: int | None = None
    title: str = ""

    @property
    def may_be_category(self) -> bool:
        """Whether its labels may be ordered categories. DuckDB's enums are sorted already; times form bins."""
        sorted_kinds = (*MOMENTS, *DURATIONS, "TIMESTAMP WITH TIME ZONE")
        return self.column is not None and self.kind not in sorted_kinds and not self.kind.startswith("ENUM")

    @property
    def name(self) -> str:
        """The name of the key in messages."""
        return f"{parameter('key')} {self.text!r}"

    @property
    def label(self) -> str:
        """The SQL expression of its labels, NULL for NaN and infinite times."""
        key = self.sql
        if self.kind in (*WHOLE, "BOOLEAN") or self.kind.startswith("ENUM"):
            return key
        if self.kind == "VARCHAR":
            return self._bounded(key)
        if self.kind in LARGE:
            message = quoted(f"{self.name}: a number needs more than 64 bits: use ({self.text})::VARCHAR")
            fits = f"{key} BETWEEN {-(1 << 63)} AND {(1 << 63) - 1}"
            return f"CASE WHEN {fits} THEN CAST({key} AS BIGINT) ELSE error({message}) END"
        if self.kind in REAL:
            return f"CASE WHEN NOT isnan({key}) THEN {key} END"
        if self.kind.startswith("DECIMAL"):
            message = quoted(f"{self.name}: a number has more digits than a double: use ({self.text})::VARCHAR")
            double = f"CAST({key} AS DOUBLE)"
            # The number is exact if it equals the shortest decimal of its double.
            exact = f"CAST(CAST({double} AS VARCHAR) AS {self.kind}) = {key}"
            return f"CASE WHEN {exact} THEN {double} WHEN {key} IS NOT NULL THEN error({message}) END"
        if self.kind == "TIMESTAMP WITH TIME ZONE":
            return f"CASE WHEN isfinite({key}) THEN {key} AT TIME ZONE 'UTC' END"
        if self.kind == "JSON":
            return f"({key} ->> '$')"  # without quotes around text
        if self.kind in MOMENTS:
            return f"CASE WHEN isfinite({key}) THEN {key} END"
        if self.kind in DURATIONS:
            return f"epoch_us({key})"
        return self._bounded(f"CAST({key} AS VARCHAR)")

    def _bounded(self, text: str) -> str:
        """Return the SQL expression of a text that raises an error if it is too long for a label."""
        if not self.computed:
            return text
        message = quoted(f"{self.name}: a label of more than {MAX_LABEL:,} bytes")
        return f"CASE WHEN strlen({text}) <= {MAX_LABEL} THEN {text} WHEN {text} IS NOT NULL THEN error({message}) END"

    def labels(self, column: object, missing: bool) -> tuple[HostArray, NDArray[np.int32]]:
        """Return the labels of the mode, and the positions of those that occur.

        Parameters
        ----------
        column : Arrow array
            The labels that occur, ascending, without a missing one.
        missing : bool
            Whether to append a missing label.
        """
        labels, places = filled(self._array(column), self.function, self.unit)
        labels = plain_times(labels) if labels.dtype.kind == "M" else labels
        return _with_missing(labels) if missing else labels, places

    def _array(self, column: Any) -> HostArray:
        import pyarrow

        kind = column.type
        if pyarrow.types.is_dictionary(kind):
            column = column.cast(kind.value_type)
        if column.type in (pyarrow.string(), pyarrow.large_string(), pyarrow.string_view()):
            return np.array(column.to_pylist(), TEXT)
        array: HostArray = column.to_numpy(zero_copy_only=False)
        return array.astype("m8[us]") if self.kind in DURATIONS else array


def _with_missing(labels: HostArray) -> HostArray:
    """Append a missing label: NaN, NaT or None. Integers that are not exact as doubles become strings."""
    if labels.dtype.kind in "Mm":
        return np.append(labels, np.array(["NaT"], labels.dtype))
    if labels.dtype.kind == "f":
        return np.append(labels, np.array([np.nan], labels.dtype))
    if labels.dtype.kind in "iu" and (not labels.size or max(abs(int(labels.min())), int(labels.max())) <= 1 << 53):
        return np.append(labels.astype(np.float64), np.nan)
    return np.array([*(label if isinstance(label, str) else str(label) for label in labels.tolist()), None], TEXT)


def function_of(tree: dict[str, Any]) -> tuple[str | None, str | None]:
    """Return the outermost function of an expression, ignoring casts, and its first argument if that is constant."""
    while tree.get("class") == "CAST":
        tree = tree["child"]
    if tree.get("class") != "FUNCTION":
        return None, None
    name = str(tree.get("function_name", "")).lower()
    arguments = [each.get("expression", each) for each in tree.get("arguments") or tree.get("children") or []]
    first = arguments[0] if arguments and arguments[0].get("class") == "CONSTANT" else {}
    value = first.get("literal", {}).get("text") or first.get("value", {}).get("value")  # DuckDB 2; earlier versions
    unit = value.lower() if isinstance(value, str) else None
    return "date_part" if name in PARTS else "date_trunc" if name == "datetrunc" else name, unit


def split_name(text: str, columns: Sequence[str]) -> tuple[str, str]:
    """Return the expression and the name of a key, ``EXPR AS NAME``; without a name both are the expression."""
    named = None if text in columns else NAMED.fullmatch(text)
    if named is None:
        return text, text
    expression, quoted_name, name = named.groups()
    return expression, name or quoted_name.replace('""', '"')


def keys_of(database: Database, columns: TableColumns, named: Sequence[tuple[str, str]]) -> list[Key]:
    """Return keys, bound to the table, from expressions and names; raise an `InputError` that names an invalid one."""
    keys = []
    for text, title in named:
        name = f"{parameter('key')} {text!r}"
        sql, tree = columns.expression(database, name, text)
        with database.naming(name):
            database.describe(f"SELECT 1 FROM {EVENTS} WHERE {sql} IS NULL")  # rejects aggregates
            ((_, kind),) = database.describe(f"SELECT {sql} FROM {EVENTS}")
        if NESTED.search(kind):
            advice = "a key must be a single value: select a part of it, or convert it to text with (...)::VARCHAR"
            raise InputError(f"{name}: is {kind}: {advice}")
        function, unit = function_of(tree)
        details = columns.text_of(tree), tree.get("class") != "COLUMN_REF", columns.position(tree)
        keys.append(Key(text, sql, kind, function, unit, *details, title))
    return keys
