"""Tensors whose indices stand for other labels than those wanted: numbered anew, by their labels."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from functools import singledispatch
from typing import Any

import numpy as np
from numpy.typing import NDArray

from ..errors import InputError
from .dense import DenseTensor
from .labels import Labels, mode_names
from .sparse import SparseTensor

Relabelled = tuple[SparseTensor | DenseTensor, list[tuple[int, list[Any]]]]
"""A tensor, and for each mode how many nonzeros were left out, and some of their labels."""

LIKE = {"b": "number", "i": "number", "u": "number", "f": "number", "M": "time", "m": "duration", "T": "text"}
SOME = 3  # labels that an error names
TICKS = {"as": 1, "fs": 10**3, "ps": 10**6, "ns": 10**9, "us": 10**12, "ms": 10**15, "s": 10**18}
TICKS |= {"m": 60 * 10**18, "h": 3600 * 10**18, "D": 86_400 * 10**18, "W": 7 * 86_400 * 10**18}
"""Attoseconds of NumPy's units of time, but for months and years."""


def places(known: NDArray[Any], given: NDArray[Any]) -> NDArray[np.int64]:
    """Return the place of each given label among the known ones, -1 if it is not there; missing labels are equal.

    Equal arrays match by position, even where labels repeat. Raise `InputError` if the kinds of the labels differ, or
    if a label that is in both arrays stands for several indices of one of them.
    """
    kinds = LIKE[known.dtype.kind], LIKE[given.dtype.kind]
    if kinds[0] != kinds[1]:
        raise InputError(f"labels are {kinds[1]}s, the model's {kinds[0]}s")
    if _equal(known, given):
        return np.arange(known.size)
    ours, theirs = _hashable(known), _hashable(given)
    numbers = dict(zip(ours, range(len(ours)), strict=True))
    found = np.fromiter((numbers.get(label, -1) for label in theirs), np.int64, given.size)
    for whose, labels in (("the model", ours), ("X", theirs)):
        if len(set(labels)) < len(labels):
            _refuse_repeated(labels, numbers.keys() & set(theirs), whose)
    return found


def same_labels(first: NDArray[Any], second: NDArray[Any]) -> bool:
    """Return whether two arrays hold the same labels in the same order."""
    return LIKE[first.dtype.kind] == LIKE[second.dtype.kind] and _equal(first, second)


def _equal(first: NDArray[Any], second: NDArray[Any]) -> bool:
    """Return whether labels of one kind are equal, place by place."""
    if first.dtype == second.dtype and first.dtype.kind != "T":  # a missing string is not equal to itself
        return np.array_equal(first, second, equal_nan=first.dtype.kind in "fMm")
    return first.shape == second.shape and _hashable(first) == _hashable(second)


def _hashable(labels: NDArray[Any]) -> list[Any]:
    """Return labels as Python objects, equal only if the labels are: no number is rounded, missing ones are None."""
    if labels.dtype.kind in "Mm":
        if np.datetime_data(labels.dtype)[0] in ("Y", "M"):
            labels = labels.astype("M8[D]" if labels.dtype.kind == "M" else "m8[M]")
        unit, count = np.datetime_data(labels.dtype)
        ticks, missing = labels.astype(np.int64).tolist(), np.isnat(labels).tolist()
        step = count * TICKS.get(unit, 1)
        return [None if gone else (tick * step, unit in TICKS) for tick, gone in zip(ticks, missing, strict=True)]
    return [None if label is None or label != label else label for label in labels.tolist()]


def _refuse_repeated(labels: list[Any], common: set[Any], whose: str) -> None:
    """Raise `InputError` if one of the common labels stands for several indices."""
    counts = Counter(label for label in labels if label in common)
    repeated = [label for label, count in counts.items() if count > 1]
    if repeated:
        cause = f"label {shown(repeated[:1])} stands for {counts[repeated[0]]} indices of {whose}"
        raise InputError(f"{cause}: make labels unique, or give the indices in the model's order")


def relabelled(
    tensor: SparseTensor | DenseTensor, labels: Labels, leave: int | None = None, known: bool = False
) -> Relabelled:
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
    return _moved(tensor, labels, found, leave, known)


def in_order_of(tensor: SparseTensor | DenseTensor, labels: Labels) -> SparseTensor | DenseTensor:
    """Return a tensor with its modes in the order of the names in `labels`, if its own names are these in another."""
    given, wanted = tensor.labels, labels.names
    if given is None or given.names is None or wanted is None or given.names == wanted:
        return tensor
    if sorted(given.names) != sorted(wanted) or len(set(wanted)) < len(wanted):
        return tensor
    modes = [given.names.index(name) for name in wanted]
    moved = _transposed(tensor, modes)
    moved.labels = Labels((given[mode] for mode in modes), wanted, given.query)
    return moved


@singledispatch
def _transposed(tensor: object, modes: Sequence[int]) -> SparseTensor | DenseTensor:
    """Return a tensor with its modes in another order, without labels."""
    raise InputError(f"modes of a {type(tensor).__name__} have one order")


@_transposed.register
def _(tensor: DenseTensor, modes: Sequence[int]) -> DenseTensor:
    return DenseTensor(tensor.array().transpose(modes))


@_transposed.register
def _(tensor: SparseTensor, modes: Sequence[int]) -> SparseTensor:
    shape = [tensor.shape[m] for m in modes]
    return SparseTensor.from_columns(tensor.columns[modes], tensor.values.copy(), shape)


@singledispatch
def _moved(
    tensor: object, labels: Labels, found: Sequence[NDArray[np.int64]], leave: int | None, known: bool
) -> Relabelled:
    """Return a tensor with its indices at the places that were found, -1 for those of unknown labels."""
    raise InputError(f"a {type(tensor).__name__} has no labels")


@_moved.register
def _(
    tensor: SparseTensor, labels: Labels, found: Sequence[NDArray[np.int64]], leave: int | None, known: bool
) -> Relabelled:
    given = tensor.labels
    assert given is not None
    used = [np.unique(column[part[column] < 0]) for column, part in zip(tensor.columns, found, strict=True)]
    if known and any(each.size for each in used):
        names = mode_names(labels, len(labels))
        raise InputError(_unknown(names, [given[mode][each] for mode, each in enumerate(used)]))
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
    moved.labels = labels.replaced(given[m] if m == leave else labels[m] for m in range(len(labels)))
    return moved, lost


@_moved.register
def _(
    tensor: DenseTensor, labels: Labels, found: Sequence[NDArray[np.int64]], leave: int | None, known: bool
) -> Relabelled:
    """See `_moved`. Elements cannot be left out: the tensor has all labels, and no other."""
    names, array, given = mode_names(labels, len(labels)), tensor.array(), tensor.labels
    assert given is not None
    strange = [each[part < 0] for each, part in zip(given, found, strict=True)]
    if any(each.size for each in strange):
        raise InputError(_unknown(names, strange))
    for mode, part in enumerate(found):
        if mode != leave:
            if part.size != labels[mode].size:
                raise InputError(f"{names[mode]}: {part.size} labels, the model has {labels[mode].size}")
            array = np.take(array, np.argsort(part), axis=mode)
    moved = DenseTensor(array)
    moved.labels = labels.replaced(given[m] if m == leave else labels[m] for m in range(len(labels)))
    return moved, [(0, [])] * len(labels)


def _unknown(names: Sequence[str], strange: Sequence[NDArray[Any]]) -> str:
    known = zip(names, strange, strict=True)
    parts = [f"{each.size} of {name} ({shown(each[:SOME].tolist())})" for name, each in known if each.size]
    return f"labels that the model does not know: {', '.join(parts)}"


def shown(labels: Sequence[Any]) -> str:
    """Return a few labels as text, with what they are between."""
    texts = [text if len(text := repr(each)) <= 32 else f"{text[:29]}..." for each in labels]
    return ", ".join(texts) + ", ..." * (len(texts) == SOME)
