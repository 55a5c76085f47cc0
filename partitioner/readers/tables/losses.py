"""What is lost of a text when its numbers and dates are read as such: said once, with what keeps it."""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence

from .database import Database, identifier, quoted
from .files import FileTable
from .keys import REAL, Key

DATE = r"\s*(\d{1,2})([-/. ])(\d{1,2})[-/. ](\d{2,4})(?:\D.*)?"
LOOKED_AT = 100  # dates of which the form is looked at first
EXACT = 1 << 53  # the largest whole number up to which a double has all
PLAIN = re.compile(r"[A-Za-z_]\w*", re.ASCII)


def staged(keys: Sequence[Key], aggregate: bool) -> list[str]:
    """Return columns of what is written for a key where its label, as text, is something else."""
    columns = []
    for k, key in enumerate(keys):
        if key.written is not None:
            other = f"CASE WHEN {key.written} <> CAST({key.label} AS VARCHAR) THEN {key.written} END"
            columns.append(f"{f'max({other})' if aggregate else other} AS __written{k}")
    return columns


def lost_texts(database: Database, keys: Sequence[Key], rows: str) -> Iterator[str]:
    """Yield warnings of keys whose labels stand for several texts, or for another number than is written."""
    for k, key in enumerate(keys):
        if key.written is None or database.run(f"SELECT count(__written{k}) FROM {rows}") == [(0,)]:
            continue
        text = f"coalesce(__written{k}, CAST(__key{k} AS VARCHAR))"
        texts = f"SELECT DISTINCT __key{k} AS label, {text} AS text FROM {rows}"
        rounded = f"abs(label) >= {EXACT} AND max(regexp_full_match(text, '[+-]?[0-9]+'))"
        several = "count(*) > 1" + (f" OR ({rounded})" if key.kind in REAL else "")
        select = f"SELECT label, min(text) AS low, max(text) AS high FROM ({texts}) WHERE label IS NOT NULL"
        found = f"{select} GROUP BY label HAVING {several}"
        first = ", ".join(f"min_by({each}, label)" for each in ("CAST(label AS VARCHAR)", "low", "high"))
        ((count, label, low, high),) = database.run(f"SELECT count(*), {first} FROM ({found})")
        if count:
            some = low if low == high else f"{low} and {high}"
            yield (
                f"--key {key.text!r}: read as {key.kind}, in which texts are not kept ({some}: {label}); "
                f"to keep them as labels, use {_name(key.text)}::VARCHAR"
            )


def doubtful_dates(table: FileTable, paths: Sequence[str]) -> Iterator[str]:
    """Yield warnings of dates in which day and month may be the other way round."""
    for name, kind in table.dated():
        for path, (file, _, taken) in zip(paths, table.formats(kind), strict=True):
            example = _doubtful(table, file, name)
            if example is None:
                continue
            shape = taken or "%y/%m/%d"
            where = f" of {path}" if len(paths) > 1 else ""
            other = _swapped(shape, example)
            yield (
                f"column {name}{where}: dates such as {example} are read as {shape}, but may be {other}: "
                f"no day is above 12; if so, use strptime({_name(name)}::VARCHAR, {quoted(other)})"
            )


def _doubtful(table: FileTable, file: str, name: str) -> str | None:
    """Return a date of a column whose day and month may be the other way round, None if something tells."""
    column = identifier(name)
    some = table.texts(name, f"{column} IS NOT NULL", file, LOOKED_AT)
    if not any(re.fullmatch(DATE, text) for text in some):
        return None
    first, third = (f"CAST(regexp_extract({column}, {quoted(DATE)}, {k}) AS INTEGER)" for k in (1, 3))
    such = f"regexp_full_match({column}, {quoted(DATE)})"
    if table.texts(name, f"{such} AND ({first} > 12 OR {third} > 12)", file):
        return None
    found = table.texts(name, f"{such} AND {first} <> {third}", file)
    return found[0] if found else None


def _swapped(shape: str, example: str) -> str:
    """Return the format with day and month the other way round."""
    if shape.startswith("%y"):  # no format of DuckDB's: a year of two digits, read as one of the first century
        mark = re.fullmatch(DATE, example)
        return "%d/%m/%y".replace("/", mark[2] if mark else "/")
    return shape.replace("%d", "%?").replace("%m", "%d").replace("%?", "%m")


def _name(column: str) -> str:
    """Return a column as it is written in an expression."""
    return column if PLAIN.fullmatch(column) else identifier(column)
