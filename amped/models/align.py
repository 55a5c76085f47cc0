"""Tensors that functions and models take: any object that holds one, recognised alike in a fit and after it."""

from __future__ import annotations

import os
import warnings
from collections.abc import Sequence
from typing import Any

from numpy.typing import NDArray

from partitioner.readers import ReadOptions, file_name, is_table, read, read_frame
from partitioner.readers.tables.frames import series_name
from partitioner.tensors.dense import DenseTensor
from partitioner.tensors.interop import is_matrix_or_table, tensor_of
from partitioner.tensors.interop import is_table as is_table_object
from partitioner.tensors.labels import Labels, TableQuery, mode_names
from partitioner.tensors.relabel import in_order_of, relabelled, shown
from partitioner.tensors.sparse import SparseTensor
from partitioner.tensors.statistics import NO_OVERFLOW

from ..errors import InputError, InputWarning
from .semisparse import SemiSparseTensor

AnyTensor = SparseTensor | DenseTensor


def tensor_or_path(name: str, given: Any) -> AnyTensor | str:
    """Return an object of any library as a tensor, or a path as text.

    Parameters
    ----------
    name : str
        What errors call it.
    given : tensor, array, model or path

    Raises
    ------
    InputError
        If it is none of these, or a table: whose keys are not known here.
    """
    if isinstance(given, (SparseTensor, DenseTensor)):
        return given
    if isinstance(given, SemiSparseTensor):
        return given.to_sparse()
    if isinstance(given, (str, bytes, os.PathLike)):
        return file_name(given)
    try:
        found = tensor_of(given)
    except InputError as error:
        raise InputError(f"{name}: {error.cause}") from None
    if found is None:
        expected = "a tensor or array of a known library, or the path of a tensor"
        raise InputError(f"{name} is of type {type(given).__name__}: expected {expected}")
    return found


def tensor_for(X: Any, labels: Labels | None, value: str | None = None, where: str | None = None) -> AnyTensor:
    """Return an object as a tensor to compare with a model; a table is read as the model's own table was.

    Parameters
    ----------
    X : tensor, array or path; or a table: a frame, or the path of one
    labels : Labels, optional
        Of the model. Their names are the keys of a table.
    value, where : str, optional
        Of a table; see `amped.from_frame`. By default those of the model's own table.
    """
    if isinstance(X, (str, bytes, os.PathLike)):
        X = os.fsdecode(X)
    if is_table(X) if isinstance(X, str) else _is_table_for(X, labels):
        if value is None and not isinstance(X, str):
            value = series_name(X)
        form = _form(labels, value, where)
        if not isinstance(X, str):
            return read_frame(X, form)
        return read(X, keys=form.key, value=form.value, where=form.where, missing=form.missing)
    if value is not None or where is not None:
        raise InputError("value and where are for tables")
    found = tensor_or_path("X", X)
    return read(found) if isinstance(found, str) else found


def _is_table_for(given: Any, labels: Labels | None) -> bool:
    """Return whether an object is a table of the keys that a model has, and not a tensor.

    A pandas frame is a matrix if its rows and columns are named as the model's modes, or if the model is not of a table
    and some of its modes are no columns of the frame.
    """
    if not is_matrix_or_table(given):
        return is_table_object(given)
    if labels is None or labels.names is None or [axis.name for axis in given.axes] == list(labels.names):
        return False
    return labels.query is not None or {str(name) for name in given.columns} >= set(labels.names)


def _form(labels: Labels | None, value: str | None, where: str | None) -> ReadOptions:
    """Return how a table is read like the model's own."""
    if labels is None or labels.names is None:
        raise InputError("X is a table: the model's labels have no names, which would be its keys")
    query = labels.query or TableQuery(missing="keep" if any(map(_has_missing, labels)) else "drop")
    value, where = query.value if value is None else value, query.where if where is None else where
    return ReadOptions(key=labels.names, value=value, where=where, missing=query.missing)


def _has_missing(labels: NDArray[Any]) -> bool:
    """Return whether the last label is missing: tables have it there."""
    return bool(labels.size) and bool(labels[-1] is None or labels[-1] != labels[-1])


def aligned(
    X: Any, shape: Sequence[int], labels: Labels | None, value: str | None = None, where: str | None = None
) -> AnyTensor:
    """Return an object as a tensor of a model's shape, its indices in the order of the model's labels."""
    tensor = matched(tensor_for(X, labels, value, where), labels, known=True)
    if tensor.shape != tuple(shape):
        raise InputError(f"X has shape {tensor.shape}, the model {tuple(shape)}")
    (low, high), norm = NO_OVERFLOW, tensor.norm()
    if norm and not low <= norm <= high:
        limits = f"{low:.0e} to {high:.0e}"
        raise InputError(f"the norm of X, {norm:.3g}, is beyond what float64 computes with, {limits}: scale its values")
    return tensor


def matched(tensor: AnyTensor, labels: Labels | None, leave: int | None = None, known: bool = False) -> AnyTensor:
    """Return a tensor whose modes and indices are in the order of a model's names and labels, where both have some.

    See `relabelled`. A warning counts the nonzeros that are left out.
    """
    if labels is None or tensor.labels is None:
        return tensor
    try:
        found, lost = relabelled(in_order_of(tensor, labels), labels, leave, known)
    except InputError as error:
        raise InputError(f"X: {error.cause}") from None
    names = mode_names(labels, len(labels))
    parts = [f"{count:,} for {name} ({shown(some)})" for name, (count, some) in zip(names, lost, strict=True) if count]
    if parts:
        told = f"X: nonzeros with labels that the model does not know are left out: {', '.join(parts)}"
        warnings.warn(told, InputWarning, stacklevel=4)
    return found
