"""Interpretation of CP models: top labels of each component, values at coordinates, fit and explained deviance."""

from __future__ import annotations

import math
from collections.abc import Iterable, Iterator, Sequence
from functools import singledispatch
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from partitioner.array_types import Floats, HostArray, Integers
from partitioner.host.threads import parallel_map, threads_for
from partitioner.tensors.dense import DenseTensor
from partitioner.tensors.labels import Labels, mode_names
from partitioner.tensors.sparse import SparseTensor

from ..errors import InputError
from .dataframe import dataframe

if TYPE_CHECKING:
    from pandas import DataFrame

BLOCK = 1 << 16  # coordinates evaluated at once by a thread
DENSE_BLOCK = 1 << 22  # elements of a dense tensor whose coordinates are in memory at once
ORDERED = "iufMmb"  # kinds of labels that are numbers or times
LEAST = 1e-10  # lower bound of the expected counts in logarithms

Item = tuple[Any, float]
"""A label (an index if the mode has no labels) and its entry in a column of the factor matrix."""


class Component(NamedTuple):
    """One component of a CP model: its weight and its top labels.

    Attributes
    ----------
    number : int
        Number of the component, counted from 0.
    weight : float
        Norm of the component.
    share : float
        Share of the component in the model; see `KruskalTensor.shares`.
    top : tuple
        For each mode the pairs (label, entry in the column), the largest magnitude first.
    """

    number: int
    weight: float
    share: float
    top: tuple[tuple[Item, ...], ...]


class Components(list[Component]):
    """The components of a CP model with their top labels: a list of `Component`, shown as a table in notebooks.

    Attributes
    ----------
    names : tuple of str
        Names of the modes.

    Examples
    --------
    >>> model = KruskalTensor(np.ones(1), [np.ones((1, 1)), np.array([[0.2], [0.8]])])
    >>> model.top().to_frame()[["mode", "label", "entry"]].values.tolist()
    [['mode 0', 0, 1.0], ['mode 1', 1, 0.8], ['mode 1', 0, 0.2]]
    """

    def __init__(self, items: Iterable[Component] = (), names: Sequence[str] = ()) -> None:
        super().__init__(items)
        self.names = tuple(names)

    def to_frame(self) -> DataFrame:
        """Return the top labels as a pandas DataFrame.

        Returns
        -------
        pandas.DataFrame
            One row per component, mode and label: ``component`` (its number, from 0), ``share``, ``weight``, ``mode``
            (its name), ``place`` (0 for the largest magnitude), ``label`` and ``entry`` (in the column of the factor
            matrix).

        Raises
        ------
        InputError
            If pandas is not installed.
        """
        rows = [
            (each.number, each.share, each.weight, name, place, *item)
            for each in self
            for name, top in zip(self.names, each.top, strict=True)
            for place, item in enumerate(top)
        ]
        heads = "component", "share", "weight", "mode", "place", "label", "entry"
        return dataframe({head: [row[at] for row in rows] for at, head in enumerate(heads)})

    def _repr_html_(self) -> str:
        from ..report.notebook import components_table

        return components_table(self)


def shares(weights: NDArray[np.float64], factors: Sequence[Floats]) -> NDArray[np.float64]:
    """Return each component's share of the model, (R,); the shares add up to 1.

    If no number is negative, the share is that of the model's sum. Otherwise it is that of the model's squared norm:
    the inner product of the component with the whole model, which is negative if the component mostly cancels others.
    """
    if all(f.min(initial=0) >= 0 for f in factors):
        parts = weights * np.prod([f.sum(axis=0, dtype=np.float64) for f in factors], axis=0)
    else:
        exact = [f.astype(np.float64, copy=False) for f in factors]
        parts = weights * (np.prod([f.T @ f for f in exact], axis=0) @ weights)
    total = parts.sum()
    return parts / total if total > 0 else np.zeros_like(parts)


def components(
    weights: NDArray[np.float64], factors: Sequence[Floats], labels: Labels | None, count: int
) -> Components:
    """Return the components in order, with up to `count` labels per mode; zero entries are left out."""
    parts = shares(weights, factors)
    tops = [tops_of(factor, None if labels is None else labels[mode], count) for mode, factor in enumerate(factors)]
    items = (
        Component(r, float(weights[r]), float(parts[r]), tuple(top[r] for top in tops)) for r in range(weights.size)
    )
    return Components(items, mode_names(labels, len(factors)))


def tops_of(factor: Floats, labels: HostArray | None, count: int) -> list[tuple[Item, ...]]:
    """Return, for each column, its `count` entries of largest magnitude with their labels."""
    sizes = np.abs(factor)
    count = min(count, len(factor))
    tops = []
    for r in range(factor.shape[1]):
        rows = np.argpartition(-sizes[:, r], count - 1)[:count] if count else np.empty(0, np.intp)
        rows = rows[np.lexsort((rows, -sizes[rows, r]))]
        tops.append(tuple((label_of(labels, row), float(factor[row, r])) for row in rows if factor[row, r]))
    return tops


def is_ordered(labels: HostArray | None) -> bool:
    """Return whether labels are numbers, times or indices."""
    return labels is None or labels.dtype.kind in ORDERED


def label_of(labels: HostArray | None, row: int) -> Any:
    """Return the label of a row as a plain Python object where possible; without labels, the index."""
    if labels is None:
        return int(row)
    label = labels[row]
    return label.item() if isinstance(label, np.generic) and label.dtype.kind in "biuf" else label


def values_at(
    weights: NDArray[np.float64], factors: Sequence[Floats], columns: Sequence[Integers]
) -> NDArray[np.float64]:
    """Return the model's values at the given coordinates (one index array per mode), (n,); multithreaded."""
    count = len(columns[0])
    values = np.empty(count)

    def block(begin: int) -> None:
        part = slice(begin, begin + BLOCK)
        rows = weights[None, :] * factors[0][columns[0][part]]
        for factor, column in zip(factors[1:], columns[1:], strict=True):
            rows *= factor[column[part]]
        values[part] = rows.sum(axis=1)

    begins = range(0, count, BLOCK)
    parallel_map(block, begins, threads_for(len(begins)))
    return values


Block = tuple[Sequence[Integers], Floats]
"""Coordinates, one index array per mode, and the values there."""


@singledispatch
def blocks_of(tensor: object) -> Iterator[Block]:
    """Yield a tensor's entries in blocks: its nonzeros, or all elements of a dense one. Every value must be finite."""
    raise TypeError(f"cannot enumerate the elements of {type(tensor).__name__}")


@blocks_of.register
def _(tensor: SparseTensor) -> Iterator[Block]:
    if (bad := _not_finite(tensor.values)) is not None:
        raise InputError(f"value of nonzero {bad} is {tensor.values[bad]}: every value must be finite")
    yield list(tensor.columns), tensor.values


@blocks_of.register
def _(tensor: DenseTensor) -> Iterator[Block]:
    array: NDArray[Any] = tensor.array().reshape(-1)  # integers, too
    for begin in range(0, array.size, DENSE_BLOCK):
        values = array[begin : begin + DENSE_BLOCK]
        if (bad := _not_finite(values)) is not None:
            index = [int(each) for each in np.unravel_index(begin + bad, tensor.shape)]
            raise InputError(f"element {index} is {values[bad]}: every element must be finite", path=tensor.path)
        yield np.unravel_index(np.arange(begin, begin + values.size), tensor.shape), values


def _not_finite(values: HostArray) -> int | None:
    """Return the position of the first value that is not finite; None if there is none."""
    for begin in range(0, values.size, DENSE_BLOCK):
        finite = np.isfinite(values[begin : begin + DENSE_BLOCK])
        if not finite.all():
            return begin + int(finite.argmin())
    return None


def inner_product(weights: NDArray[np.float64], factors: Sequence[Floats], tensor: SparseTensor | DenseTensor) -> float:
    """Return the inner product of a model with a tensor."""
    parts = (dot(values, values_at(weights, factors, columns)) for columns, values in blocks_of(tensor))
    return math.fsum(parts)


def dot(values: Floats, expected: NDArray[np.float64]) -> float:
    """Return the inner product of a tensor's values and a model's, summed pairwise in double precision."""
    return float(np.sum(np.multiply(values, expected, dtype=np.float64)))


def fit_at(weights: NDArray[np.float64], factors: Sequence[Floats], tensor: SparseTensor | DenseTensor) -> float:
    """Return ``1 - ||x - m|| / ||x||`` over a tensor's elements x, which are all stored, and the model's values m."""
    squares = np.zeros(2)
    for columns, values in blocks_of(tensor):
        errors = values - values_at(weights, factors, columns)
        squares += np.vdot(errors, errors), np.vdot(values, values)
    if not squares[1]:
        raise InputError("X has only zeros: its fit is not defined")
    return float(1 - np.sqrt(squares[0] / squares[1]))


def fit_of(tensor: SparseTensor | DenseTensor, size: float, inner: float) -> float:
    """Return the fit ``1 - ||X - M|| / ||X||``. `size` is the norm of M, `inner` the inner product of M and X."""
    norm = tensor.norm()
    if not norm:
        raise InputError("X has only zeros")
    return 1 - float(np.sqrt(max(0.0, norm**2 + size**2 - 2 * inner))) / norm


def tensor_sum(tensor: SparseTensor | DenseTensor) -> float:
    """Return the sum of all values of a tensor."""
    return float(sum(values.sum(dtype=np.float64) for _, values in blocks_of(tensor)))


def explained_deviance(
    weights: NDArray[np.float64], factors: Sequence[Floats], tensor: SparseTensor | DenseTensor
) -> float:
    """Return the share of the deviance that a Poisson model explains.

    It is 0 for one rate for all elements, and 1 for the counts themselves.

    The deviance is twice the difference between the largest possible Poisson log-likelihood and the model's. Expected
    counts are clamped to at least `LEAST` where a count is positive.
    """
    total, model, uniform = 0.0, 0.0, 0.0
    for columns, values in blocks_of(tensor):
        positive = values > 0
        counts = values[positive].astype(np.float64)
        expected = np.maximum(values_at(weights, factors, [column[positive] for column in columns]), LEAST)
        total += counts.sum()
        model += float(counts @ np.log(counts / expected))
        uniform += float(counts @ np.log(counts))
    mass = float(weights @ np.prod([f.sum(axis=0, dtype=np.float64) for f in factors], axis=0))
    uniform -= total * np.log(total / math.prod(map(float, tensor.shape))) if total else 0.0
    return float(1 - (model - total + mass) / uniform) if uniform > 0 else 0.0
