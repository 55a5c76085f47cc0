"""DuckDB: reads tables and evaluates the expressions of their keys. It is imported on demand.

It has no network access, installs nothing, reads only allowed files, and cannot see the caller's variables.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager, suppress
from os import PathLike, fspath, symlink
from os.path import abspath, getsize, join
from threading import Event, Thread
from typing import Any

import numpy as np
from numpy.typing import NDArray

from ...errors import InputError
from ...host.interruptible import Caller, Scratch
from ...host.memory import available_memory
from ...wording import parameter

EVENTS = "events"
"""Name of the table in SQL."""

ARROW = "arrow"
FUNCTIONS = {
    **dict.fromkeys((".parquet", ".pq"), "read_parquet"),
    **dict.fromkeys((".csv", ".tsv", ".csv.gz", ".tsv.gz", ".csv.zst", ".tsv.zst"), "read_csv"),
    **{f".{kind}{packed}": "read_json" for kind in ("json", "jsonl", "ndjson") for packed in ("", ".gz", ".zst")},
    **dict.fromkeys((".feather", ".arrow", ".ipc"), ARROW),
}
"""DuckDB function by file name extension; PyArrow reads those of `ARROW`."""

INTERVAL = 0.1  # seconds between polls of a query's progress
SAMPLE = 1 << 16  # bytes used to estimate the number of rows
SHARE = 0.35  # default share of free memory for DuckDB
LEAST = 128 << 20  # bytes that DuckDB needs at least
GLOB = "*?["
NOT_UTF8 = "not utf-8 encoded", "invalid UTF-8 encoding"  # parts of DuckDB's messages
OMITTED = "LINE ", "^", "Candidate", "Did you mean", "Possible ", "*"  # starts of lines that messages omit
OWN = "Invalid Input Error: "  # prefix of errors raised by our SQL
MISREAD = re.compile(  # DuckDB's messages if a type or a quote occurs only after the sample
    r'JSON transform error|Original Line: [^\n]*".*Expected Number of Columns', re.DOTALL
)
RAGGED = re.compile(r"CSV Error on Line: (\d+).*Expected Number of Columns: (\d+) Found: (\d+)", re.DOTALL)
OF_TEXT = re.compile(r"No function matches the given name and argument types '(\w+)\(VARCHAR\)'")
UNLIKE = "It was not possible to automatically detect the CSV parsing dialect"
SETTINGS = {
    "autoinstall_known_extensions": "false",
    "autoload_known_extensions": "false",
    "allow_community_extensions": "false",
    "allow_unsigned_extensions": "false",
    "python_enable_replacements": "false",
}


def ending(path: str | PathLike[str]) -> str | None:
    """Return the file name extension of a table, or None."""
    name = fspath(path).lower()
    return next((each for each in FUNCTIONS if name.endswith(each)), None)


def is_text(path: str | PathLike[str]) -> bool:
    """Return whether a table is text, which would have to be parsed again to be read again."""
    return FUNCTIONS.get(ending(path) or "", "read_csv") not in ("read_parquet", ARROW)


def is_arrow(path: str | PathLike[str]) -> bool:
    """Return whether a file is an Arrow file, according to its name."""
    return FUNCTIONS.get(ending(path) or "") == ARROW


def is_packed(path: str | PathLike[str]) -> bool:
    """Return whether a file is compressed, according to its name."""
    return fspath(path).lower().endswith((".gz", ".zst"))


class MisreadError(InputError):
    """A text does not match the types inferred from its first rows."""


class EncodingError(MisreadError):
    """A text is not UTF-8."""


class Database:
    """A connection to a separate in-memory database; a context manager.

    Parameters
    ----------
    memory : int, optional
        Maximum memory in bytes; by default a share of the free memory.
    threads : int
        Number of threads.
    folder : path, optional
        Folder for spilled data, in a subfolder that is removed afterwards.
    """

    def __init__(self, memory: int | None, threads: int, folder: str | PathLike[str] | None = None) -> None:
        try:
            import duckdb
            import pyarrow  # noqa: F401 - DuckDB returns Arrow data
        except ImportError as error:
            raise InputError(f"tables need DuckDB and PyArrow ({error}): pip install 'amped[tables]'") from None
        self._errors: type[Exception] = duckdb.Error
        self.no_memory: type[Exception] = duckdb.OutOfMemoryException
        self._misread: type[Exception] = duckdb.ConversionException
        self.names: list[str] = []  # column names of the table, for error messages
        self._readers: list[Any] = []
        memory = max(LEAST, memory or int(SHARE * available_memory()))
        self._folder = Scratch("amped-table-", folder)
        try:
            spilled = join(self._folder.name, "spilled")
            limits = {"threads": str(threads), "memory_limit": f"{memory}B", "temp_directory": spilled}
            self._connection: Any = duckdb.connect(":memory:", config={**SETTINGS, **limits})
            self._caller = Caller(self._connection.interrupt)  # DuckDB's signal handling hides or loses signals
            self._configure()
        except BaseException:  # a signal, for example
            self._folder.close()
            raise

    def _configure(self) -> None:
        self.run("SET TimeZone = 'UTC'")  # parts of a time must not depend on the local time zone
        with suppress(self._errors):  # in a notebook DuckDB draws a progress bar, and fails without ipywidgets
            for setting in ("enable_progress_bar_print = false", "enable_progress_bar = true", "progress_bar_time = 0"):
                self.run(f"SET {setting}")  # needed by `watched`

    def __enter__(self) -> Database:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def close(self) -> None:
        """Release memory and temporary files."""
        if not self._caller.stuck:  # otherwise a query is still waiting for a file
            with suppress(self._errors):
                self._connection.close()
            for reader in self._readers:
                reader.close()
        self._folder.close()

    @property
    def folder(self) -> str:
        """A folder for temporary files, removed by `close`."""
        return self._folder.name

    def allow(self, paths: Sequence[str | PathLike[str]]) -> list[str]:
        """Let SQL access these files and no others; return their names without glob patterns."""
        names = [self._plain(abspath(path), number) for number, path in enumerate(paths)]
        self.run(f"SET allowed_paths = [{', '.join(map(quoted, names))}]")
        self.run("SET enable_external_access = false")
        return names

    def _plain(self, path: str, number: int) -> str:
        """Return a name for a file that DuckDB does not interpret as a pattern."""
        if not any(mark in path for mark in GLOB):
            return path
        link = join(self._folder.name, f"{number}{ending(path) or '.csv'}")
        symlink(path, link)
        return link

    def register(self, frame: object) -> None:
        """Use a table in memory as the table `EVENTS`."""
        self._connection.register(EVENTS, frame)

    def owns(self, reader: Any) -> Any:
        """Return a PyArrow reader that `close` closes: an open one may block the connection that it reads from."""
        self._readers.append(reader)
        return reader

    def run(self, sql: str) -> list[tuple[Any, ...]]:
        """Execute a query and return its rows."""
        rows: list[tuple[Any, ...]] = self._caller.call(lambda: self._connection.execute(sql).fetchall())
        return rows

    @contextmanager
    def watched(self, report: Callable[[float], None]) -> Iterator[None]:
        """Within the block, call `report` regularly with the progress of the current query, from 0 to 1."""
        ended = Event()

        def poll() -> None:
            while not ended.wait(INTERVAL):
                with suppress(self._errors, RuntimeError):
                    report(max(0.0, self._connection.query_progress() / 100))

        thread = Thread(target=poll, daemon=True)
        thread.start()
        try:
            yield
        finally:
            ended.set()
            thread.join()

    def expected_rows(self, paths: Sequence[str | PathLike[str]], once: bool) -> int | None:
        """Return the approximate number of rows, or None if it is unknown before the table is read."""
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
        """Yield the result of a query in Arrow record batches of about `rows` rows, as it is computed."""

        def begin() -> Any:
            relation = self._connection.sql(select)
            return (getattr(relation, "to_arrow_reader", None) or relation.fetch_record_batch)(rows)

        reader = self._caller.call(begin)
        while (batch := self._caller.call(lambda: next(reader, None))) is not None:
            yield batch

    def order(self, table: str, categories: Any, column: str, kind: str, label: str) -> None:
        """Create a table of the labels of a column's categories (an Arrow array) and their positions."""
        import pyarrow

        name, place = identifier(column), identifier(f"{column}_place")
        places = pyarrow.table([categories, np.arange(len(categories))], names=[column, f"{column}_place"])
        self._connection.register("amped_categories", places)
        values = f"SELECT TRY_CAST({name} AS {kind}) AS {name}, {place} FROM amped_categories"
        # Arrow may list a category twice.
        select = f"SELECT {label} AS label, min({place}) AS place FROM ({values}) GROUP BY 1"
        self.run(f"CREATE TEMP TABLE {table} AS {select}")
        self._connection.unregister("amped_categories")

    def number(self, table: str, places: NDArray[np.int32]) -> None:
        """Replace the numbers 0, 1, ... in a table's column `place` by `places`."""
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
        """Convert DuckDB errors to an `InputError` that names what was computed."""
        try:
            yield
        except self._errors as error:
            text = str(error)
            misread = isinstance(error, self._misread) or MISREAD.search(text)
            kind = MisreadError if misread else InputError
            kind = EncodingError if any(each in text for each in NOT_UTF8) else kind
            raise kind(f"{what}: {self._message(error)}" if what else self._message(error)) from None

    def _message(self, error: Exception) -> str:
        """Return an error on one line, with names that may have been meant."""
        if ragged := RAGGED.search(str(error)):
            line, expected, fields = ragged.groups()
            return f"line {line} has {fields} fields, expected {expected}: correct it"
        if isinstance(error, self.no_memory):
            return (
                "needs more memory than DuckDB may use: shorten computed labels, "
                "or convert the table to a store first with a higher limit (amped table --memory BYTES)"
            )
        if of_text := OF_TEXT.search(str(error)):
            return f"{of_text[1]}() takes no text: convert the column, as in column::TIMESTAMP or column::DOUBLE"
        if "cannot contain aggregates" in str(error):
            return f"is an aggregate of rows: only {parameter('value')} may be one"
        if UNLIKE in str(error):
            return "is not a CSV file with one delimiter, quote character and line end: save it again"
        text = [line.strip() for line in str(error).splitlines() if line.strip()]
        ends = [at for at, line in enumerate(text) if line.startswith("Candidate functions")]
        text = text[: ends[0]] if ends else text  # drop the list, which may have dozens of lines
        lines = [line for line in text if not line.startswith(OMITTED)]
        message = lines[0].removeprefix(OWN) if lines else type(error).__name__
        if "syntax error" not in message and len(lines) > 1:
            message = " ".join(lines[:3])
        missing = message.split('"')[1] if "not found in FROM clause" in message and message.count('"') > 1 else None
        if missing is None:
            near = [line.removeprefix("Did you mean ") for line in text if line.startswith("Did you mean")]
            return f"{message} (did you mean {near[0].rstrip('?')}?)" if near else message
        from difflib import get_close_matches

        with suppress(self._errors):
            names = self.names or [name for name, _ in self.describe(f"FROM {EVENTS}")]
            near = get_close_matches(missing.lower(), [name.lower() for name in names], 3, 0.5)
            nearest = [name for name in names if name.lower() in near] or names
            listing = ", ".join(nearest[:10]) + (", ..." if len(nearest) > 10 else "")
            return f"no column {missing}; {'nearest' if near else 'columns'}: {listing}"
        return message


def quoted(text: str) -> str:
    """Return a string as an SQL literal."""
    return "'" + text.replace("'", "''") + "'"


def identifier(name: str) -> str:
    """Return a name as an SQL identifier."""
    return '"' + name.replace('"', '""') + '"'
