"""Tables: rows with keys become nonzeros, in a stream of integer indices.

DuckDB scans the table twice: for the labels of each key, and for the rows, whose keys it replaces by the positions of
their labels. Text is parsed once, into a table that may be spilled to disk. If there are far fewer coordinates than
rows, DuckDB also sums the values; otherwise the sort does.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import ExitStack
from os import PathLike, fspath
from typing import Any

import numpy as np
from numpy.typing import NDArray

from ...array_types import FloatDType, HostArray, Integers
from ...errors import InputError, warn
from ...sorting.tables import Nonzeros, Pile, mapped
from ...store.packed import HALF, LOWER, bits_of, layout_of
from ...tensors.ingest import MAX_MODE_LENGTH, MAX_ORDER, MIN_ORDER
from ...tensors.labels import Labels, TableQuery
from ...wording import parameter, setting
from ..form import ReadOptions
from ..pieces import Outcome, Progress, naming, usable_threads
from .categories import merged
from .database import EVENTS, Database, EncodingError, MisreadError, is_arrow, is_text
from .encodings import readable
from .files import FileTable
from .frames import FrameTable, arrow_table
from .keys import Key, keys_of, split_name
from .losses import doubtful_dates, lost_texts, staged
from .rows import ROWS, RowCounts, check_not_empty, facts_of, kept_rows, labels_column, listed, state_of
from .sums import Value

BATCH = 1 << 17  # rows per batch from DuckDB
ROWS_PER_CELL = 4  # rows per possible coordinate from which on DuckDB sums values
UNIQUE = 20  # rows from which on a key with as many labels causes a warning
CHANGED = "changed while it was read"


class TablePart:
    """The nonzeros of a table, all in part 0. See `FilePart` and `open_part`.

    Parameters
    ----------
    source : path or table in memory
        A frame supported by `FrameTable`, or the first file.
    form : ReadOptions
        Keys and other options.
    part : int
        Number of this part.
    memory : int, optional
        Maximum memory of DuckDB in bytes.
    threads : int, optional
        Number of threads.
    progress : callable, optional
        Called with the number of rows read, and the total number.
    folder : path, optional
        Folder for spilled data.
    """

    dtype: FloatDType = np.dtype(np.float64)

    def __init__(
        self,
        source: object,
        form: ReadOptions,
        part: int = 0,
        *,
        memory: int | None = None,
        threads: int | None = None,
        progress: Progress | None = None,
        folder: str | PathLike[str] | None = None,
    ) -> None:
        self._form, self._progress, self.order = form, progress, len(form.key)
        self.path = fspath(source) if isinstance(source, (str, PathLike)) else None
        self._fault: InputError | None = None
        self._labels: Labels | None = None
        self.lengths: tuple[int, ...] | None = None
        self._nonzeros = self.expected = 0
        self._pieces: Iterator[Nonzeros] | None = None
        self._remaining: Nonzeros | None = None  # nonzeros that did not fit the last pile
        with naming(self.path or "the table"):
            check_keys(form)
            if part == 0:
                with ExitStack() as files:
                    self._open(files, source, memory, threads or usable_threads(), folder)
                    self._files = files.pop_all()

    def _open(
        self, files: ExitStack, source: object, memory: int | None, threads: int, folder: str | PathLike[str] | None
    ) -> None:
        paths = [] if self.path is None else [self.path, *self._form.more]
        for path in paths:
            check_not_empty(path)
        if self._progress:
            self._progress(0, None)
        self._state = state_of(paths)
        self._paths = paths
        text = bool(paths) and is_text(paths[0])
        encoding = self._form.encoding
        whole, western = False, encoding is not None
        while True:
            with ExitStack() as attempt:
                database = self._database = attempt.enter_context(Database(memory, threads, folder))
                try:
                    with database.naming(None):
                        read, others = readable(paths, database.folder, western, encoding) if text else (paths, [])
                        self._scan(database, source, read, whole)
                except MisreadError as error:  # DuckDB inferred types from the first rows only
                    of_text = isinstance(error, EncodingError)
                    if not text or (western if of_text else whole):
                        raise
                    western, whole = western or of_text, whole or not of_text
                    continue
                for path in others:
                    warn(f"{path}: not UTF-8: read as Windows-1252 (Latin-1)")
                files.push(attempt.pop_all())
                return

    def _scan(self, database: Database, source: object, paths: Sequence[str], whole: bool) -> None:
        """Determine the rows to read, and their labels."""
        form = self._form
        others = [("value", form.value), ("where", form.where)]
        filters = [(f"{parameter(name)} {text!r}", text) for name, text in others if text]
        table: FileTable | FrameTable
        if paths and is_arrow(paths[0]):
            source, paths = arrow_table(paths), ()
        if paths:
            table = FileTable(database, paths, " ".join((*form.key, *(text for _, text in filters))), whole)
        else:
            table = FrameTable(database, source)
        columns = table.columns
        database.names = columns.names
        named = [split_name(key, columns.names) for key in form.key]
        expressions = [(f"{parameter('key')} {text!r}", text) for text, _ in named]
        table.use(columns.usage(database, [*expressions, *filters], len(named)))
        keys = keys_of(database, columns, named)
        value = Value.of(database, columns, form.value)
        self._what = "groups of rows" if value.aggregate else "rows"
        with ExitStack() as watched:
            if self._progress:
                rows = database.expected_rows(paths, table.once)
                watched.enter_context(database.watched(lambda part: self._report_scan(part, rows)))
            self._stage(database, table, keys, value)
            counts = self._facts = facts_of(database, keys, value, form)
        self._check_counts(keys, counts)
        dates = doubtful_dates(table, self._paths) if isinstance(table, FileTable) else []
        for message in (*lost_texts(database, keys, ROWS), *dates, *table.notes):
            self._warn(message)
        ordered = [key.may_be_category and self._order(database, table, k, key) for k, key in enumerate(keys)]
        self._take_labels(database, keys, value, counts, ordered)
        self.expected = counts.kept
        self._select = self._nonzeros_sql(keys, value)

    def _stage(self, database: Database, table: FileTable | FrameTable, keys: Sequence[Key], value: Value) -> None:
        """Create a view or table of the rows' labels and values in SQL."""
        selected = [f"{key.label} AS __key{k}" for k, key in enumerate(keys)]
        selected += [f"{value.column} AS __value"] if value.column else []
        selected += staged(keys, value.aggregate)
        where = ""
        if self._form.where is not None:
            name = f"{parameter('where')} {self._form.where!r}"
            condition, _ = table.columns.expression(database, name, self._form.where)
            where = f" WHERE {condition}"
            with database.naming(name):
                database.describe(f"SELECT 1 FROM {EVENTS}{where}")
        groups = f" GROUP BY {', '.join(str(k + 1) for k in range(len(keys)))}" if value.aggregate else ""
        kind = "TEMP TABLE" if table.once or value.aggregate else "TEMP VIEW"
        select = f"SELECT {', '.join(selected)} FROM {table.relation} AS {EVENTS}{where}{groups}"
        with database.naming(None):
            database.run(f"CREATE {kind} {ROWS} AS {select}")

    def _report_scan(self, part: float, rows: int | None) -> None:
        """Report the progress of the first scan."""
        if self._progress:
            self._progress(0 if rows is None else int(part * rows), rows)

    def _check_counts(self, keys: Sequence[Key], counts: RowCounts) -> None:
        """Raise `InputError` if there is nothing to read; warn of dropped rows."""
        if not counts.rows:
            raise InputError("no rows" if self._form.where is None else f"no row satisfies {self._form.where}")
        missing = [f"{count:,} without {key.title}" for key, count in zip(keys, counts.missing, strict=True) if count]
        dropped = self._form.missing == "drop"
        if not counts.kept and counts.valueless == counts.rows:
            raise InputError(f"no row has a value: {self._form.value} is missing in all {counts.rows:,}")
        if not counts.kept:
            raise InputError(f"no row has all its keys: of {counts.rows:,}, {', '.join(missing)}")
        missing = missing if dropped else []
        missing += [f"{counts.valueless:,} without {self._form.value}"] if counts.valueless else []
        if missing:
            message = f"{counts.rows - counts.kept:,} of {counts.rows:,} {self._what} are dropped: {', '.join(missing)}"
            advice = f"; {setting('missing', 'keep')} keeps those without a key"
            self._warn(message + advice * (dropped and any(counts.missing)))

    def _warn(self, message: str) -> None:
        warn(f"{self.path or 'the table'}: {message}")

    def _order(self, database: Database, table: FileTable | FrameTable, k: int, key: Key) -> bool:
        """Create an SQL table with the order of a key's labels if they are ordered categories; return whether."""
        assert key.column is not None
        categories = merged(table.categories(key.column))
        if categories is None:
            return False
        with database.naming(key.name):
            database.order(f"amped_order{k}", categories, table.columns.sql[key.column], key.kind, key.label)
        return True

    def _take_labels(
        self, database: Database, keys: Sequence[Key], value: Value, counts: RowCounts, ordered: Sequence[bool]
    ) -> None:
        """Number the labels of each key, in ascending or categorical order."""
        labels = []
        condition = kept_rows(keys, self._form, bool(value.column))
        for k, key in enumerate(keys):
            # Dropped rows may have labels of this key.
            scan_rows = not counts.listed or counts.kept < counts.rows
            source = f"SELECT DISTINCT __key{k} AS label FROM {ROWS} WHERE {condition}" if scan_rows else listed(k)
            if ordered[k]:
                source = f"SELECT label, place FROM ({source}) LEFT JOIN amped_order{k} USING (label)"
            order = "place, label" if ordered[k] else "label"
            numbered = (
                f"SELECT label, CAST(row_number() OVER (ORDER BY {order}) - 1 AS BIGINT) AS place FROM ({source})"
            )
            with database.naming(key.name):
                database.run(f"CREATE TEMP TABLE amped_labels{k} AS {numbered} WHERE label IS NOT NULL")
                ((count,),) = database.run(f"SELECT count(*) FROM amped_labels{k}")
            missing = self._form.missing == "keep" and counts.missing[k] > 0
            if count + missing > MAX_MODE_LENGTH:
                raise InputError(f"{key.name}: {count:,} labels, a mode has at most {MAX_MODE_LENGTH:,}")
            if count == counts.kept >= UNIQUE:
                self._warn(f"{key.name} has a different label in each of {count:,} rows: it may be an identifier")
            names, places = key.labels(labels_column(database, k), missing)
            labels.append(names)
            database.number(f"amped_labels{k}", places)
        database.run("DROP TABLE amped_found")
        texts, titles = tuple(key.text for key in keys), [key.title for key in keys]
        query = TableQuery(self._form.value, self._form.where, self._form.missing, texts if titles != [*texts] else ())
        self._labels = Labels(labels, titles, query)
        self.lengths = tuple(each.size for each in labels)

    def _nonzeros_sql(self, keys: Sequence[Key], value: Value) -> str:
        """Return the query of the nonzeros: one index per key, and a value unless each counts 1."""
        assert self.lengths is not None
        joins = " ".join(
            f"LEFT JOIN amped_labels{k} ON {ROWS}.__key{k} = amped_labels{k}.label" for k in range(len(keys))
        )
        places = ", ".join(f"{self._place(k)} AS place{k}" for k in range(len(keys)))
        condition = kept_rows(keys, self._form, bool(value.column))
        select = f"SELECT {places}{', __value' if value.column else ''} FROM {ROWS} {joins} WHERE {condition}"
        possible = float(np.prod(self.lengths, dtype=np.float64))
        self._added = value.exact and possible * ROWS_PER_CELL <= self._facts.kept
        self._counts = value.column is None and not self._added
        if self._added:
            total = "CAST(sum(__value) AS DOUBLE)" if value.column else "CAST(count(*) AS DOUBLE)"
            select = f"SELECT {', '.join(f'place{k}' for k in range(len(keys)))}, {total} FROM ({select}) GROUP BY ALL"
            self.expected = int(possible)
        elif value.column:
            select = f"SELECT * REPLACE (CAST(__value AS DOUBLE) AS __value) FROM ({select})"
        return select

    def _batches(self, select: str) -> Iterator[Any]:
        """Yield the rows of a query as Arrow batches without missing indices."""
        with self._database.naming(None):
            for batch in self._database.batches(select, BATCH):
                if any(batch.column(k).null_count for k in range(min(self.order, batch.num_columns))):
                    raise InputError(CHANGED)
                if batch.num_rows:
                    yield batch

    @property
    def packable(self) -> bool:
        """Whether the nonzeros can be packed into one key each; see `partitioner.store.packed`."""
        if self.lengths is None or self._added or layout_of(self.lengths) is None:
            return False
        return self._counts or bits_of(self.lengths) <= 2 * HALF

    @property
    def valued(self) -> bool:
        """Whether nonzeros have values to be summed."""
        return not self._counts

    def packed(self) -> tuple[Integers, NDArray[np.float64] | None]:
        """Return the key of each nonzero, and None; or if values are summed, the halves of the keys, and the values.

        Replaces `fill`. Raise `InputError` if the table has changed, or a value is not finite.
        """
        key = f"SELECT {self._key()} AS key{'' if self._counts else ', __value'} FROM ({self._select})"
        keys: Integers
        values: NDArray[np.float64] | None = None
        if self._counts:
            keys = mapped(self._facts.kept, np.dtype(np.int64))
        else:
            key = f"SELECT CAST(key >> {HALF} AS INTEGER), CAST(key & {LOWER} AS INTEGER), __value FROM ({key})"
            keys = mapped(2 * self._facts.kept, np.dtype(np.int32)).reshape(2, -1)
            values = mapped(self._facts.kept, np.dtype(np.float64))
        targets: list[HostArray] = [keys] if values is None else [*keys, values]
        with naming(self.path or "the table"), self._files:
            for batch in self._batches(key):
                self._take_batch(batch, targets)
            self._end()
        return keys, values

    def _key(self) -> str:
        """Return the SQL expression of a nonzero's key."""
        assert self.lengths is not None
        layout = layout_of(self.lengths)
        assert layout is not None
        return " | ".join(f"(CAST(place{k} AS BIGINT) << {shift})" for k, shift in enumerate(layout.shifts.tolist()))

    def _take_batch(self, batch: Any, targets: Sequence[HostArray]) -> None:
        """Append the columns of a batch to `targets`."""
        part = slice(self._nonzeros, self._nonzeros + batch.num_rows)
        if part.stop > targets[0].size:
            raise InputError(CHANGED)
        for k, target in enumerate(targets):
            target[part] = batch.column(k).to_numpy(zero_copy_only=False)
        if not (self._counts or np.all(np.isfinite(targets[-1][part]))):
            raise InputError(f"{parameter('value')} {self._form.value!r}: a value is not finite")
        self._count(batch.num_rows)

    def _place(self, k: int) -> str:
        """Return the SQL expression of a key's index; a missing key has the last index, if it is kept."""
        assert self.lengths is not None
        place = f"CAST(amped_labels{k}.place AS INTEGER)"
        kept = self._form.missing == "keep" and self._facts.missing[k]
        return f"CASE WHEN __key{k} IS NULL THEN {self.lengths[k] - 1} ELSE {place} END" if kept else place

    def _nonzeros_of(self, batch: Any) -> Nonzeros:
        assert self.lengths is not None
        columns = np.empty((self.order, batch.num_rows), np.int32)
        for k in range(self.order):
            columns[k] = batch.column(k).to_numpy(zero_copy_only=False)
        if batch.num_columns == self.order:
            return columns, np.ones(batch.num_rows)
        values = batch.column(self.order).to_numpy(zero_copy_only=False)
        if not np.all(np.isfinite(values)):
            raise InputError(f"{parameter('value')} {self._form.value!r}: a value is not finite")
        return columns, np.asarray(values, np.float64)

    @property
    def outcome(self) -> Outcome:
        """See `FilePart`."""
        return Outcome(self.order, self.lengths, self._nonzeros, fault=self._fault, labels=self._labels)

    def close(self) -> None:
        """See `FilePart`."""
        self._files.close()

    def fill(self, pile: Pile) -> bool:
        """See `FilePart`."""
        if self.lengths is None:  # a part other than 0
            return False
        self._pieces = self._pieces or map(self._nonzeros_of, self._batches(self._select))
        try:
            with naming(self.path or "the table"):
                while (piece := self._remaining or next(self._pieces, None)) is not None:
                    is_new = self._remaining is None
                    self._remaining = pile.add(*piece)
                    if is_new:
                        self._count(piece[1].size)
                    if self._remaining is not None:
                        return True
                self._end()
        except InputError as error:
            self._fault = error
        except BaseException:  # a signal
            self._files.close()
            raise
        self._files.close()
        return False

    def _count(self, nonzeros: int) -> None:
        self._nonzeros += nonzeros
        if self._progress and not self._added:
            self._progress(self._nonzeros, self._facts.kept)

    def _end(self) -> None:
        """Raise `InputError` if the table has changed."""
        if (not self._added and self._nonzeros != self._facts.kept) or state_of(self._paths) != self._state:
            raise InputError(CHANGED)
        if self._progress:
            self._progress(self._facts.kept, self._facts.kept)


def check_keys(form: ReadOptions) -> None:
    """Raise `InputError` for a table without keys, or options that do not apply to tables."""
    if not form.key:
        python = "amped.read(path, keys=[...]) or from_frame(frame, keys=[...])"
        raise InputError(f"a table: {parameter('key EXPR', python)} specifies the column of each mode")
    if not MIN_ORDER <= len(form.key) <= MAX_ORDER:
        keys = f"{len(form.key)} key{'s' * (len(form.key) > 1)}"
        raise InputError(f"{keys}: a tensor has {MIN_ORDER} to {MAX_ORDER} modes")
    others = ("no_values", form.no_values), ("shape", form.shape), ("dense", form.dense)
    for name, is_set in (*others, ("index_base", form.index_base is not None)):
        if is_set:
            raise InputError(f"{parameter(name)} does not apply to tables")
