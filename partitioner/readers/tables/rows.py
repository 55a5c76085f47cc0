"""Counts and labels, determined in a first pass over the rows of a table."""

from __future__ import annotations

import os
from collections.abc import Sequence
from os import PathLike
from stat import S_ISREG
from typing import Any, NamedTuple

from ...errors import InputError
from ..form import ReadOptions
from .database import Database
from .keys import Key
from .sums import Value

ROWS = "amped_rows"
"""Name of the table of labels and values in SQL."""


class RowCounts(NamedTuple):
    """Counts of rows before they are read.

    Attributes
    ----------
    rows : int
        Number of rows.
    kept : int
        Number of rows that become nonzeros.
    missing : list of int
        For each key, the number of rows without it.
    valueless : int
        Number of rows without a value.
    listed : bool
        Whether the database has lists of all labels.
    """

    rows: int
    kept: int
    missing: list[int]
    valueless: int
    listed: bool


def facts_of(database: Database, keys: Sequence[Key], value: Value, form: ReadOptions) -> RowCounts:
    """Scan all rows once: list the labels of each key, and count missing ones."""
    kept = kept_rows(keys, form, bool(value.column))
    counts = [f"count(*) - count(__key{k})" for k in range(len(keys))]
    counts += ["count(*) - count(__value)" if value.column else "0"]
    lists = [f"list(DISTINCT __key{k}) AS list{k}" for k in range(len(keys))]
    columns = [f"[count(*), count(CASE WHEN {kept} THEN 1 END), {', '.join(counts)}] AS counts", *lists]
    create = f"CREATE TEMP TABLE amped_found AS SELECT {{}} FROM {ROWS}"
    listed = True
    with database.naming(None):
        try:
            database.run(create.format(", ".join(columns)))
        except database.no_memory:  # lists, unlike tables, cannot be spilled to disk
            database.run(create.format(columns[0]))
            listed = False
        ((counts_row,),) = database.run("SELECT counts FROM amped_found")
    rows, complete, *missing, valueless = counts_row
    return RowCounts(rows, complete, missing, valueless, listed)


def kept_rows(keys: Sequence[Key], form: ReadOptions, valued: bool) -> str:
    """Return the SQL condition of the rows that become nonzeros."""
    needed = [f"__key{k}" for k in range(len(keys)) if form.missing == "drop"] + ["__value"] * valued
    return " AND ".join(f"{each} IS NOT NULL" for each in needed) or "true"


def listed(k: int) -> str:
    """Return the SQL query of the labels of a key."""
    return f"SELECT unnest(list{k}) AS label FROM amped_found"


def labels_column(database: Database, k: int) -> Any:
    """Return the labels of a key in order, as an Arrow array."""
    import pyarrow

    batches = list(database.batches(f"SELECT label FROM amped_labels{k} ORDER BY place", 1 << 20))
    columns = [batch.column(0) for batch in batches]
    return pyarrow.chunked_array(columns).combine_chunks() if columns else pyarrow.array([], pyarrow.string())


def check_not_empty(path: str | PathLike[str]) -> None:
    """Raise `InputError` if a plain file has no bytes."""
    status = os.stat(path)
    if S_ISREG(status.st_mode) and not status.st_size:
        raise InputError("the file is empty", path=path)


def state_of(paths: Sequence[str | PathLike[str]]) -> list[tuple[int, int, int]]:
    """Return inode, size and modification time of each file, to detect changes."""
    statuses = [os.stat(path) for path in paths]
    return [(each.st_ino, each.st_size, each.st_mtime_ns) for each in statuses]
