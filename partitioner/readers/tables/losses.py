"""Warnings about information that is lost when text is read as numbers or dates, and how to preserve it."""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence

from .database import Database, identifier, quoted
from .files import FileTable
from .keys import REAL, Key

DATE = r"\s*(\d{1,2})([-/. ])(\d{1,2})[-/. ](\d{2,4})(?:\D.*)?"
CHECKED = 100  # dates whose format is checked first
EXACT = 1 << 53  # doubles represent all whole numbers up to here
PLAIN = re.compile(r"[A-Za-z_]\w*", re.ASCII)


def staged(keys: Sequence[Key], aggregate: bool) -> list[str]:
    """Return SQL columns with the original text of keys whose labels, as text, differ from it."""
    columns = []
    for k, key in enumerate(keys):
        if key.written is not None:
            other = f"CASE WHEN {key.written} <> CAST({key.label} AS VARCHAR) THEN {key.written} END"
            columns.append(f"{f'max({other})' if aggregate else other} AS __written{k}")
    return columns


def lost_texts(database: Database, keys: Sequence[Key], rows: str) -> Iterator[str]:
    """Yield warnings of keys whose labels represent several texts, or a number other than the original."""
    for k, key in enumerate(keys):
        if key.written is None or database.run(f"SELECT count(__written{k}) FROM {rows}") == [(0,)]:
            continue
        text = f"coalesce(__written{k}, CAST(__key{k} AS VARCHAR))"
        texts = f"SELECT DISTINCT __key{k} AS label, {text} AS text FROM {rows}"
        rounded = f"abs(label) >= {EXACT} AND max(regexp_full_match(text, '[+-]?[0-9]+'))"
        condition = "count(*) > 1" + (f" OR ({rounded})" if key.kind in REAL else "")
        select = f"SELECT label, min(text) AS low, max(text) AS high FROM ({texts}) WHERE label IS NOT NULL"
        ambiguous = f"{select} GROUP BY label HAVING {condition}"
        first = ", ".join(f"min_by({each}, label)" for each in ("CAST(label AS VARCHAR)", "low", "high"))
        ((count, label, low, high),) = database.run(f"SELECT count(*), {first} FROM ({ambiguous})")
        if count:
            texts_shown = low if low == high else f"{low} and {high}"
            yield (
                f"{key.name}: read as {key.kind}, which does not preserve texts ({texts_shown}: {label}); "
                f"to keep them as labels, use {_name(key.text)}::VARCHAR"
            )


def doubtful_dates(table: FileTable, paths: Sequence[str]) -> Iterator[str]:
    """Yield warnings of dates in which day and month may be swapped."""
    for name, kind in table.dated():
        for path, (file, _, inferred) in zip(paths, table.formats(kind), strict=True):
            example = _doubtful(table, file, name)
            if example is None:
                continue
            shape = inferred or "%y/%m/%d"
            where = f" of {path}" if len(paths) > 1 else ""
            other = _swapped(shape, example)
            yield (
                f"column {name}{where}: dates such as {example} are read as {shape}, but may be {other}: "
                f"no day exceeds 12; if so, use strptime({_name(name)}::VARCHAR, {quoted(other)})"
            )


def _doubtful(table: FileTable, file: str, name: str) -> str | None:
    """Return a date of a column whose day and month may be swapped, or None if the format is certain."""
    column = identifier(name)
    sample = table.texts(name, f"{column} IS NOT NULL", file, CHECKED)
    if not any(re.fullmatch(DATE, text) for text in sample):
        return None
    first, third = (f"CAST(regexp_extract({column}, {quoted(DATE)}, {k}) AS INTEGER)" for k in (1, 3))
    is_date = f"regexp_full_match({column}, {quoted(DATE)})"
    if table.texts(name, f"{is_date} AND ({first} > 12 OR {third} > 12)", file):
        return None
    examples = table.texts(name, f"{is_date} AND {first} <> {third}", file)
    return examples[0] if examples else None


def _swapped(shape: str, example: str) -> str:
    """Return the format with day and month swapped."""
    if shape.startswith("%y"):  # two-digit years, which DuckDB reads as years of the first century
        mark = re.fullmatch(DATE, example)
        return "%d/%m/%y".replace("/", mark[2] if mark else "/")
    return shape.replace("%d", "%?").replace("%m", "%d").replace("%?", "%m")


def _name(column: str) -> str:
    """Return a column name as it must be written in an expression."""
    return column if PLAIN.fullmatch(column) else identifier(column)
