"""DuckDB: reads tables, and computes the expressions of their keys. It is imported where it is used.

It has no network, installs nothing, reads no file but those it is given, and sees no variable of the caller.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager, suppress
from difflib import get_close_matches
from os import PathLike, fspath, symlink
from os.path import abspath, getsize, join
from threading import Event, Thread
from typing import Any

import numpy as np
import psutil
from numpy.typing import NDArray

from ...errors import InputError
from ...host.interruptible import Caller, Scratch

EVENTS = "events"
"""What SQL calls the table."""

ARROW = "arrow"
FUNCTIONS = {
    **dict.fromkeys((".parquet", ".pq"), "read_parquet"),
    **dict.fromkeys((".csv", ".tsv", ".csv.gz", ".tsv.gz", ".csv.zst", ".tsv.zst"), "read_csv"),
    **{f".{kind}{packed}": "read_json" for kind in ("json", "jsonl", "ndjson") for packed in ("", ".gz", ".zst")},
    **dict.fromkeys((".feather", ".arrow", ".ipc"), ARROW),
}
"""DuckDB's functions that read tables, by the ending of a file's name; PyArrow reads those of `ARROW`."""

EVERY = 0.1  # seconds from one look at a query's progress to the next
SAMPLE = 1 << 16  # bytes from which the number of rows is estimated
SHARE = 0.35  # of free memory: what DuckDB may use by default
LEAST = 128 << 20  # bytes: with less it does not work
GLOB = "*?["
NOT_UTF8 = "not utf-8 encoded", "invalid UTF-8 encoding"  # parts of what DuckDB says
LEFT_OUT = "LINE ", "^", "Candidate", "Did you mean", "Possible ", "*"  # lines, of which some name DuckDB's own options
OWN = "Invalid Input Error: "  # before what this package has SQL say
MISREAD = re.compile(  # what DuckDB says of a type, or of a first quote, that comes late
    r'JSON transform error|Original Line: [^\n]*".*Expected Number of Columns', re.DOTALL
)
RAGGED = re.compile(r"CSV Error on Line: (\d+).*Expected Number of Columns: (\d+) Found: (\d+)", re.DOTALL)
UNLIKE = "It was not possible to automatically detect the CSV parsing dialect"
SETTINGS = {
    "autoinstall_known_extensions": "false",
    "autoload_known_extensions": "false",
    "allow_community_extensions": "false",
    "allow_unsigned_extensions": "false",
    "python_enable_replacements": "false",
}


def ending(path: str | PathLike[str]) -> str | None:
    """Return the ending of a table's name, None if it is no table's."""
    name = fspath(path).lower()
    return next((each for each in FUNCTIONS if name.endswith(each)), None)


def is_text(path: str | PathLike[str]) -> bool:
    """Tell whether reading a table again would be to parse it again."""
    return FUNCTIONS.get(ending(path) or "", "read_csv") not in ("read_parquet", ARROW)


def is_arrow(path: str | PathLike[str]) -> bool:
    """Tell whether a file is one of Arrow's, by its name."""
    return FUNCTIONS.get(ending(path) or "") == ARROW


def is_packed(path: str | PathLike[str]) -> bool:
    """Tell whether a file is compressed, by its name."""
    return fspath(path).lower().endswith((".gz", ".zst"))


class MisreadError(InputError):
    """A text is not what its first rows seem to say: a value is of another type."""


class EncodingError(MisreadError):
    """A text is not UTF-8."""


class Database:
    """A connection to a database of its own; a context manager.

    Parameters
    ----------
    memory : int, optional
        Bytes that it may use; by default a share of what is free.
    threads : int
    folder : path, optional
        Where what exceeds memory is spilled to, in a folder of its own that is removed.
    """

    def __init__(self, memory: int | None, threads: int, folder: str | PathLike[str] | None = None) -> None:
        try:
            import duckdb
            import pyarrow  # noqa: F401 - what it returns is in Arrow's form
        except ImportError as error:
            raise InputError(f"tables need DuckDB and PyArrow ({error}): pip install 'amped[tables]'") from None
        self._errors: type[Exception] = duckdb.Error
        self.no_memory: type[Exception] = duckdb.OutOfMemoryException
        self._folder = Scratch("amped-table-", folder)
        memory = max(LEAST, memory or int(SHARE * psutil.virtual_memory().available))
        spilled = join(self._folder.name, "spilled")
        how = {"threads": str(threads), "memory_limit": f"{memory}B", "temp_directory": spilled}
        self._misread: type[Exception] = duckdb.ConversionException
        self.names: list[str] = []  # of the table's columns, for errors
        self._connection: Any = duckdb.connect(":memory:", config={**SETTINGS, **how})
        self._caller = Caller(self._connection.interrupt)  # DuckDB's own look at signals hides or loses them
        self.run("SET TimeZone = 'UTC'")  # else parts of a time would depend on where this runs
        with suppress(self._errors):  # in a notebook DuckDB wants to draw a bar, and refuses where it has no ipywidgets
            for setting in ("enable_progress_bar_print = false", "enable_progress_bar = true", "progress_bar_time = 0"):
                self.run(f"SET {setting}")  # so that `watched` knows

    def __enter__(self) -> Database:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def close(self) -> None:
        """Let memory and files go."""
        if not self._caller.left:  # else a query has it that waits for a file
            with suppress(self._errors):
                self._connection.close()
        self._folder.close()

    @property
    def folder(self) -> str:
        """Where temporary files may be, which are removed with it."""
        return self._folder.name

    def allow(self, paths: Sequence[str | PathLike[str]]) -> list[str]:
        """Let SQL see some files, and no others; return their names, in which DuckDB sees no pattern."""
        names = [self._plain(abspath(path), number) for number, path in enumerate(paths)]
        self.run(f"SET allowed_paths = [{', '.join(map(quoted, names))}]")
        self.run("SET enable_external_access = false")
        return names

    def _plain(self, path: str, number: int) -> str:
        """Return a name for a file in which DuckDB sees no pattern."""
        if not any(mark in path for mark in GLOB):
            return path
        link = join(self._folder.name, f"{number}{ending(path) or '.csv'}")
        symlink(path, link)
        return link

    def register(self, frame: Any) -> None:
        """Have a table in memory be the table."""
        self._connection.register(EVENTS, frame)

    def run(self, sql: str) -> list[tuple[Any, ...]]:
        """Return the rows of a query."""
        found: list[tuple[Any, ...]] = self._caller.call(lambda: self._connection.execute(sql).fetchall())
        return found

    @contextmanager
    def watched(self, tell: Callable[[float], None]) -> Iterator[None]:
        """Tell now and then which part of the query within is done, from 0 to 1."""
        ended = Event()

        def look() -> None:
            while not ended.wait(EVERY):
                with suppress(self._errors, RuntimeError):
                    tell(max(0.0, self._connection.query_progress() / 100))

        thread = Thread(target=look, daemon=True)
        thread.start()
        try:
            yield
        finally:
            ended.set()
            thread.join()

    def expected_rows(self, paths: Sequence[str | PathLike[str]], once: bool) -> int | None:
        """Return about how many rows the table has, None if that is not known before it is read."""
        if not once:
            return int(self.run(f"SELECT count(*) FROM {EVENTS}")[0][0])
        if not paths or FUNCTIONS.get(ending(paths[0]) or "", "read_csv") != "read_csv" or is_packed(paths[0]):
            return None
        with open(paths[0], "rb") as file:
            sample = file.read(SAMPLE)
        return sum(map(getsize, paths)) * sample.count(b"\n") // max(1, len(sample))

    def describe(self, select: str) -> list[tuple[str, str]]:
        """Return the names and types of a query's columns."""
        return [(row[0], row[1]) for row in self.run(f"DESCRIBE {select}")]

    def batches(self, select: str, rows: int) -> Iterator[Any]:
        """Yield the result of a query in Arrow record batches of about so many rows, as it is made."""

        def begin() -> Any:
            relation = self._connection.sql(select)
            return (getattr(relation, "to_arrow_reader", None) or relation.fetch_record_batch)(rows)

        reader = self._caller.call(begin)
        while (batch := self._caller.call(lambda: next(reader, None))) is not None:
            yield batch

    def order(self, table: str, categories: Any, column: str, kind: str, label: str) -> None:
        """Make a table of the labels that a column's categories (an Arrow array) become, and of their places."""
        import pyarrow

        name, place = identifier(column), identifier(f"{column}_place")
        places = pyarrow.table([categories, np.arange(len(categories))], names=[column, f"{column}_place"])
        self._connection.register("amped_categories", places)
        values = f"SELECT TRY_CAST({name} AS {kind}) AS {name}, {place} FROM amped_categories"
        # Arrow may list a category twice.
        found = f"SELECT {label} AS label, min({place}) AS place FROM ({values}) GROUP BY 1"
        self.run(f"CREATE TEMP TABLE {table} AS {found}")
        self._connection.unregister("amped_categories")

    def number(self, table: str, places: NDArray[np.int32]) -> None:
        """Replace the numbers 0, 1, ... in a table's column `place` by others."""
        if np.array_equal(places[-1:], [places.size - 1]):
            return
        import pyarrow

        self._connection.register("amped_places", pyarrow.table({"old": np.arange(places.size), "place": places}))
        select = f"SELECT label, new.place FROM {table} JOIN amped_places AS new ON {table}.place = new.old"
        self.run(f"CREATE TEMP TABLE {table}_new AS {select}")
        self.run(f"DROP TABLE {table}")
        self.run(f"ALTER TABLE {table}_new RENAME TO {table}")
        self._connection.unregister("amped_places")

    @contextmanager
    def naming(self, what: str | None) -> Iterator[None]:
        """Turn errors of DuckDB into an `InputError` that says what was computed."""
        try:
            yield
        except self._errors as error:
            text = str(error)
            misread = isinstance(error, self._misread) or MISREAD.search(text)
            kind = MisreadError if misread else InputError
            kind = EncodingError if any(each in text for each in NOT_UTF8) else kind
            raise kind(f"{what}: {self._told(error)}" if what else self._told(error)) from None

    def _told(self, error: Exception) -> str:
        """Return an error in one line, with the names that may have been meant."""
        if ragged := RAGGED.search(str(error)):
            line, expected, found = ragged.groups()
            return f"line {line} has {found} fields, but {expected} are expected: correct it"
        if isinstance(error, self.no_memory):
            return (
                "needs more memory than DuckDB may use: make computed labels shorter, "
                "or store the table first with a higher limit (amped table --memory BYTES)"
            )
        if UNLIKE in str(error):
            return "is no CSV of one delimiter, one kind of quote and one kind of line end: save it again"
        text = [line.strip() for line in str(error).splitlines() if line.strip()]
        ends = [at for at, line in enumerate(text) if line.startswith("Candidate functions")]
        text = text[: ends[0]] if ends else text  # of which there may be dozens
        kept = [line for line in text if not line.startswith(LEFT_OUT)]
        told = kept[0].removeprefix(OWN) if kept else type(error).__name__
        if "syntax error" not in told and len(kept) > 1:
            told = " ".join(kept[:3])
        missing = told.split('"')[1] if "not found in FROM clause" in told and told.count('"') > 1 else None
        if missing is None:
            near = [line.removeprefix("Did you mean ") for line in text if line.startswith("Did you mean")]
            return f"{told} (did you mean {near[0].rstrip('?')}?)" if near else told
        with suppress(self._errors):
            names = self.names or [name for name, _ in self.describe(f"FROM {EVENTS}")]
            near = get_close_matches(missing.lower(), [name.lower() for name in names], 3, 0.5)
            nearest = [name for name in names if name.lower() in near] or names
            some = ", ".join(nearest[:10]) + (", ..." if len(nearest) > 10 else "")
            return f"no column {missing}; {'nearest' if near else 'columns'}: {some}"
        return told


def quoted(text: str) -> str:
    """Return a string of SQL."""
    return "'" + text.replace("'", "''") + "'"


def identifier(name: str) -> str:
    """Return a name of SQL."""
    return '"' + name.replace('"', '""') + '"'
