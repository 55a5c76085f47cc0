"""Conversion of users' tensors, arrays, tables and paths to the tensors that fits and models work on."""

from __future__ import annotations

import os
from collections.abc import Sequence
from dataclasses import replace
from typing import Any

from partitioner.array_types import HostArray
from partitioner.readers import ReadOptions, file_name, is_table, read, read_frame, with_zeros
from partitioner.readers.tables.database import identifier
from partitioner.readers.tables.frames import series_name
from partitioner.tensors.dense import DenseTensor
from partitioner.tensors.interop import AnyTensor, is_matrix_or_table, tensor_of
from partitioner.tensors.interop import is_table as is_table_object
from partitioner.tensors.labels import Labels, TableQuery, mode_names
from partitioner.tensors.observed import NAN, STORED, observed_elements
from partitioner.tensors.relabel import in_order_of, relabelled, shown
from partitioner.tensors.sparse import SparseTensor
from partitioner.tensors.statistics import NO_OVERFLOW

from ..errors import InputError, warn
from .semisparse import SemiSparseTensor

UNKNOWN = "error", "drop"
UNLESS_LABELLED = " unless both have labels"


def tensor_or_path(name: str, source: Any) -> AnyTensor | str:
    """Convert an object of any supported library to a tensor; return a path as text.

    Parameters
    ----------
    name : str
        The argument's name in error messages.
    source : tensor, array, model or path

    Raises
    ------
    InputError
        If it is none of these. Tables are refused too, because their key columns are unknown here.
    """
    if isinstance(source, (SparseTensor, DenseTensor)):
        return source
    if isinstance(source, SemiSparseTensor):
        return source.to_sparse()
    if isinstance(source, (str, bytes, os.PathLike)):
        return file_name(source)
    try:
        converted = tensor_of(source)
    except InputError as error:
        raise InputError(f"{name}: {error.cause}") from None
    if converted is None:
        expected = "a tensor or array of a known library, or the path of a tensor"
        raise InputError(f"{name} is of type {type(source).__name__}: expected {expected}")
    return converted


def read_if_path(source: AnyTensor | str, name: str = "", keep_zeros: bool = False) -> AnyTensor:
    """Return a tensor, reading it if `source` is a path; errors begin with the `name` of the argument, if any."""
    if not isinstance(source, str):
        return source
    try:
        return read(source, keep_zeros=keep_zeros)
    except InputError as error:
        if not name:
            raise
        raise InputError(f"{name}: {error}") from None


def elementwise(name: str, source: AnyTensor | str, labels: Labels | None) -> AnyTensor:
    """Return a mask or the weights of a tensor, read if `source` is a path, in the order of the tensor's `labels`.

    Parameters
    ----------
    name : str
        The argument's name in error messages.
    source : SparseTensor, DenseTensor or str
    labels : Labels, optional
        The tensor's labels. If one of both has none, indices correspond by position.

    Raises
    ------
    InputError
        If an element is NaN, or labels differ.
    """
    tensor = read_if_path(source, name)
    if tensor.has_nan:
        raise InputError(f"{name}: an element is NaN: expected a number for each element")
    if labels is None or tensor.labels is None or len(tensor.shape) != len(labels):
        return tensor
    try:
        return relabelled(in_order_of(tensor, labels), labels, known=True)[0]
    except InputError:
        cause = f"{name} has other labels than the tensor: pass an array without labels to match indices by position"
        raise InputError(cause) from None


def tensor_for(
    X: object, labels: Labels | None, value: str | None = None, where: str | None = None, keep_zeros: bool = False
) -> AnyTensor:
    """Convert an object to a tensor that can be compared with a model; read a table as the model's table was read.

    Parameters
    ----------
    X : tensor, array or path; or a table: a frame, or the path of one
    labels : Labels, optional
        The model's labels. The names of its modes are the key columns of a table.
    value, where : str, optional
        Query of a table, see `amped.from_frame`; by default the query of the model's own table.
    keep_zeros : bool
        Whether the explicit zeros of a file or table are kept; see `observes_zeros`.
    """
    if isinstance(X, (str, bytes, os.PathLike)):
        X = os.fsdecode(X)
    if is_table(X) if isinstance(X, str) else _is_table_for(X, labels):
        if value is None and not isinstance(X, str):
            value = series_name(X)
        query = _query(labels, value, where)
        if not isinstance(X, str):
            return read_frame(X, replace(query, keep_zeros=keep_zeros))
        value, where, missing = query.value, query.where, query.missing
        return read(X, keys=query.key, value=value, where=where, missing=missing, keep_zeros=keep_zeros)
    if value is not None or where is not None:
        raise InputError("value and where apply to tables only")
    return read_if_path(tensor_or_path("X", X), keep_zeros=keep_zeros)


def observes_zeros(mask: object, fitted: str | None) -> bool:
    """Return whether explicit zeros are observed elements; the arguments are those of `observed_or_all`."""
    return isinstance(mask, str) and mask == STORED if mask is not None else fitted is not None


def _is_table_for(X: Any, labels: Labels | None) -> bool:
    """Return whether an object is a table with the model's key columns, rather than a tensor.

    A pandas frame counts as a matrix if its axes are named as the model's modes, or if the model was not fitted to a
    table and the frame lacks one of the model's key columns.
    """
    if not is_matrix_or_table(X):
        return is_table_object(X)
    if labels is None or labels.names is None or [axis.name for axis in X.axes] == list(labels.names):
        return False
    return labels.query is not None or {str(name) for name in X.columns} >= set(labels.names)


def _query(labels: Labels | None, value: str | None, where: str | None) -> ReadOptions:
    """Return the read options that match the model's own table."""
    if labels is None or labels.names is None:
        raise InputError("X is a table, but the model's modes have no names that could be its key columns")
    query = labels.query or TableQuery(missing="keep" if any(map(_has_missing, labels)) else "drop")
    value, where = query.value if value is None else value, query.where if where is None else where
    pairs = zip(labels.keys or (), labels.names, strict=False)
    keys = tuple(key if key == name else f"{key} AS {identifier(name)}" for key, name in pairs)
    return ReadOptions(key=keys, value=value, where=where, missing=query.missing)


def _has_missing(labels: HostArray) -> bool:
    """Return whether the last label is missing: tables place the missing label last."""
    return bool(labels.size) and bool(labels[-1] is None or labels[-1] != labels[-1])


def aligned(
    X: object,
    shape: Sequence[int],
    labels: Labels | None,
    value: str | None = None,
    where: str | None = None,
    unknown: str = "error",
) -> AnyTensor:
    """Convert an object to a tensor of the model's shape, with its indices in the order of the model's labels.

    `unknown` says what happens to nonzeros whose labels the model lacks: "error" or "drop".
    """
    check_unknown(unknown)
    tensor = matched(tensor_for(X, labels, value, where), labels, known=unknown == "error")
    if tensor.shape != tuple(shape):
        raise other_shape(tensor.shape, shape, advice=UNLESS_LABELLED)
    (low, high), norm = NO_OVERFLOW, tensor.norm()
    if norm and not low <= norm <= high:
        limits = f"{low:.0e} to {high:.0e}"
        raise InputError(f"the norm of X, {norm:.3g}, is outside the range of float64, {limits}: scale its values")
    return tensor


def other_shape(given: Sequence[int], expected: Sequence[int], mode: int | None = None, advice: str = "") -> InputError:
    """Return the error that X's shape is not the model's, which may differ in `mode`."""
    shapes = (" x ".join(map(str, shape)) for shape in (given, expected))
    others = "all lengths" if mode is None else f"all lengths except mode {mode}'s"
    return InputError("X is {}, the model {}: {} must agree{}".format(*shapes, others, advice))


def observed_or_all(tensor: AnyTensor, mask: object, fitted: str | None) -> tuple[AnyTensor, bool]:
    """Return the elements with which a model is compared, and whether other elements are missing.

    Parameters
    ----------
    tensor : SparseTensor or DenseTensor
    mask : {"nan", "stored"}, array, tensor or path, optional
        The observed elements, see `amped.cp_als`. By default the stored elements of a sparse tensor, and those of a
        dense tensor that are not NaN, if the model was fitted to observed elements.
    fitted : str, optional
        How the observed elements of the fit were chosen; None if all were observed.
    """
    if mask is None:
        gaps = (tensor.gaps or fitted is not None) and tensor.has_nan
        if not gaps and (fitted is None or tensor.own_mask == NAN):
            return tensor, False
        mask = tensor.own_mask
    elif not (isinstance(mask, str) and mask in (NAN, STORED)):
        mask = elementwise("mask", tensor_or_path("mask", mask), tensor.labels)
    return observed_elements(tensor, mask).tensor, True


def check_unknown(unknown: str) -> None:
    """Raise `InputError` unless `unknown` is "error" or "drop"."""
    if unknown not in UNKNOWN:
        raise InputError(f"unknown is {unknown!r}: expected 'error' or 'drop'")


def matched(tensor: AnyTensor, labels: Labels | None, leave: int | None = None, known: bool = False) -> AnyTensor:
    """Reorder a tensor's modes and indices to match a model's names and labels, where both have them.

    See `relabelled`. Nonzeros, or elements of a dense tensor, whose labels the model lacks are dropped, and a warning
    counts them.
    """
    if labels is None or tensor.labels is None:
        return tensor
    try:
        converted, dropped = relabelled(in_order_of(tensor, labels), labels, leave, known)
    except InputError as error:
        raise InputError(f"X: {error.cause}") from None
    names = mode_names(labels, len(labels))
    parts = [
        f"{count:,} for {name} ({shown(some)})" for name, (count, some) in zip(names, dropped, strict=True) if count
    ]
    if parts:
        message = f"X: dropped {tensor.noun} with labels that the model does not have: {', '.join(parts)}"
        warn(message)
    return converted


def with_absent(tensor: AnyTensor) -> AnyTensor:
    """Return a sparse tensor as a dense one, without labels; raise `InputError` if memory is insufficient."""
    if not isinstance(tensor, SparseTensor):
        return tensor
    return with_zeros(SparseTensor(tensor.indices, tensor.values, tensor.shape, keep_zeros=True))
