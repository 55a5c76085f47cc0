"""Keys of a table: expressions of SQL, the kind of label that each one makes, and the labels themselves."""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from ...errors import InputError
from ...tensors.labels import TEXT, plain_times
from .bins import filled
from .database import EVENTS, Database, quoted
from .expressions import TableColumns

WHOLE = "TINYINT SMALLINT INTEGER BIGINT UTINYINT USMALLINT UINTEGER UBIGINT".split()
LARGE = "HUGEINT", "UHUGEINT"
REAL = "FLOAT", "DOUBLE"
MOMENTS = "DATE", "TIMESTAMP", "TIMESTAMP_S", "TIMESTAMP_MS", "TIMESTAMP_NS"
DURATIONS = "TIME", "INTERVAL", "TIME_NS"
NUMBERS = ("BOOLEAN", *WHOLE, *LARGE, *REAL, "DECIMAL")
LONGEST = 1 << 20  # bytes of a label that is computed: DuckDB's limit of memory does not count texts in the making
NESTED = re.compile(r"\]$|^(STRUCT|MAP|UNION|VARIANT|LIST)\b")
"""Types of several values."""
PARTS = "date_part", "datepart"


@dataclass
class Key:
    """A mode of the tensor.

    Attributes
    ----------
    text : str
        The expression as it was given: the mode's name.
    sql : str
        The expression in parentheses.
    kind : str
        Its type in SQL.
    function, unit : str or None
        The function that is called outermost, and the unit of time that it is given.
    written : str or None
        If it is a column of a text, and no text itself: the expression of what is written there.
    computed : bool
        Whether it is more than a column, so that its labels may be longer than any value of the table.
    column : int or None
        The position of the column that it is, if it is one.
    """

    text: str
    sql: str
    kind: str
    function: str | None = None
    unit: str | None = None
    written: str | None = None
    computed: bool = False
    column: int | None = None

    @property
    def may_be_category(self) -> bool:
        """Whether its labels may have another order than their own; DuckDB's enums have theirs, and times make bins."""
        own = (*MOMENTS, *DURATIONS, "TIMESTAMP WITH TIME ZONE")
        return self.column is not None and self.kind not in own and not self.kind.startswith("ENUM")

    @property
    def label(self) -> str:
        """The expression of what becomes its labels: missing where it is no number, or no time."""
        key = self.sql
        if self.kind in (*WHOLE, "BOOLEAN") or self.kind.startswith("ENUM"):
            return key
        if self.kind == "VARCHAR":
            return self._bounded(key)
        if self.kind in LARGE:
            told = quoted(f"--key {self.text!r}: a number of more than 64 bits: use ({self.text})::VARCHAR")
            fits = f"{key} BETWEEN {-(1 << 63)} AND {(1 << 63) - 1}"
            return f"CASE WHEN {fits} THEN CAST({key} AS BIGINT) ELSE error({told}) END"
        if self.kind in REAL:
            return f"CASE WHEN NOT isnan({key}) THEN {key} END"
        if self.kind.startswith("DECIMAL"):
            told = quoted(f"--key {self.text!r}: more digits than a double keeps: use ({self.text})::VARCHAR")
            double = f"CAST({key} AS DOUBLE)"
            kept = f"CAST(CAST({double} AS VARCHAR) AS {self.kind}) = {key}"  # what a double is in its fewest digits
            return f"CASE WHEN {kept} THEN {double} WHEN {key} IS NOT NULL THEN error({told}) END"
        if self.kind == "TIMESTAMP WITH TIME ZONE":
            return f"CASE WHEN isfinite({key}) THEN {key} AT TIME ZONE 'UTC' END"
        if self.kind == "JSON":
            return f"({key} ->> '$')"  # no quotes around text
        if self.kind in MOMENTS:
            return f"CASE WHEN isfinite({key}) THEN {key} END"
        if self.kind in DURATIONS:
            return f"epoch_us({key})"
        return self._bounded(f"CAST({key} AS VARCHAR)")

    def _bounded(self, text: str) -> str:
        """Return the expression of a text that is refused where it is too long for a label."""
        if not self.computed:
            return text
        told = quoted(f"--key {self.text!r}: a label of more than {LONGEST:,} bytes")
        return f"CASE WHEN strlen({text}) <= {LONGEST} THEN {text} WHEN {text} IS NOT NULL THEN error({told}) END"

    def labels(self, column: Any, missing: bool) -> tuple[NDArray[Any], NDArray[np.int32]]:
        """Return the labels of the mode, and where those that occur are among them.

        Parameters
        ----------
        column : Arrow array
            Those that occur, ascending, without a missing one.
        missing : bool
            Whether there is a missing label, too: it comes last.
        """
        labels, places = filled(self._array(column), self.function, self.unit)
        labels = plain_times(labels) if labels.dtype.kind == "M" else labels
        return _with_missing(labels) if missing else labels, places

    def _array(self, column: Any) -> NDArray[Any]:
        import pyarrow

        kind = column.type
        if pyarrow.types.is_dictionary(kind):
            column = column.cast(kind.value_type)
        if column.type in (pyarrow.string(), pyarrow.large_string(), pyarrow.string_view()):
            return np.array(column.to_pylist(), TEXT)
        array: NDArray[Any] = column.to_numpy(zero_copy_only=False)
        return array.astype("m8[us]") if self.kind in DURATIONS else array


def _with_missing(labels: NDArray[Any]) -> NDArray[Any]:
    """Return labels and a missing one: NaN, NaT or None. Numbers that NaN does not go with become strings."""
    if labels.dtype.kind in "Mm":
        return np.append(labels, np.array(["NaT"], labels.dtype))
    if labels.dtype.kind == "f":
        return np.append(labels, np.array([np.nan], labels.dtype))
    if labels.dtype.kind in "iu" and (not labels.size or max(abs(int(labels.min())), int(labels.max())) <= 1 << 53):
        return np.append(labels.astype(np.float64), np.nan)
    return np.array([*(label if isinstance(label, str) else str(label) for label in labels.tolist()), None], TEXT)


def function_of(tree: dict[str, Any]) -> tuple[str | None, str | None]:
    """Return the function that an expression calls outermost, but for casts, and its first argument if a constant."""
    while tree.get("class") == "CAST":
        tree = tree["child"]
    if tree.get("class") != "FUNCTION":
        return None, None
    name = str(tree.get("function_name", "")).lower()
    given = [each.get("expression", each) for each in tree.get("arguments") or tree.get("children") or []]
    first = given[0] if given and given[0].get("class") == "CONSTANT" else {}
    value = first.get("literal", {}).get("text") or first.get("value", {}).get("value")  # DuckDB 2, and before
    unit = value.lower() if isinstance(value, str) else None
    return "date_part" if name in PARTS else "date_trunc" if name == "datetrunc" else name, unit


def keys_of(database: Database, columns: TableColumns, texts: Sequence[str]) -> list[Key]:
    """Return keys, bound to the table; raise `InputError` that names the one that is wrong."""
    keys = []
    for text in texts:
        told = f"--key {text!r}"
        sql, tree = columns.expression(database, told, text)
        with database.naming(told):
            database.describe(f"SELECT 1 FROM {EVENTS} WHERE {sql} IS NULL")  # refuses aggregates
            ((_, kind),) = database.describe(f"SELECT {sql} FROM {EVENTS}")
        if NESTED.search(kind):
            one = "a key has one value in a row: take a part of it, or make text of it by (...)::VARCHAR"
            raise InputError(f"{told}: is {kind}: {one}")
        function, unit = function_of(tree)
        how = columns.text_of(tree), tree.get("class") != "COLUMN_REF", columns.position(tree)
        keys.append(Key(text, sql, kind, function, unit, *how))
    return keys
