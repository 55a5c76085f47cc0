"""What is looked at in the rows of a table before they are read."""

from __future__ import annotations

import os
from collections.abc import Sequence
from os import PathLike
from typing import Any, NamedTuple

from ..form import ReadOptions
from .database import Database
from .keys import Key
from .sums import Value

ROWS = "amped_rows"
"""What SQL calls the rows of labels and values."""


class RowCounts(NamedTuple):
    """What is known of the rows before they are read: how many there are, are kept, and lack each key or a value."""

    rows: int
    kept: int
    missing: list[int]
    valueless: int
    listed: bool  # whether the labels of all keys are in the database


def facts_of(database: Database, keys: Sequence[Key], value: Value, form: ReadOptions) -> RowCounts:
    """Look at all rows once: list the labels of each key, and count what is missing."""
    kept = kept_rows(keys, form, bool(value.column))
    counts = [f"count(*) - count(__key{k})" for k in range(len(keys))]
    counts += ["count(*) - count(__value)" if value.column else "0"]
    lists = [f"list(DISTINCT __key{k}) AS list{k}" for k in range(len(keys))]
    columns = [f"[count(*), count(CASE WHEN {kept} THEN 1 END), {', '.join(counts)}] AS counts", *lists]
    make = f"CREATE TEMP TABLE amped_found AS SELECT {{}} FROM {ROWS}"
    listed = True
    with database.naming(None):
        try:
            database.run(make.format(", ".join(columns)))
        except database.no_memory:  # lists, unlike tables, are not spilled
            database.run(make.format(columns[0]))
            listed = False
        ((found,),) = database.run("SELECT counts FROM amped_found")
    rows, there, *missing, valueless = found
    return RowCounts(rows, there, missing, valueless, listed)


def kept_rows(keys: Sequence[Key], form: ReadOptions, valued: bool) -> str:
    """Return the condition of the rows that become nonzeros."""
    needed = [f"__key{k}" for k in range(len(keys)) if form.missing == "drop"] + ["__value"] * valued
    return " AND ".join(f"{each} IS NOT NULL" for each in needed) or "true"


def listed(k: int) -> str:
    return f"SELECT unnest(list{k}) AS label FROM amped_found"


def labels_column(database: Database, k: int) -> Any:
    """Return the labels of a key in order, as an Arrow array."""
    import pyarrow

    batches = list(database.batches(f"SELECT label FROM amped_labels{k} ORDER BY place", 1 << 20))
    columns = [batch.column(0) for batch in batches]
    return pyarrow.chunked_array(columns).combine_chunks() if columns else pyarrow.array([], pyarrow.string())


def state_of(paths: Sequence[str | PathLike[str]]) -> list[tuple[int, int, int]]:
    """Return what tells whether files were changed."""
    found = [os.stat(path) for path in paths]
    return [(each.st_ino, each.st_size, each.st_mtime_ns) for each in found]
