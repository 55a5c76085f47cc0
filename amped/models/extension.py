"""New elements for a model: their indices among the model's rows, with new rows for labels that it lacks."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Literal, NamedTuple

import numpy as np
from numpy.typing import NDArray

from partitioner.array_types import Floats
from partitioner.sorting.sort import stable_argsort
from partitioner.tensors.dense import DenseTensor, sparse_of
from partitioner.tensors.interop import AnyTensor
from partitioner.tensors.labels import Labels, mode_names
from partitioner.tensors.relabel import in_order_of, places

from ..errors import InputError
from .align import UNLESS_LABELLED, other_shape
from .kruskal import KruskalTensor

Elements = Literal["add", "replace"]


class NewElements(NamedTuple):
    """New elements of a model's tensor.

    Attributes
    ----------
    columns : list of (n,) int32 arrays
        Their indices in the extended model, by mode.
    values : (n,) array
    lengths : tuple of int
        The mode lengths of the extended model.
    labels : Labels, optional
        Those of the extended model.
    new : (k,) int64 array
        The new indices of the growing mode; empty if no mode grows.
    replaced : (n,) array, optional
        The model's values that the elements replace; without it, elements are added.
    """

    columns: list[NDArray[np.int32]]
    values: Floats
    lengths: tuple[int, ...]
    labels: Labels | None
    new: NDArray[np.int64]
    replaced: NDArray[np.float64] | None = None

    def batches(self, mode: int, size: int, known: int) -> Iterator[NewElements]:
        """Yield the elements of `size` slices of a mode after the other; slices from `known` on are new."""
        slices = np.union1d(self.columns[mode], self.new).astype(np.int64)
        perm = stable_argsort([self.columns[mode]], [self.lengths[mode]])
        columns, values = [column[perm] for column in self.columns], self.values[perm]
        for begin in range(0, slices.size, size):
            some = slices[begin : begin + size]
            first, end = np.searchsorted(columns[mode], np.array([some[0], some[-1] + 1], np.int32))
            length = max(known, int(some[-1]) + 1)
            lengths = (*self.lengths[:mode], length, *self.lengths[mode + 1 :])
            labels = self.labels
            if labels is not None:
                labels = labels.replaced(each[:n] for each, n in zip(labels, lengths, strict=True))
            own = [column[first:end] for column in columns]
            yield NewElements(own, values[first:end], lengths, labels, some[some >= known])


def new_elements(
    tensor: AnyTensor, shape: tuple[int, ...], labels: Labels | None, mode: int | None, elements: Elements
) -> NewElements:
    """Return the elements of a tensor for the update of a model of this shape; see `KruskalTensor.update`.

    Raises
    ------
    InputError
        If the tensor is empty, has NaN, or its shape or labels do not match.
    """
    if tensor.has_nan:
        raise InputError("X: an element is NaN: fit a model of observed elements (mask), or replace NaN by numbers")
    if len(tensor.shape) != len(shape):
        raise InputError(f"X is of order {len(tensor.shape)}, the model of order {len(shape)}")
    if isinstance(tensor, DenseTensor) and elements == "add" and np.any(tensor.elements):
        tensor = sparse_of(tensor)  # no sparse tensor is zero, but new slices may be
    if labels is not None and tensor.labels is not None:
        result = _by_label(in_order_of(tensor, labels), labels, mode)
    else:
        result = _by_position(tensor, shape, labels, mode)
    if not result.new.size and not (result.values.any() if elements == "add" else result.values.size):
        raise InputError("X is empty: it has no nonzero element and no new slice")
    if not np.isfinite(result.values).all():
        raise InputError("X: a value is infinite: all values must be finite")
    return result


def _by_label(tensor: AnyTensor, labels: Labels, mode: int | None) -> NewElements:
    """Match the indices of a tensor with labels; labels that the model lacks follow the model's."""
    own = tensor.labels
    assert own is not None
    columns, extended, names = np.array(tensor.places(), np.int32), list(labels), mode_names(labels, len(labels))
    for m, (known, theirs) in enumerate(zip(labels, own, strict=True)):
        try:
            found = places(known, theirs)
        except InputError as error:
            raise InputError(f"X: {names[m]}: {error.cause}") from None
        unknown = found < 0
        found[unknown] = known.size + np.arange(np.count_nonzero(unknown))
        columns[m] = found[columns[m]]
        if unknown.any():
            extended[m] = np.concatenate([known, theirs[unknown]])
    lengths = tuple(each.size for each in extended)
    new = np.arange(0) if mode is None else np.arange(labels[mode].size, lengths[mode])
    return NewElements(list(columns), tensor.elements, lengths, labels.replaced(extended), new)


def _by_position(tensor: AnyTensor, shape: tuple[int, ...], labels: Labels | None, mode: int | None) -> NewElements:
    """Match the indices of a tensor by position: all slices of the growing mode are new."""
    expected = tuple(length if m != mode else tensor.shape[m] for m, length in enumerate(shape))
    if tensor.shape != expected:
        appending = "" if mode is not None else "; mode=N appends slices in mode N"
        raise other_shape(tensor.shape, shape, mode, UNLESS_LABELLED + appending)
    if mode is None:
        return NewElements(list(tensor.places()), tensor.elements, shape, labels, np.arange(0))
    if labels is not None:
        cause = f"X has no labels, but the model has labels of the slices in mode {mode}"
        raise InputError(f"{cause}: label X, or use model.labelled(None)")
    columns = list(tensor.places())
    columns[mode] = columns[mode] + shape[mode]
    lengths = tuple(length + (tensor.shape[m] if m == mode else 0) for m, length in enumerate(shape))
    return NewElements(columns, tensor.elements, lengths, None, np.arange(shape[mode], lengths[mode]))


def replacing(new: NewElements, model: KruskalTensor) -> NewElements:
    """Return elements that replace the model's values, which are 0 for new labels."""
    known = np.all([column < length for column, length in zip(new.columns, model.shape, strict=True)], axis=0)
    replaced = np.zeros(len(new.values))
    replaced[known] = model.predict_at([column[known] for column in new.columns])
    return new._replace(replaced=replaced)
