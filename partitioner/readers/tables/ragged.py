"""Lines of CSV files with a wrong number of fields raise an error with their line number instead of being skipped."""

from __future__ import annotations

import csv
import io
from collections.abc import Iterator, Sequence
from itertools import islice

from ...errors import InputError
from .database import Database, quoted

DELIMITERS = ",", ";", "\t", "|"
SHOWN = 60  # characters of a line in an error message
DIRECTIVE = "sep="  # prefix of a first line that declares the delimiter, for spreadsheets


def check_first_lines(database: Database, files: Sequence[str], options: dict[str, str]) -> None:
    """Raise `InputError` if DuckDB would skip first lines other than blank lines, comments and ``sep=;``.

    Parameters
    ----------
    database : Database
        Database that can access the files.
    files : sequence of str
        The files.
    options : dict
        Options of DuckDB's reader.
    """
    arguments = "".join(f", {name} = {value}" for name, value in options.items())
    for file in files:
        ((skipped,),) = database.run(f"SELECT SkipRows FROM sniff_csv({quoted(file)}{arguments})")
        for number, line in enumerate(islice(_lines(file), skipped), 1):
            text = line.strip()
            if text and not text.startswith("#") and not text.lower().startswith(DIRECTIVE):
                cause = f"has fewer fields than the lines below it ({text[:SHOWN]}): remove or complete this line"
                raise _fault(cause, file, files, number)


def check_fields(files: Sequence[str], names: Sequence[str]) -> None:
    """Raise `InputError` if DuckDB found only one column because lines have different numbers of fields."""
    delimiter = next((mark for mark in DELIMITERS if mark in names[0]), None) if len(names) == 1 else None
    if delimiter is None:
        return
    for file in files:
        rows = csv.reader(_lines(file), delimiter=delimiter)
        expected = len(next(rows, []))
        for row in rows:
            if row and len(row) != expected:
                cause = f"has {len(row)} fields, but line 1 has {expected}"
                cause += ": correct it, or quote fields that contain the delimiter"
                raise _fault(cause, file, files, rows.line_num)


def _fault(cause: str, file: str, files: Sequence[str], line: int) -> InputError:
    """Return an error that names the file if there are several; callers add the name of the first file."""
    return InputError(f"{file}, line {line}: {cause}") if len(files) > 1 else InputError(cause, line=line)


def _lines(file: str) -> Iterator[str]:
    import pyarrow

    with pyarrow.input_stream(file, compression="detect") as stream:
        yield from io.TextIOWrapper(stream, "utf-8-sig", errors="replace", newline="")
