"""What a CP model says: the labels that make up its components, and how well it explains a tensor."""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from functools import singledispatch
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from partitioner.host.threads import side_by_side, usable_cores
from partitioner.tensors.dense import DenseTensor
from partitioner.tensors.labels import Labels
from partitioner.tensors.sparse import SparseTensor

from ..errors import InputError

BLOCK = 1 << 16  # coordinates whose values are computed at once by a thread
DENSE_BLOCK = 1 << 22  # elements of a dense tensor whose coordinates are there at once
LEAST = 1e-10  # that a model of counts expects, in logarithms

Item = tuple[Any, float]
"""A label, or an index where there are no labels, and its number in a column."""


class Component(NamedTuple):
    """One component: what it weighs, and the labels that have most of it.

    Attributes
    ----------
    number : int
        Counted from 0.
    weight : float
        The component's length.
    share : float
        Of the model: of what its components add up to.
    top : tuple
        For each mode (label, number in the column), the largest magnitude first.
    """

    number: int
    weight: float
    share: float
    top: tuple[tuple[Item, ...], ...]


class Entry(NamedTuple):
    """A value that a tensor holds, and what a model says of it.

    Attributes
    ----------
    labels : tuple
        One a mode; indices where there are no labels.
    value, expected : float
        The tensor's, and the model's.
    """

    labels: tuple[Any, ...]
    value: float
    expected: float


class Residuals(NamedTuple):
    """Where a model explains a tensor least.

    Attributes
    ----------
    entries : tuple of Entry
        Those values that are farthest from what is expected, the farthest first.
    labels : tuple
        For each mode (label, share of `squared`), the largest first.
    squared : float
        Distances of all values that the tensor holds, squared and added up.
    """

    entries: tuple[Entry, ...]
    labels: tuple[tuple[Item, ...], ...]
    squared: float


def shares(weights: NDArray[np.float64], factors: Sequence[NDArray[Any]]) -> NDArray[np.float64]:
    """Return each component's share of the model, (R,); they add up to 1.

    Where no number is negative, a share is of the model's sum. Otherwise it is of its squared norm: the inner product
    of the component with the whole model, which is below 0 for one that takes away from others more than it adds.
    """
    if all(f.min(initial=0) >= 0 for f in factors):
        parts = weights * np.prod([f.sum(axis=0, dtype=np.float64) for f in factors], axis=0)
    else:
        exact = [f.astype(np.float64, copy=False) for f in factors]
        parts = weights * (np.prod([f.T @ f for f in exact], axis=0) @ weights)
    total = parts.sum()
    found: NDArray[np.float64] = parts / total if total > 0 else np.zeros_like(parts)
    return found


def components(
    weights: NDArray[np.float64], factors: Sequence[NDArray[Any]], labels: Labels | None, count: int
) -> list[Component]:
    """Return the components in their order, with up to `count` labels a mode; zeros are left out."""
    parts = shares(weights, factors)
    tops = [tops_of(factor, None if labels is None else labels[mode], count) for mode, factor in enumerate(factors)]
    return [
        Component(r, float(weights[r]), float(parts[r]), tuple(top[r] for top in tops)) for r in range(weights.size)
    ]


def tops_of(factor: NDArray[Any], labels: NDArray[Any] | None, count: int) -> list[tuple[Item, ...]]:
    """Return, for each column, its largest numbers and their labels."""
    sizes = np.abs(factor)
    count = min(count, len(factor))
    found = []
    for r in range(factor.shape[1]):
        rows = np.argpartition(-sizes[:, r], count - 1)[:count] if count else np.empty(0, np.intp)
        rows = rows[np.lexsort((rows, -sizes[rows, r]))]
        found.append(tuple((label_of(labels, row), float(factor[row, r])) for row in rows if factor[row, r]))
    return found


def label_of(labels: NDArray[Any] | None, row: int) -> Any:
    """Return what a row stands for: a number, text or time of Python's or NumPy's; its index without labels."""
    if labels is None:
        return int(row)
    label = labels[row]
    return label.item() if isinstance(label, np.generic) and label.dtype.kind in "biuf" else label


def readable_signs(bulk: NDArray[np.float64]) -> NDArray[np.float64]:
    """Return signs for the columns, (order, R), that leave all components as they are, and make their bulk positive.

    The bulk of a column is the sum of its squares with their numbers' signs, divided by that of its squares. Signs come
    in pairs: where that leaves one mode over, it is the one that is least clear.
    """
    signs = np.where(bulk < 0, -1.0, 1.0)
    odd = np.flatnonzero(np.prod(signs, axis=0) < 0)
    signs[np.argmin(np.abs(bulk[:, odd]), axis=0), odd] *= -1
    return signs


def values_at(
    weights: NDArray[np.float64], factors: Sequence[NDArray[Any]], columns: Sequence[NDArray[np.integer[Any]]]
) -> NDArray[np.float64]:
    """Return the model's values at some coordinates, (n,), one array of indices a mode; in threads."""
    count = len(columns[0])
    found = np.empty(count)

    def block(begin: int) -> None:
        part = slice(begin, begin + BLOCK)
        rows = weights[None, :] * factors[0][columns[0][part]]
        for factor, column in zip(factors[1:], columns[1:], strict=True):
            rows *= factor[column[part]]
        found[part] = rows.sum(axis=1)

    begins = range(0, count, BLOCK)
    side_by_side(block, begins, min(usable_cores(), max(1, len(begins))))
    return found


Block = tuple[Sequence[NDArray[np.integer[Any]]], NDArray[Any]]
"""Coordinates, one array of indices a mode, and the values there."""


@singledispatch
def blocks_of(tensor: Any) -> Iterator[Block]:
    """Yield what a tensor holds: its nonzeros, or all of its elements some at a time. All must be finite."""
    raise TypeError(f"no elements of {type(tensor).__name__} are known")


@blocks_of.register
def _(tensor: SparseTensor) -> Iterator[Block]:
    if (bad := _not_finite(tensor.values)) is not None:
        raise InputError(f"value of nonzero {bad} is {tensor.values[bad]}: every value must be finite")
    yield list(tensor.columns), tensor.values


@blocks_of.register
def _(tensor: DenseTensor) -> Iterator[Block]:
    array = tensor.array().reshape(-1)
    for begin in range(0, array.size, DENSE_BLOCK):
        values = array[begin : begin + DENSE_BLOCK]
        if (bad := _not_finite(values)) is not None:
            index = [int(each) for each in np.unravel_index(begin + bad, tensor.shape)]
            raise InputError(f"element {index} is {values[bad]}: every element must be finite", path=tensor.path)
        yield np.unravel_index(np.arange(begin, begin + values.size), tensor.shape), values


def _not_finite(values: NDArray[Any]) -> int | None:
    """Return the place of the first value that is not finite, if there is one."""
    for begin in range(0, values.size, DENSE_BLOCK):
        finite = np.isfinite(values[begin : begin + DENSE_BLOCK])
        if not finite.all():
            return begin + int(finite.argmin())
    return None


def residuals(
    weights: NDArray[np.float64],
    factors: Sequence[NDArray[Any]],
    tensor: SparseTensor | DenseTensor,
    labels: Labels | None,
    count: int,
) -> Residuals:
    """Return the held values, and the labels of each mode, that are farthest from what is expected."""
    sums, farthest = [np.zeros(length) for length in tensor.shape], list[tuple[float, tuple[int, ...], float, float]]()
    for columns, values in blocks_of(tensor):
        expected = values_at(weights, factors, columns)
        squares = np.square(values - expected)
        for total, column in zip(sums, columns, strict=True):
            total += np.bincount(column, squares, total.size)
        few = min(count, squares.size)
        for row in np.argpartition(-squares, few - 1)[:few] if few else ():
            place = tuple(int(column[row]) for column in columns)
            farthest.append((float(squares[row]), place, float(values[row]), float(expected[row])))
        farthest = sorted(farthest, key=lambda each: (-each[0], each[1]))[:count]
    known = [None] * len(sums) if labels is None else labels
    entries = tuple(
        Entry(tuple(map(label_of, known, place)), value, expected) for _, place, value, expected in farthest
    )
    squared = float(sums[0].sum())
    by_mode = [
        tops_of(total[:, None] / (squared or 1.0), each, count)[0] for total, each in zip(sums, known, strict=True)
    ]
    return Residuals(entries, tuple(by_mode), squared)


def inner_product(
    weights: NDArray[np.float64], factors: Sequence[NDArray[Any]], tensor: SparseTensor | DenseTensor
) -> float:
    """Return the inner product of a model with a tensor."""
    parts = (dot(values, values_at(weights, factors, columns)) for columns, values in blocks_of(tensor))
    return math.fsum(parts)


def dot(values: NDArray[Any], expected: NDArray[np.float64]) -> float:
    """Return the inner product of values with those of a model, summed pairwise: millions lose no digits."""
    return float(np.sum(np.multiply(values, expected, dtype=np.float64)))


def fit_of(tensor: SparseTensor | DenseTensor, size: float, inner: float) -> float:
    """Return ``1 - ||X - M|| / ||X||`` from a model's norm and its inner product with the tensor."""
    norm = tensor.norm()
    if not norm:
        raise InputError("X has no values but zeros")
    return 1 - float(np.sqrt(max(0.0, norm**2 + size**2 - 2 * inner))) / norm


def tensor_sum(tensor: SparseTensor | DenseTensor) -> float:
    """Return the sum of all values of a tensor."""
    return float(sum(values.sum(dtype=np.float64) for _, values in blocks_of(tensor)))


def explained_deviance(
    weights: NDArray[np.float64], factors: Sequence[NDArray[Any]], tensor: SparseTensor | DenseTensor
) -> float:
    """Return how far a model of counts has come from one rate for all elements, 0, to each count itself, 1.

    The deviance is twice what the Poisson log-likelihood of the counts lacks of the highest there is. Expected counts
    are taken to be at least `LEAST` where something was counted.
    """
    total, model, uniform = 0.0, 0.0, 0.0
    for columns, values in blocks_of(tensor):
        held = values > 0
        counts = values[held].astype(np.float64)
        expected = np.maximum(values_at(weights, factors, [column[held] for column in columns]), LEAST)
        total += counts.sum()
        model += float(counts @ np.log(counts / expected))
        uniform += float(counts @ np.log(counts))
    mass = float(weights @ np.prod([f.sum(axis=0, dtype=np.float64) for f in factors], axis=0))
    uniform -= total * np.log(total / math.prod(map(float, tensor.shape))) if total else 0.0
    return float(1 - (model - total + mass) / uniform) if uniform > 0 else 0.0
