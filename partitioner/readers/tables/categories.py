"""Ordered categories: the labels of such a column have the categories' order, not the alphabetical one.

Each function returns the dictionaries of a column as Arrow arrays if its type declares them as ordered. DuckDB converts
all of them to text, except those of pandas.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from contextlib import suppress
from graphlib import CycleError, TopologicalSorter
from itertools import islice, pairwise
from os import PathLike, fspath
from typing import Any

from .expressions import fold

BUFFER = 1 << 16  # bytes per read; the dictionary comes first


def of_chunks(chunks: Iterable[Any], known: Sequence[Any] = ()) -> list[Any]:
    """Return the distinct dictionaries of Arrow arrays, appended to those in `known`."""
    dictionaries = list(known)
    for chunk in chunks:
        if getattr(chunk.type, "ordered", False) and not any(chunk.dictionary.equals(each) for each in dictionaries):
            dictionaries.append(chunk.dictionary)
    return dictionaries


def of_series(series: Any) -> list[Any]:
    """Return the categories of a pandas Series."""
    import pyarrow

    dtype = series.dtype
    if hasattr(dtype, "pyarrow_dtype"):
        return of_chunks(series.array.__arrow_array__().chunks)
    if not getattr(dtype, "ordered", False):
        return []
    with suppress(pyarrow.ArrowException, TypeError):  # values of several types
        return [pyarrow.array(dtype.categories, from_pandas=True)]
    return []


def of_polars(dtype: Any) -> list[Any]:
    """Return the categories of a Polars type."""
    return [dtype.categories.to_arrow()] if type(dtype).__name__ == "Enum" else []


def of_relation(types: Sequence[Any]) -> dict[int, list[Any]]:
    """Return the values of DuckDB enums among column types, by position."""
    import pyarrow

    return {k: [pyarrow.array(dict(kind.children)["values"])] for k, kind in enumerate(types) if kind.id == "enum"}


def of_parquet(paths: Sequence[str | PathLike[str]], name: str) -> list[Any]:
    """Return the dictionaries of a column of Parquet files written by Arrow, pandas or Polars."""
    import pyarrow
    from pyarrow.parquet import ParquetFile

    dictionaries = list[Any]()
    for path in paths:
        with suppress(pyarrow.ArrowException, OSError), ParquetFile(fspath(path), buffer_size=BUFFER) as file:
            names = [
                each for each in file.schema_arrow.names if fold(each) == fold(name)
            ]  # DuckDB joins files without regard to case
            if len(names) > 1:
                names = [each for each in names if each == name]
            if len(names) != 1 or not getattr(file.schema_arrow.field(names[0]).type, "ordered", False):
                continue
            for group in range(file.num_row_groups):
                if not _has_dictionary(file.metadata.row_group(group), names[0]):
                    return []  # Arrow would list the values in order of occurrence
                for batch in islice(file.iter_batches(1, row_groups=[group], columns=names), 1):
                    dictionaries = of_chunks([batch.column(names[0])], dictionaries)
    return dictionaries


def _has_dictionary(group: Any, name: str) -> bool:
    """Return whether a row group contains a column's dictionary."""
    columns = (group.column(k) for k in range(group.num_columns))
    return any(each.has_dictionary_page for each in columns if each.path_in_schema == name)


def merged(dictionaries: Sequence[Any]) -> Any:
    """Return the categories in an order consistent with all dictionaries, as an Arrow array; None if there is none."""
    import pyarrow

    if len(dictionaries) < 2:
        return dictionaries[0] if dictionaries else None
    order = TopologicalSorter[Any]()
    for each in dictionaries:
        values = list(dict.fromkeys(each.to_pylist()))
        order.add(*values[:1])
        for lower, higher in pairwise(values):
            order.add(higher, lower)
    try:
        return pyarrow.array(list(order.static_order()))
    except CycleError:
        return None
