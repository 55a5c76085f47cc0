"""Tensors that a model is asked about: taken in any form, and numbered by the model's labels."""

from __future__ import annotations

import os
import warnings
from collections.abc import Callable
from typing import Any

from numpy.typing import NDArray

from partitioner.coo import SparseTensor
from partitioner.dense import DenseTensor
from partitioner.foreign import tensor_of
from partitioner.labels import Labels, mode_names
from partitioner.readers import PLAIN, Form, is_table, read, read_frame
from partitioner.readers.database import is_frame
from partitioner.relabel import relabelled, shown

from ..errors import InputError, InputWarning

AnyTensor = SparseTensor | DenseTensor

PROJECTIONS: list[Callable[..., NDArray[Any]]] = []
"""What `transform` of models calls: they are below all that computes, which adds itself."""


def tensor_for(X: Any, labels: Labels | None, value: str | None = None, where: str | None = None) -> AnyTensor:
    """Return what a caller gave as a tensor: a table by the keys that are the names of a model's labels.

    Parameters
    ----------
    X : tensor, array or path; or a table: a frame, or the path of one
    labels : Labels, optional
        Of the model.
    value, where : str, optional
        Of a table; see `amped.from_frame`.
    """
    path = isinstance(X, (str, os.PathLike))
    if is_table(X) if path else is_frame(X) and not _is_matrix(X, labels):
        form = _form(labels, value, where)
        if not path:
            return read_frame(X, form)
        return read(X, keys=form.key, value=form.value, where=form.where, missing=form.missing)
    if value is not None or where is not None:
        raise InputError("value and where are for tables")
    if isinstance(X, (SparseTensor, DenseTensor)):
        return X
    try:
        tensor = read(X) if path else tensor_of(X)
    except InputError as error:
        raise error if error.path else InputError(f"X: {error.cause}") from None
    if tensor is None:
        raise InputError(f"X is of type {type(X).__name__}: expected a tensor, an array, or the path of a tensor")
    return tensor


def _is_matrix(frame: Any, labels: Labels | None) -> bool:
    """Tell whether a frame is a matrix whose rows and columns have labels: a model of such, or of no table."""
    if labels is None or labels.names is None:
        return True
    return [getattr(axis, "name", None) for axis in getattr(frame, "axes", ())] == list(labels.names)


def _form(labels: Labels | None, value: str | None, where: str | None) -> Form:
    if labels is None or labels.names is None:
        raise InputError("X is a table: the model's labels have no names, which would be its keys")
    missing = any(each.size and _is_missing(each[-1]) for each in labels)
    return Form(key=labels.names, value=value, where=where, missing="keep" if missing else PLAIN.missing)


def _is_missing(label: Any) -> bool:
    return label is None or bool(label != label)


def matched(tensor: AnyTensor, labels: Labels | None, leave: int | None = None, known: bool = False) -> AnyTensor:
    """Return a tensor numbered as a model's labels are, where both have some; see `relabelled`. Tell what is lost."""
    if labels is None or tensor.labels is None:
        return tensor
    try:
        found, lost = relabelled(tensor, labels, leave, known)
    except InputError as error:
        raise InputError(f"X: {error.cause}") from None
    names = mode_names(labels, len(labels))
    parts = [f"{count:,} for {name} ({shown(some)})" for name, (count, some) in zip(names, lost, strict=True) if count]
    if parts:
        told = f"X: nonzeros with labels that the model does not know are left out: {', '.join(parts)}"
        warnings.warn(told, InputWarning, stacklevel=4)
    matching: AnyTensor = found
    return matching
