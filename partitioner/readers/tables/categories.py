"""Categories that have an order: the labels of such a column are in that order, not alphabetical.

Each function returns the dictionaries of a column, as Arrow arrays, if its type says that they are ordered. DuckDB
makes text of all of them, but for those of pandas.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from contextlib import suppress
from graphlib import CycleError, TopologicalSorter
from itertools import islice, pairwise
from os import PathLike, fspath
from typing import Any

from .expressions import fold

BUFFER = 1 << 16  # bytes of a file that are read at once: the dictionary comes first


def of_chunks(chunks: Iterable[Any], known: Sequence[Any] = ()) -> list[Any]:
    """Return the dictionaries of Arrow arrays, and those that are `known`."""
    found = list(known)
    for chunk in chunks:
        if getattr(chunk.type, "ordered", False) and not any(chunk.dictionary.equals(each) for each in found):
            found.append(chunk.dictionary)
    return found


def of_series(series: Any) -> list[Any]:
    """Return the categories of a Series of pandas."""
    import pyarrow

    dtype = series.dtype
    if hasattr(dtype, "pyarrow_dtype"):
        return of_chunks(series.array.__arrow_array__().chunks)
    if not getattr(dtype, "ordered", False):
        return []
    with suppress(pyarrow.ArrowException, TypeError):  # of several types
        return [pyarrow.array(dtype.categories, from_pandas=True)]
    return []


def of_polars(dtype: Any) -> list[Any]:
    """Return the categories of a type of Polars."""
    return [dtype.categories.to_arrow()] if type(dtype).__name__ == "Enum" else []


def of_relation(types: Sequence[Any]) -> dict[int, list[Any]]:
    """Return the values of DuckDB's enums among the types of columns, by their positions."""
    import pyarrow

    return {k: [pyarrow.array(dict(kind.children)["values"])] for k, kind in enumerate(types) if kind.id == "enum"}


def of_parquet(paths: Sequence[str | PathLike[str]], name: str) -> list[Any]:
    """Return the dictionaries of a column of Parquet files that Arrow, pandas or Polars have written."""
    import pyarrow
    from pyarrow.parquet import ParquetFile

    found = list[Any]()
    for path in paths:
        with suppress(pyarrow.ArrowException, OSError), ParquetFile(fspath(path), buffer_size=BUFFER) as file:
            names = [each for each in file.schema_arrow.names if fold(each) == fold(name)]  # as DuckDB joins files
            if len(names) > 1:
                names = [each for each in names if each == name]
            if len(names) != 1 or not getattr(file.schema_arrow.field(names[0]).type, "ordered", False):
                continue
            for group in range(file.num_row_groups):
                if not _has_dictionary(file.metadata.row_group(group), names[0]):
                    return []  # Arrow would list the values as they come
                for batch in islice(file.iter_batches(1, row_groups=[group], columns=names), 1):
                    found = of_chunks([batch.column(names[0])], found)
    return found


def _has_dictionary(group: Any, name: str) -> bool:
    """Return whether a column's dictionary is in a row group."""
    columns = (group.column(k) for k in range(group.num_columns))
    return any(each.has_dictionary_page for each in columns if each.path_in_schema == name)


def merged(dictionaries: Sequence[Any]) -> Any:
    """Return categories in one order that all dictionaries have, as an Arrow array; None if there is none."""
    import pyarrow

    if len(dictionaries) < 2:
        return dictionaries[0] if dictionaries else None
    before = TopologicalSorter[Any]()
    for each in dictionaries:
        values = list(dict.fromkeys(each.to_pylist()))
        before.add(*values[:1])
        for lower, higher in pairwise(values):
            before.add(higher, lower)
    try:
        return pyarrow.array(list(before.static_order()))
    except CycleError:
        return None
