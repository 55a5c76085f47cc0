"""Observed elements of a tensor: those that a mask or weights select, as a sparse tensor with explicit zeros."""

from __future__ import annotations

from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from ..errors import InputError
from ..wording import setting
from .dense import DenseTensor
from .ingest import MAX_ORDER
from .interop import AnyTensor
from .sparse import SparseTensor

NAN, STORED = DenseTensor.own_mask, SparseTensor.own_mask

Columns = NDArray[np.int32]
Values = NDArray[np.float64]


class Observed(NamedTuple):
    """The observed elements of a tensor, and their weights; None if all weights are 1."""

    tensor: SparseTensor
    weights: Values | None = None


class Weighted(NamedTuple):
    """Weighted elements as a tensor with one more mode: the mode's factor column, and the sum of the weights."""

    tensor: SparseTensor
    scales: Values
    total: float


def observed_elements(
    tensor: AnyTensor, mask: AnyTensor | str | None = None, weights: AnyTensor | None = None
) -> Observed:
    """Return the observed elements of a tensor.

    Parameters
    ----------
    tensor : SparseTensor or DenseTensor
        If it is sparse, elements that are observed but not stored are zeros.
    mask : SparseTensor, DenseTensor, `NAN` or `STORED`, optional
        Selects the observed elements. A tensor selects the places where it is not zero, `NAN` the elements of a dense
        tensor that are not NaN, and `STORED` the elements that a sparse tensor stores. The default is the elements of
        nonzero weight or, without weights, `NAN` for a dense and `STORED` for a sparse tensor.
    weights : SparseTensor or DenseTensor, optional
        Weights of the elements; those of weight 0 are not observed.

    Raises
    ------
    InputError
        If shapes differ, a weight is negative or not finite, an observed element is not finite, or none is observed.
    """
    for name, other in (("mask", mask), ("weights", weights)):
        if other is not None and not isinstance(other, str) and other.shape != tensor.shape:
            raise InputError(f"{name} has shape {other.shape}, the tensor {tensor.shape}")
    tensor = tensor.with_gaps().in_memory()
    weights = weights if weights is None else weights.in_memory()
    columns, values = _selected(tensor, weights if mask is None else mask)
    chosen = None
    if weights is not None:
        _check_weights(weights)
        chosen = weights.at(columns)
        kept = chosen != 0
        columns, values, chosen = np.compress(kept, columns, axis=1), values[kept], chosen[kept]
    if not columns.shape[1]:
        raise InputError("no element is observed: all are missing")
    if not np.isfinite(values).all():
        at = int(np.argmin(np.isfinite(values)))
        place = columns[:, at].tolist()
        raise InputError(f"element {place} is observed, but is {values[at]}", path=getattr(tensor, "path", None))
    elements = SparseTensor.from_columns(columns, values, tensor.shape, keep_zeros=True)
    elements.labels = tensor.labels
    return Observed(elements, None if chosen is None or (chosen == 1).all() else chosen)


def check_stored(kind: str, zeros: int) -> None:
    """Raise `InputError` unless a tensor is sparse and stores all observed elements; `zeros` were dropped."""
    if kind != "sparse":
        cause = f"mask {STORED!r}: a dense tensor stores every element; use {NAN!r} or a tensor"
    elif zeros:
        cause = f"mask {STORED!r}: {zeros:,} explicit zeros, which are observed elements, were dropped"
        cause += f": keep them with {setting('keep_zeros')}"
    else:
        return
    raise InputError(cause)


def with_weights(observed: Observed) -> Weighted:
    """Return weighted elements as a tensor with one more mode.

    A residual ``sqrt(w) * (x - m)`` is that of the element ``sqrt(w) * x`` if the model has one more factor
    ``sqrt(w)``. The additional mode has an index for each distinct weight.

    Raises
    ------
    InputError
        If the tensor already has the highest order.
    """
    elements, weights = observed
    assert weights is not None
    if elements.order == MAX_ORDER:
        raise InputError(f"weights: amped supports them for orders up to {MAX_ORDER - 1}")
    distinct, index = np.unique(weights, return_inverse=True)
    scales = np.sqrt(distinct)
    columns = np.concatenate([elements.columns, index[None].astype(np.int32)])
    shape = (*elements.shape, distinct.size)
    tensor = SparseTensor.from_columns(columns, elements.values * scales[index], shape, keep_zeros=True)
    return Weighted(tensor, scales, float(weights.sum()))


def _check_weights(weights: AnyTensor) -> None:
    values = np.asarray(weights.elements)
    wrong = ~(np.isfinite(values) & np.greater_equal(values, 0))
    if wrong.any():
        raise InputError(f"weights: {values[wrong].flat[0]} is not a number of at least 0")


def _selected(tensor: AnyTensor, mask: AnyTensor | str | None) -> tuple[Columns, Values]:
    """Return the indices and values of the elements that a mask selects."""
    if mask is not None and not isinstance(mask, str):
        columns = mask.nonzero_places()
        return columns, tensor.at(columns)
    if (mask or tensor.own_mask) == STORED:
        check_stored(tensor.kind, tensor.zeros)
    elif tensor.own_mask != NAN:
        raise InputError(f"mask {NAN!r} applies to dense tensors; leave missing elements out and use {STORED!r}")
    return tensor.present()
