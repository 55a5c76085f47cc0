"""Coordinates at which models are evaluated: indices, or labels of the model."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from os import PathLike
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from partitioner.array_types import Floats, HostArray, Integers
from partitioner.tensors.ingest import refuse_masked
from partitioner.tensors.labels import Labels, as_labels, mode_names
from partitioner.tensors.relabel import MAX_SHOWN, found_at, mode_order, places, shown
from partitioner.tensors.sparse import SparseTensor

from ..errors import InputError, warn

Index = int | slice | Sequence[int] | Integers
"""A selection of rows of a factor matrix."""


class ElementPlaces(NamedTuple):
    """Indices of elements, one array per mode; `known` selects those within the model, None if all are."""

    columns: list[Integers]
    known: NDArray[np.bool_] | None = None

    def values(self, values: NDArray[np.float64]) -> NDArray[np.float64]:
        """Return values of all elements, from those of the known ones: NaN for the others."""
        if self.known is None:
            return values
        result = np.full(self.known.size, np.nan)
        result[self.known] = values
        return result


def coordinates_of(given: object, shape: Sequence[int], labels: Labels | None) -> ElementPlaces:
    """Return coordinates as indices; see `KruskalTensor.predict`.

    Raises
    ------
    InputError
        If there is not one array per mode, an index is outside its mode, or labels have other types than the model's.

    Warns
    -----
    InputWarning
        If the model does not know some labels.
    """
    names = list(mode_names(labels, len(shape)))
    if isinstance(given, SparseTensor):
        return _stored(given, names, shape, labels)
    if hasattr(given, "collect"):  # a LazyFrame of Polars
        given = given.collect()
    if isinstance(given, tuple):
        return _labelled(dict(zip(names, _one_each(given, names), strict=True)), shape, labels)
    if isinstance(given, Mapping) or hasattr(given, "columns"):
        keys = names if labels is None or labels.keys is None else labels.keys
        columns = {name: _column(given, name, key) for name, key in zip(names, keys, strict=True)}
        return _labelled(columns, shape, labels)
    if isinstance(given, (str, PathLike)):
        raise InputError("coordinates are a path: read the file, and pass its columns")
    return _indices(given, shape)


def _indices(given: object, shape: Sequence[int]) -> ElementPlaces:
    """Return coordinates from an (n, order) array of indices."""
    refuse_masked(given, "coordinates")
    try:
        table = np.asarray(given)
    except ValueError as error:
        raise InputError(f"coordinates: {error}") from None
    if table.ndim != 2 or table.shape[1] != len(shape) or table.dtype.kind not in "iu":
        expected = f"expected integers of shape (n, {len(shape)}), a tuple of labels per mode, or a table"
        raise InputError(f"coordinates are {table.dtype} of shape {table.shape}: {expected}")
    return ElementPlaces([_inside(table[:, mode], length, mode) for mode, length in enumerate(shape)])


def _stored(given: SparseTensor, names: Sequence[str], shape: Sequence[int], labels: Labels | None) -> ElementPlaces:
    """Return the coordinates of a tensor's nonzeros; modes are matched by name, and indices by label."""
    if labels is None or given.labels is None or given.order != len(shape):
        return _indices(given.indices, shape)
    columns, missing = list[Integers](), list[HostArray]()
    for name, known, mode in zip(names, labels, mode_order(labels, given.labels, len(shape)), strict=True):
        own, column = given.labels[mode], given.columns[mode]
        try:
            columns.append(places(known, own)[column])
        except InputError as error:
            raise InputError(f"coordinates: {name}: {error.cause}") from None
        missing.append(own[column[columns[-1] < 0]])
    return _known(names, columns, missing)


def _inside(column: Integers, length: int, mode: int) -> Integers:
    """Return a column of indices; raise `InputError` if one is outside its mode."""
    wrong = (column < 0) | (column >= length)
    if wrong.any():
        at = int(wrong.argmax())
        raise InputError(f"index {column[at]} (from 0) of element {at} is outside the length {length} of mode {mode}")
    return column


def _one_each(given: tuple[object, ...], names: Sequence[str]) -> tuple[object, ...]:
    if len(given) != len(names):
        raise InputError(f"coordinates: {len(given)} arrays for a model of {len(names)} modes")
    return given


def _column(table: Any, name: str, key: str) -> Any:
    """Return a column of a mapping or a frame; `key` is the expression by which the model's table computed it."""
    names = table if isinstance(table, Mapping) else getattr(table, "column_names", table.columns)  # Arrow, or others
    known = list(map(str, names))
    if name not in known:
        advice = "" if key == name else f": add one, which the model's table computed as {key}"
        raise InputError(f"coordinates have no column {name!r}, but {', '.join(known) or 'none'}{advice}")
    return table[name]


def _labelled(given: Mapping[str, Any], shape: Sequence[int], labels: Labels | None) -> ElementPlaces:
    """Return coordinates from labels, or from indices if the model has no labels."""
    columns, missing = list[Integers](), list[HostArray]()
    for mode, (name, column) in enumerate(given.items()):
        try:
            array = as_labels(column)
            if array.ndim != 1 or array.size != (columns[0].size if columns else array.size):
                raise InputError(f"an array of shape {array.shape}, expected one label per element")
            if labels is not None:
                columns.append(found_at(labels[mode], array))
            elif array.dtype.kind not in "iu" and array.size:
                raise InputError("the model has no labels: expected indices")
            else:
                columns.append(_inside(array.astype(np.int64), shape[mode], mode))
        except InputError as error:
            raise InputError(f"coordinates: {name}: {error.cause}") from None
        missing.append(array[columns[-1] < 0])
    return _known(list(given), columns, missing)


def _known(names: Sequence[str], columns: list[Integers], missing: Sequence[HostArray]) -> ElementPlaces:
    """Return coordinates, which are -1 for labels that the model does not know; a warning counts the `missing` ones."""
    distinct = [np.unique(each) for each in missing]
    unknown = [
        f"{each.size:,} of {name} ({shown(each[: MAX_SHOWN + 1])})"
        for name, each in zip(names, distinct, strict=True)
        if each.size
    ]
    if not unknown:
        return ElementPlaces(columns)
    warn(f"labels that the model does not know: {', '.join(unknown)}")
    known = np.logical_and.reduce([column >= 0 for column in columns])
    return ElementPlaces([column[known] for column in columns], known)


def selected_rows(factor: Floats, mode: int, index: Index) -> NDArray[np.float64]:
    """Return the rows of a factor matrix that an index, a slice or a sequence selects, as a matrix."""
    at = [int(index)] if isinstance(index, (int, np.integer)) else index
    try:
        rows = factor[at]
    except (IndexError, TypeError) as error:
        raise InputError(f"mode {mode}: {error}") from None
    if rows.ndim != 2:
        raise InputError(f"mode {mode}: expected an index, a slice, or a sequence of indices")
    return rows.astype(np.float64, copy=False)


def selection(indices: Sequence[Index], order: int) -> tuple[list[Index], tuple[int, ...]]:
    """Return an index for each mode, and the modes whose index is a number, which removes their axis."""
    if len(indices) > order:
        raise InputError(f"{len(indices)} indices for {order} modes")
    chosen = [*indices, *[slice(None)] * (order - len(indices))]
    return chosen, tuple(mode for mode, index in enumerate(chosen) if isinstance(index, (int, np.integer)))
