"""Tables in memory. DuckDB only sees the columns in use, so columns of unsupported types do no harm."""

from __future__ import annotations

import sys
from collections.abc import Iterator, Mapping, Sequence
from types import ModuleType
from typing import Any

from ...errors import InputError
from ..pieces import cause_of
from .categories import of_chunks, of_polars, of_relation, of_series
from .database import EVENTS, Database
from .expressions import TableColumns, Usage

CUDF = {"cudf": ("DataFrame", "Series")}
FRAMES = {"pandas": ("DataFrame", "Series"), "polars": ("DataFrame",), "pyarrow": ("Table",)} | CUDF
ONCE = {"polars": ("LazyFrame",), "pyarrow": ("RecordBatchReader",), "duckdb": ("DuckDBPyRelation",)}
POLARS = {"polars": ("DataFrame", "LazyFrame")}
SERIES = "value"
"""Column name of the values of an unnamed Series."""


def is_frame(obj: object) -> bool:
    """Return whether an object is a table in memory, without importing other libraries."""
    return _is_of(obj, FRAMES) or _is_of(obj, ONCE) or hasattr(obj, "__arrow_c_stream__")


def _is_of(obj: object, kinds: Mapping[str, tuple[str, ...]]) -> bool:
    """Return whether an object has one of several types, given as names of libraries and types."""
    types = (getattr(sys.modules.get(module), name, None) for module, names in kinds.items() for name in names)
    return isinstance(obj, tuple(kind for kind in types if kind is not None))


def series_name(obj: Any) -> str | None:
    """Return the name of a Series of pandas or cuDF, or None for other objects."""
    if not _is_of(obj, {"pandas": ("Series",), "cudf": ("Series",)}):
        return None
    return str(obj.name or SERIES)


def level_names(series: Any) -> list[str]:
    """Return the names of the index levels of a Series, which are columns; empty for other objects."""
    return [] if series_name(series) is None else [name for name, _ in _levels(series)]


def arrow_table(paths: Sequence[str]) -> Any:
    """Return Arrow files (Feather, IPC) as one memory-mapped table."""
    import pyarrow

    tables = [_arrow_table(pyarrow, path) for path in paths]
    try:
        return pyarrow.concat_tables(tables, promote_options="default")
    except pyarrow.ArrowInvalid as error:
        raise InputError(f"the files have different columns: {cause_of(error)}") from None


def _arrow_table(pyarrow: ModuleType, path: str) -> Any:
    for opened in (pyarrow.ipc.open_file, pyarrow.ipc.open_stream):
        try:
            return opened(pyarrow.memory_map(path)).read_all()
        except pyarrow.ArrowInvalid as error:
            fault = error
    raise InputError(f"not an Arrow file (Feather 2, IPC): {cause_of(fault)}")


class FrameTable:
    """A table in memory as the table `EVENTS`. `columns` are known at once; call `use` before reading.

    Named index levels are columns, too.
    """

    relation = EVENTS

    def __init__(self, database: Database, frame: Any) -> None:
        self._database = database
        self._seen = dict[int, list[Any]]()  # dictionaries of columns that can only be read once
        self.once = not _is_of(frame, FRAMES)
        """Whether it can, or should, be read only once."""
        relation = False
        if (name := series_name(frame)) is not None:
            frame = frame.to_frame(name)
        elif relation := _is_of(frame, {"duckdb": ("DuckDBPyRelation",)}):  # belongs to another connection
            self._seen = of_relation(frame.types)
            frame = database.owns((getattr(frame, "to_arrow_reader", None) or frame.fetch_record_batch)())
        elif self.once and not _is_of(frame, ONCE):
            import pyarrow

            frame = database.owns(pyarrow.RecordBatchReader.from_stream(frame))
        self._frame = frame
        self.columns = TableColumns(_names(frame))
        self.notes: list[str] = []
        """Warnings about columns in use."""
        self.columns.renamed = relation
        database.allow([])

    def use(self, usage: Usage) -> None:
        """Create the table from the columns in use."""
        columns = self.columns
        used = sorted(usage.values | usage.texts)
        chosen = list(range(len(columns.names))) if usage.any or not used else used
        try:
            names = self._names_in_sql(chosen)
        except InputError:
            self._name_unreadable(chosen)
            raise
        for k, name in zip(chosen, names, strict=True):
            columns.sql[k] = name
        if _is_of(self._frame, {"pandas": ("DataFrame",)}):
            self.notes = [
                f"column {columns.names[k]} holds values of several types, which are converted to text"
                for k in used
                if k < self._frame.shape[1] and _is_mixed(self._frame.iloc[:, k])
            ]

    def categories(self, k: int) -> list[Any]:
        """Return the dictionaries of a column's ordered categories; for a stream only after it is read."""
        if _is_of(self._frame, {"pandas": ("DataFrame",)}):
            return of_series(_picked_of_pandas(self._frame, [k]).iloc[:, 0])
        if _is_of(self._frame, POLARS):
            return of_polars(self._frame.collect_schema().dtypes()[k])
        if _is_of(self._frame, CUDF):
            return of_chunks(_picked_of_cudf(self._frame, [k]).column(0).chunks)
        if _is_of(self._frame, {"pyarrow": ("Table",)}):
            return of_chunks(self._frame.column(k).chunks)
        return self._seen.get(k, [])

    def _names_in_sql(self, chosen: Sequence[int]) -> list[str]:
        import pyarrow

        if _is_of(self._frame, POLARS) and any(_type(self._frame, k) == "Object" for k in chosen):
            # DuckDB before version 2 would read them as meaningless bytes.
            raise InputError("a column holds Python objects")
        try:
            with self._database.naming(None):
                self._database.register(_picked(self._frame, chosen, self._seen))
                return [name for name, _ in self._database.describe(f"FROM {EVENTS}")]
        except (pyarrow.ArrowException, TypeError) as error:
            raise InputError(cause_of(error)) from None

    def _name_unreadable(self, chosen: Sequence[int]) -> None:
        """Raise an `InputError` that names the first column that DuckDB cannot read, if it can be determined."""
        if _is_of(self._frame, {"pyarrow": ("RecordBatchReader",)}):
            return
        for k in chosen:
            try:
                self._names_in_sql([k])
            except InputError:
                raise InputError(
                    f"column {self.columns.names[k]} is of type {_type(self._frame, k)}, which DuckDB does not read: "
                    "convert it to text, numbers or dates first"
                ) from None


def _names(frame: Any) -> list[str]:
    """Return the names of a table's columns."""
    if _is_of(frame, {"polars": ("LazyFrame",)}):
        names = frame.collect_schema().names()
    elif _is_of(frame, {"pyarrow": ("Table", "RecordBatchReader")}):
        names = frame.schema.names
    else:
        names = [str(name) for name in frame.columns]
        names += [level for level, _ in _levels(frame) if level not in names]
    return list(names)


def _levels(frame: object) -> list[tuple[str, Any]]:
    """Return column names of index levels, and their names or positions in the index; polars has no index."""
    names = getattr(getattr(frame, "index", None), "names", ())
    numbered = len(names) > 1  # names as in `reset_index`
    levels = [(f"level_{k}" if name is None else str(name), k) for k, name in enumerate(names)]
    return [(name, k) for name, k in levels if numbered or names[k] is not None]


def _picked(frame: Any, chosen: Sequence[int], seen: dict[int, list[Any]]) -> Any:
    """Return selected columns of a table by position; for a stream, add its dictionaries to `seen`."""
    if _is_of(frame, {"pandas": ("DataFrame",)}):
        return _picked_of_pandas(frame, chosen)
    if _is_of(frame, CUDF):
        return _picked_of_cudf(frame, chosen)
    if _is_of(frame, {"polars": ("LazyFrame",)}):
        return frame.select(sys.modules["polars"].nth(list(chosen)))
    if _is_of(frame, {"polars": ("DataFrame",)}):
        return frame[:, list(chosen)]
    if _is_of(frame, {"pyarrow": ("Table",)}):
        return frame.select(list(chosen))
    pyarrow = sys.modules["pyarrow"]
    schema = pyarrow.schema([frame.schema.field(k) for k in chosen])

    def batches() -> Iterator[Any]:
        for batch in frame:
            for k in chosen:
                seen[k] = of_chunks([batch.column(k)], seen.get(k, []))
            yield pyarrow.RecordBatch.from_arrays([batch.column(k) for k in chosen], schema=schema)

    return pyarrow.RecordBatchReader.from_batches(schema, batches())


def _picked_of_pandas(frame: Any, chosen: Sequence[int]) -> Any:
    """Return selected columns and index levels of a pandas frame, without copies."""
    names, arrays = _names(frame), {k: _plain_categories(_column(frame, k).array) for k in chosen}
    picked = sys.modules["pandas"].DataFrame(arrays, copy=False)
    picked.columns = [names[k] for k in chosen]
    return picked


def _picked_of_cudf(frame: Any, chosen: Sequence[int]) -> Any:
    """Return selected columns and index levels of a cuDF frame, copied to host memory, as an Arrow table."""
    import pyarrow

    names = _names(frame)
    return pyarrow.table([_column(frame, k).to_arrow() for k in chosen], [names[k] for k in chosen])


def _column(frame: Any, k: int) -> Any:
    """Return a column of a frame of pandas or cuDF, or a level of its index."""
    if k < frame.shape[1]:
        return frame.iloc[:, k]
    return frame.index.get_level_values(dict(_levels(frame))[_names(frame)[k]])


def _plain_categories(array: Any) -> Any:
    """Return an array whose interval or period categories (as from ``cut``) are replaced by their names."""
    categories = getattr(array.dtype, "categories", None)
    if categories is None or type(categories).__name__ not in ("IntervalIndex", "PeriodIndex"):
        return array
    return array.rename_categories([str(each) for each in categories])


def _is_mixed(series: Any) -> bool:
    """Return whether a column of Python objects has values of several types, which DuckDB converts to text."""
    if series.dtype != object:
        return False
    kind: str = sys.modules["pandas"].api.types.infer_dtype(series, skipna=True)
    return kind.startswith("mixed")


def _type(frame: Any, k: int) -> str:
    """Return the name of a column's type."""
    if _is_of(frame, {"pandas": ("DataFrame",)}):
        return str(_picked_of_pandas(frame, [k]).dtypes.iloc[0])
    if _is_of(frame, CUDF):
        frame, k = _picked_of_cudf(frame, [k]), 0
    if _is_of(frame, {"pyarrow": ("Table",)}):
        return str(frame.schema.field(k).type)
    return str(frame.collect_schema().dtypes()[k])
