"""Lines of CSV that do not have as many fields as the others: refused, with the line, rather than skipped."""

from __future__ import annotations

import csv
import io
from collections.abc import Iterator, Sequence
from itertools import islice

from ...errors import InputError
from .database import Database, quoted

DELIMITERS = ",", ";", "\t", "|"
SHOWN = 60  # characters of a line in an error
DIRECTIVE = "sep="  # a first line that names the delimiter, for spreadsheets


def check_first_lines(database: Database, files: Sequence[str], options: dict[str, str]) -> None:
    """Raise `InputError` if DuckDB would skip first lines other than blank ones, comments and ``sep=;``.

    Parameters
    ----------
    database : Database
    files : sequence of str
    options : dict
        Options of DuckDB's reader, with which the files are looked at.
    """
    how = "".join(f", {name} = {value}" for name, value in options.items())
    for file in files:
        ((skipped,),) = database.run(f"SELECT SkipRows FROM sniff_csv({quoted(file)}{how})")
        for number, line in enumerate(islice(_lines(file), skipped), 1):
            text = line.strip()
            if text and not text.startswith("#") and not text.lower().startswith(DIRECTIVE):
                cause = f"has fewer fields than the lines below it ({text[:SHOWN]}): remove this line, or complete it"
                raise _fault(cause, file, files, number)


def check_fields(files: Sequence[str], names: Sequence[str]) -> None:
    """Raise `InputError` if lines of different numbers of fields are why DuckDB found one column only."""
    delimiter = next((mark for mark in DELIMITERS if mark in names[0]), None) if len(names) == 1 else None
    if delimiter is None:
        return
    for file in files:
        rows = csv.reader(_lines(file), delimiter=delimiter)
        expected = len(next(rows, []))
        for row in rows:
            if row and len(row) != expected:
                cause = f"has {len(row)} fields, but line 1 has {expected}: correct it, or quote what has the delimiter"
                raise _fault(cause, file, files, rows.line_num)


def _fault(cause: str, file: str, files: Sequence[str], line: int) -> InputError:
    """Return an error that names the file, too, if it is one of several: callers add the name of the first."""
    return InputError(f"{file}, line {line}: {cause}") if len(files) > 1 else InputError(cause, line=line)


def _lines(file: str) -> Iterator[str]:
    import pyarrow

    with pyarrow.input_stream(file, compression="detect") as stream:
        yield from io.TextIOWrapper(stream, "utf-8-sig", errors="replace", newline="")
