"""Tensors whose indices stand for other labels than those wanted: numbered anew, by their labels."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

from .coo import SparseTensor
from .dense import DenseTensor
from .errors import InputError
from .labels import Labels, mode_names

LIKE = {"b": "number", "i": "number", "u": "number", "f": "number", "M": "time", "m": "duration", "T": "text"}
SOME = 3  # labels that an error names


def places(known: NDArray[Any], given: NDArray[Any]) -> NDArray[np.int64]:
    """Return where each of some labels is among those known, -1 where it is not; a missing one is like another.

    Raise `InputError` if they are of other kinds.
    """
    kinds = LIKE[known.dtype.kind], LIKE[given.dtype.kind]
    if kinds[0] != kinds[1]:
        raise InputError(f"labels are {kinds[1]}s, the model's {kinds[0]}s")
    if kinds[0] == "text":
        numbers = {label: place for place, label in enumerate(known.tolist())}
        return np.fromiter((numbers.get(label, -1) for label in given.tolist()), np.int64, given.size)
    if not known.size:
        return np.full(given.size, -1)
    common = np.promote_types(known.dtype, given.dtype)
    ours, theirs = known.astype(common), given.astype(common)
    order = np.argsort(ours, kind="stable")  # what is missing comes last
    found = order[np.minimum(np.searchsorted(ours, theirs, sorter=order), known.size - 1)]
    alike = (ours[found] == theirs) | ((ours[found] != ours[found]) & (theirs != theirs))
    return np.where(alike, found, -1)


def same_labels(first: NDArray[Any], second: NDArray[Any]) -> bool:
    """Tell whether labels are the same, in the same order."""
    if first.shape != second.shape or LIKE[first.dtype.kind] != LIKE[second.dtype.kind]:
        return False
    return bool(np.array_equal(places(first, second), np.arange(first.size)))


def relabelled(
    tensor: SparseTensor | DenseTensor, labels: Labels, leave: int | None = None, known: bool = False
) -> tuple[Any, list[tuple[int, list[Any]]]]:
    """Return a tensor whose indices stand for `labels`, in all modes but the one that it is to `leave` as it is.

    Parameters
    ----------
    tensor : SparseTensor or DenseTensor
        With labels.
    labels : Labels
    leave : int, optional
    known : bool
        Whether a label that is not among `labels` is an error; otherwise its nonzeros are left out.

    Returns
    -------
    tensor
        The same one if its labels are those.
    list
        Of each mode, how many nonzeros are left out for its labels, and some of these labels.

    Raises
    ------
    InputError
        If labels are of other kinds, or are not known where they must be: a dense tensor has no element to leave out.
    """
    given, order = tensor.labels, len(tensor.shape)
    assert given is not None
    if order != len(labels):
        raise InputError(f"a tensor of {order} modes, the model has {len(labels)}")
    others = [mode for mode in range(order) if mode != leave]
    if all(same_labels(labels[mode], given[mode]) for mode in others):
        return tensor, [(0, [])] * order
    found, names = [np.arange(each.size) for each in given], mode_names(labels, order)
    for mode in others:
        try:
            found[mode] = places(labels[mode], given[mode])
        except InputError as error:
            raise InputError(f"{names[mode]}: {error.cause}") from None
    strange = [given[mode][found[mode] < 0] for mode in range(order)]
    if isinstance(tensor, DenseTensor):
        return _dense(tensor, labels, found, strange, leave), [(0, [])] * order
    used = [np.unique(column[part[column] < 0]) for column, part in zip(tensor.columns, found, strict=True)]
    if known and any(each.size for each in used):
        raise InputError(_unknown(names, [given[mode][each] for mode, each in enumerate(used)]))
    return _sparse(tensor, labels, found, leave)


def _sparse(
    tensor: SparseTensor, labels: Labels, found: Sequence[NDArray[np.int64]], leave: int | None
) -> tuple[SparseTensor, list[tuple[int, list[Any]]]]:
    given = tensor.labels
    assert given is not None
    columns = np.array([part[column] for part, column in zip(found, tensor.columns, strict=True)])
    inside = (columns >= 0).all(axis=0)
    if not inside.any():
        raise InputError("no nonzero has labels that the model knows")
    lost = []
    for mode, column in enumerate(tensor.columns):
        outside = column[columns[mode] < 0]
        lost.append((outside.size, given[mode][np.unique(outside)[:SOME]].tolist()))
    shape = [given[m].size if m == leave else labels[m].size for m in range(len(labels))]
    moved = SparseTensor.from_columns(columns[:, inside].astype(np.int32), tensor.values[inside], shape)
    moved.labels = Labels((given[m] if m == leave else labels[m] for m in range(len(labels))), labels.names)
    return moved, lost


def _dense(
    tensor: DenseTensor,
    labels: Labels,
    found: Sequence[NDArray[np.int64]],
    strange: Sequence[NDArray[Any]],
    leave: int | None,
) -> DenseTensor:
    """Return a dense tensor with its indices in another order: it has all labels, and no other."""
    names, array = mode_names(labels, len(labels)), tensor.array()
    if any(each.size for each in strange):
        raise InputError(_unknown(names, strange))
    for mode, part in enumerate(found):
        if mode != leave:
            if part.size != labels[mode].size:
                raise InputError(f"{names[mode]}: {part.size} labels, the model has {labels[mode].size}")
            array = np.take(array, np.argsort(part), axis=mode)
    moved, given = DenseTensor(array), tensor.labels
    assert given is not None
    moved.labels = Labels((given[m] if m == leave else labels[m] for m in range(len(labels))), labels.names)
    return moved


def _unknown(names: Sequence[str], strange: Sequence[NDArray[Any]]) -> str:
    known = zip(names, strange, strict=True)
    parts = [f"{each.size} of {name} ({shown(each[:SOME].tolist())})" for name, each in known if each.size]
    return f"labels that the model does not know: {', '.join(parts)}"


def shown(labels: Sequence[Any]) -> str:
    """Return a few labels as text, with what they are between."""
    texts = [text if len(text := repr(each)) <= 32 else f"{text[:29]}..." for each in labels]
    return ", ".join(texts) + ", ..." * (len(texts) == SOME)
