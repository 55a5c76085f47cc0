"""Renumber the indices of a tensor to match the labels of a model."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Sequence
from functools import singledispatch
from typing import Any

import numpy as np
from numpy.typing import NDArray

from ..array_types import HostArray
from ..errors import InputError
from .dense import DenseTensor
from .labels import Labels, mode_names
from .sparse import SparseTensor

Relabelled = tuple[SparseTensor | DenseTensor, list[tuple[int, list[Any]]]]
"""A tensor, and for each mode the number of dropped nonzeros or elements and some of their labels."""

LIKE = {"b": "number", "i": "number", "u": "number", "f": "number", "M": "time", "m": "duration", "T": "text"}
MAX_SHOWN = 3  # labels in an error message
TICKS = {"as": 1, "fs": 10**3, "ps": 10**6, "ns": 10**9, "us": 10**12, "ms": 10**15, "s": 10**18}
TICKS |= {"m": 60 * 10**18, "h": 3600 * 10**18, "D": 86_400 * 10**18, "W": 7 * 86_400 * 10**18}
"""Attoseconds per NumPy time unit, except months and years."""


def places(known: HostArray, labels: HostArray) -> NDArray[np.int64]:
    """Return the position of each label in `labels` among the `known` ones, or -1. Missing labels are equal.

    Equal arrays match by position, even if labels repeat. Raises `InputError` if the types of labels differ, or if a
    label in both arrays belongs to several indices of one of them.
    """
    _check_types(known, labels)
    if _equal(known, labels):
        return np.arange(known.size)
    ours, theirs = _hashable(known), _hashable(labels)
    numbers = dict(zip(ours, range(len(ours)), strict=True))
    positions = np.fromiter((numbers.get(label, -1) for label in theirs), np.int64, labels.size)
    for whose, each, plain in (("the model", ours, known), ("X", theirs, labels)):
        if len(set(each)) < len(each):
            _refuse_repeated(plain, each, numbers.keys() & set(theirs), whose)
    return positions


def found_at(known: HostArray, labels: HostArray) -> NDArray[np.int64]:
    """Return the position of each label, which may occur several times, among the `known` ones, or -1.

    Raises `InputError` if the types of labels differ, or if one of the labels belongs to several known indices.
    """
    _check_types(known, labels)
    ours = _hashable(known)
    numbers = dict(zip(ours, range(len(ours)), strict=True))
    theirs = _hashable(labels)
    if len(numbers) < len(ours):
        _refuse_repeated(known, ours, numbers.keys() & set(theirs), "the model")
    return np.fromiter((numbers.get(label, -1) for label in theirs), np.int64, labels.size)


def _check_types(known: HostArray, labels: HostArray) -> None:
    kinds = LIKE[known.dtype.kind], LIKE[labels.dtype.kind]
    if kinds[0] != kinds[1]:
        raise InputError(f"labels are {kinds[1]}s, the model's {kinds[0]}s: convert them")


def same_labels(first: HostArray, second: HostArray) -> bool:
    """Return whether two arrays contain the same labels in the same order."""
    return LIKE[first.dtype.kind] == LIKE[second.dtype.kind] and _equal(first, second)


def _equal(first: HostArray, second: HostArray) -> bool:
    """Return whether labels of the same type are equal, element by element."""
    if first.dtype == second.dtype and first.dtype.kind != "T":  # missing strings do not compare equal
        return np.array_equal(first, second, equal_nan=first.dtype.kind in "fMm")
    return first.shape == second.shape and _hashable(first) == _hashable(second)


def _hashable(labels: HostArray) -> list[Any]:
    """Return labels as exact Python objects; missing labels are None."""
    if labels.dtype.kind in "Mm":
        if np.datetime_data(labels.dtype.str)[0] in ("Y", "M"):
            labels = labels.astype("M8[D]" if labels.dtype.kind == "M" else "m8[M]")
        unit, count = np.datetime_data(labels.dtype.str)
        ticks, missing = labels.astype(np.int64).tolist(), np.isnat(labels).tolist()
        step = count * TICKS.get(unit, 1)
        return [None if gone else (tick * step, unit in TICKS) for tick, gone in zip(ticks, missing, strict=True)]
    return [None if label is None or label != label else label for label in labels.tolist()]


def _refuse_repeated(labels: HostArray, hashable: list[Any], common: set[Any], whose: str) -> None:
    """Raise `InputError` if one of the common labels belongs to several indices."""
    counts = Counter(label for label in hashable if label in common)
    repeated = [label for label, count in counts.items() if count > 1]
    if repeated:
        place = hashable.index(repeated[0])
        cause = f"label {shown(labels[place : place + 1])} stands for {counts[repeated[0]]} indices of {whose}"
        raise InputError(f"{cause}: make labels unique, or order the indices as in the model")


def relabelled(
    tensor: SparseTensor | DenseTensor, labels: Labels, leave: int | None = None, known: bool = False
) -> Relabelled:
    """Renumber a tensor so that its indices have the labels `labels`.

    Parameters
    ----------
    tensor : SparseTensor or DenseTensor
        Tensor with labels.
    labels : Labels
        Labels of the new indices.
    leave : int, optional
        Mode that stays unchanged.
    known : bool
        Whether labels that are not in `labels` are an error. By default their nonzeros or elements are dropped.

    Returns
    -------
    tensor
        The renumbered tensor; the same object if its labels match already.
    list
        For each mode, the number of nonzeros or elements dropped because of its labels, and some of these labels.

    Raises
    ------
    InputError
        If labels have other types, or are unknown although `known` is set, or a dense tensor lacks some of `labels`.
    """
    own, order = tensor.labels, len(tensor.shape)
    assert own is not None
    if order != len(labels):
        raise InputError(f"a tensor of {order} modes, the model has {len(labels)}")
    others = [mode for mode in range(order) if mode != leave]
    if all(same_labels(labels[mode], own[mode]) for mode in others):
        return tensor, [(0, [])] * order
    positions, names = [np.arange(each.size) for each in own], mode_names(labels, order)
    for mode in others:
        try:
            positions[mode] = places(labels[mode], own[mode])
        except InputError as error:
            raise InputError(f"{names[mode]}: {error.cause}") from None
    return _moved(tensor, labels, positions, leave, known)


def in_order_of(tensor: SparseTensor | DenseTensor, labels: Labels) -> SparseTensor | DenseTensor:
    """Return a tensor with its modes in the order of the names in `labels`, if it has the same names."""
    own = tensor.labels
    modes = mode_order(labels, own, len(tensor.shape))
    if own is None or modes == list(range(len(modes))):
        return tensor
    moved = _transposed(tensor, modes)
    units = own.units and [own.units[mode] for mode in modes]
    moved.labels = Labels((own[mode] for mode in modes), labels.names, own.query and own.query.taken(modes), units)
    return moved


def mode_order(labels: Labels | None, own: Labels | None, order: int) -> list[int]:
    """Return the modes of `own` that have the names of the modes of `labels`, or the same positions."""
    names = None if labels is None else labels.names
    if names is None or own is None or own.names is None:
        return list(range(order))
    if sorted(own.names) != sorted(names) or len(set(names)) < len(names):
        return list(range(order))
    return [own.names.index(name) for name in names]


@singledispatch
def _transposed(tensor: object, modes: Sequence[int]) -> SparseTensor | DenseTensor:
    """Return a tensor with its modes in another order, without labels."""
    raise InputError(f"the modes of a {type(tensor).__name__} cannot be reordered")


@_transposed.register
def _(tensor: DenseTensor, modes: Sequence[int]) -> DenseTensor:
    return tensor.replaced(tensor.array().transpose(modes))


@_transposed.register
def _(tensor: SparseTensor, modes: Sequence[int]) -> SparseTensor:
    shape = [tensor.shape[m] for m in modes]
    values = tensor.values.copy()
    return SparseTensor.from_columns(tensor.columns[modes], values, shape, keep_zeros=tensor.keeps_zeros)


@singledispatch
def _moved(
    tensor: object, labels: Labels, positions: Sequence[NDArray[np.int64]], leave: int | None, known: bool
) -> Relabelled:
    """Return a tensor with its indices at new `positions`, which are -1 for unknown labels."""
    raise InputError(f"a {type(tensor).__name__} has no labels")


@_moved.register
def _(
    tensor: SparseTensor, labels: Labels, positions: Sequence[NDArray[np.int64]], leave: int | None, known: bool
) -> Relabelled:
    own = tensor.labels
    assert own is not None
    used = [np.unique(column[part[column] < 0]) for column, part in zip(tensor.columns, positions, strict=True)]
    if known and any(each.size for each in used):
        names = mode_names(labels, len(labels))
        raise InputError(_unknown(names, [own[mode][each] for mode, each in enumerate(used)]))
    columns = np.array([part[column] for part, column in zip(positions, tensor.columns, strict=True)])
    selected = (columns >= 0).all(axis=0)
    if not selected.any():
        names = mode_names(labels, len(labels))
        modes = zip(names, positions, tensor.columns, strict=True)
        new = [name for name, part, column in modes if (part[column] < 0).all()]
        cause = f": it knows no label of {' and '.join(new)}" if new else ""
        raise InputError(f"no nonzero has labels that the model knows{cause}")
    dropped = []
    for mode, column in enumerate(tensor.columns):
        outside = column[columns[mode] < 0]
        dropped.append((outside.size, [*own[mode][np.unique(outside)[: MAX_SHOWN + 1]]]))
    shape = [own[m].size if m == leave else labels[m].size for m in range(len(labels))]
    chosen = columns[:, selected].astype(np.int32), tensor.values[selected]
    moved = SparseTensor.from_columns(*chosen, shape, keep_zeros=tensor.keeps_zeros)
    moved.labels = labels.replaced(own[m] if m == leave else labels[m] for m in range(len(labels)))
    return moved, dropped


@_moved.register
def _(
    tensor: DenseTensor, labels: Labels, positions: Sequence[NDArray[np.int64]], leave: int | None, known: bool
) -> Relabelled:
    """See `_moved`. The tensor must have all labels of `labels`, except in mode `leave`."""
    names, array, own = mode_names(labels, len(labels)), tensor.array(), tensor.labels
    assert own is not None
    unknown = [each[part < 0] for each, part in zip(own, positions, strict=True)]
    if known and any(each.size for each in unknown):
        raise InputError(_unknown(names, unknown))
    dropped, size = [], array.size
    for mode, part in enumerate(positions):
        dropped.append((size // part.size * unknown[mode].size, [*unknown[mode][: MAX_SHOWN + 1]]))
        if mode != leave:
            rows = np.flatnonzero(part >= 0)
            if rows.size != labels[mode].size:
                lacking = f"{rows.size} of the model's {labels[mode].size} labels"
                raise InputError(f"{names[mode]}: has {lacking}; a dense tensor needs all, a sparse one may have fewer")
            array = np.take(array, rows[np.argsort(part[rows])], axis=mode)
    moved = tensor.replaced(array)
    moved.labels = labels.replaced(own[m] if m == leave else labels[m] for m in range(len(labels)))
    return moved, dropped


def _unknown(names: Sequence[str], unknown: Sequence[HostArray]) -> str:
    known = zip(names, unknown, strict=True)
    parts = [f"{each.size} of {name} ({shown(each[: MAX_SHOWN + 1])})" for name, each in known if each.size]
    return f"labels that the model does not know: {', '.join(parts)}"


def shown(labels: Iterable[object]) -> str:
    """Return the first `MAX_SHOWN` labels as text, separated by commas; only strings are quoted."""
    texts = [repr(each) if isinstance(each, str) else str(each) for each in labels]
    cut = [text if len(text) <= 32 else f"{text[:29]}..." for text in texts[:MAX_SHOWN]]
    return ", ".join(cut) + ", ..." * (len(texts) > MAX_SHOWN)
