"""Elements of a tensor with the model's values there: their standardised residuals, and those that are largest."""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from typing import NamedTuple, Protocol, Self

import numpy as np
from numpy.typing import NDArray

from partitioner.array_types import Floats, HostArray
from partitioner.tensors.dense import DenseTensor
from partitioner.tensors.sparse import SparseTensor

from .explained import LEAST, blocks_of, label_of, values_at

Places = NDArray[np.int64]
Factors = Sequence[Floats]
ModeLabels = Sequence[HostArray | None]
"""Labels of the indices of each mode; None for indices."""


class _Element(NamedTuple):
    labels: tuple[object, ...]
    value: float
    expected: float


class Entry(_Element):
    """An element of a tensor, and the model's value there: ``labels, value, expected = entry`` unpacks it.

    Attributes
    ----------
    labels : tuple
        One label per mode; indices if the tensor has no labels.
    value, expected : float
        The tensor's value and the model's value.
    standardised : float
        The residual in standard deviations of the loss; see `Residuals`.
    finding : int or None
        Number of the finding that includes the element, counted from 0.
    """

    standardised: float
    finding: int | None

    def __new__(
        cls,
        labels: tuple[object, ...],
        value: float,
        expected: float,
        standardised: float = math.nan,
        finding: int | None = None,
    ) -> Self:
        entry = super().__new__(cls, labels, value, expected)
        entry.standardised, entry.finding = standardised, finding
        return entry

    def __repr__(self) -> str:
        facts = f"value={self.value:g}, expected={self.expected:g}, standardised={self.standardised:g}"
        return f"Entry(labels={self.labels}, {facts}, finding={self.finding})"


class Residual(Protocol):
    """How residuals are standardised.

    Attributes
    ----------
    poisson : bool
        Whether the loss is that of CP-APR.
    scaled : bool
        Whether residuals are divided by their root mean square.
    linear : bool
        Whether expected values are the model's values, whose sums over slices have closed forms.
    """

    @property
    def poisson(self) -> bool:
        """See above."""

    @property
    def scaled(self) -> bool:
        """See above."""

    @property
    def linear(self) -> bool:
        """See above."""

    def mean(self, model: NDArray[np.float64]) -> NDArray[np.float64]:
        """Return the expected values of elements, given the model's values."""

    def of(self, values: Floats, model: NDArray[np.float64]) -> NDArray[np.float64]:
        """Return standardised residuals, without a common scale."""

    def misfit(self, elements: Elements) -> NDArray[np.float64]:
        """Return what each element adds to the loss."""

    def size(self, values: NDArray[np.float64]) -> NDArray[np.float64]:
        """Return the sizes of values, to which misfits are compared."""


class Standard(NamedTuple):
    """Residuals of least squares, or of counts: deviance or Pearson residuals; see `Residual`."""

    poisson: bool = False
    pearson: bool = False
    linear: bool = True

    def of(self, values: Floats, expected: NDArray[np.float64]) -> NDArray[np.float64]:
        """Return standardised residuals; for least squares they still lack the common scale."""
        difference = values - expected
        if not self.poisson:
            return np.asarray(difference, np.float64)
        mean = np.maximum(expected, LEAST)
        if self.pearson:
            return np.asarray(difference / np.sqrt(mean), np.float64)
        return np.asarray(np.sign(difference) * np.sqrt(self.deviances(values, mean)), np.float64)

    @property
    def scaled(self) -> bool:
        return not self.poisson

    def mean(self, model: NDArray[np.float64]) -> NDArray[np.float64]:
        return model

    def misfit(self, elements: Elements) -> NDArray[np.float64]:
        """Return what each element adds to the loss: its squared residual, or its deviance."""
        values, expected = elements.values, elements.expected
        return self.deviances(values, expected) if self.poisson else np.square(values - expected)

    def size(self, values: NDArray[np.float64]) -> NDArray[np.float64]:
        """Return the squares of values, or for a Poisson model the values."""
        return values if self.poisson else np.square(values)

    @staticmethod
    def deviances(values: Floats, expected: NDArray[np.float64]) -> NDArray[np.float64]:
        """Return the Poisson deviance of each value."""
        mean = np.maximum(expected, LEAST)
        counts = np.maximum(values, 0).astype(np.float64)
        logs = np.where(counts > 0, counts * np.log(np.where(counts > 0, counts, 1) / mean), 0.0)
        return np.asarray(np.maximum(0.0, 2 * (logs - counts + mean)), np.float64)


class Elements(NamedTuple):
    """Elements of a tensor: coordinates (order, n), values, expected values and standardised residuals."""

    places: Places
    values: NDArray[np.float64]
    expected: NDArray[np.float64]
    standardised: NDArray[np.float64]

    @classmethod
    def empty(cls, order: int) -> Elements:
        """Return no elements of a tensor of this order."""
        return cls(np.empty((order, 0), np.int64), np.empty(0), np.empty(0), np.empty(0))

    @property
    def size(self) -> int:
        """The number of elements."""
        return self.values.size

    def entries(self, labels: ModeLabels, count: int, numbers: NDArray[np.intp] | None = None) -> tuple[Entry, ...]:
        """Return the first elements with their labels; `numbers`, if any, are those of their findings, or too large."""
        return tuple(
            Entry(
                tuple(label_of(own, int(row)) for own, row in zip(labels, self.places[:, at], strict=True)),
                float(self.values[at]), float(self.expected[at]), float(self.standardised[at]),
                int(numbers[at]) if numbers is not None and numbers[at] < count else None,
            )
            for at in range(min(count, self.size))
        )  # fmt: skip

    def largest(self, count: int) -> Elements:
        """Return the elements with the largest standardised residuals, the largest first."""
        sizes = np.abs(self.standardised)
        rows = np.argpartition(-sizes, count - 1)[:count] if count < sizes.size else np.arange(sizes.size)
        rows = rows[np.lexsort((*self.places[::-1][:, rows], -sizes[rows]))]
        return Elements(self.places[:, rows], self.values[rows], self.expected[rows], self.standardised[rows])

    def joined(self, other: Elements) -> Elements:
        """Return these and other elements."""
        return Elements(*(np.concatenate(pair, axis=-1) for pair in zip(self, other, strict=True)))


def blocks_with_model(
    weights: NDArray[np.float64], factors: Factors, tensor: SparseTensor | DenseTensor, standard: Residual
) -> Iterator[Elements]:
    """Yield a tensor's elements in blocks: its nonzeros, or all elements of a dense one."""
    for columns, values in blocks_of(tensor):
        model = values_at(weights, factors, columns)
        places = np.array([np.asarray(column, np.int64) for column in columns])
        yield Elements(places, values.astype(np.float64), standard.mean(model), standard.of(values, model))


def largest_elements(
    weights: NDArray[np.float64],
    factors: Factors,
    tensor: SparseTensor | DenseTensor,
    count: int,
    standard: Residual,
) -> Elements:
    """Return the elements of a tensor with the largest standardised residuals, the largest first.

    The tensor's indices are in the order of the model's. For least squares the residuals lack the common scale.
    """
    largest = Elements.empty(len(tensor.shape))
    for block in blocks_with_model(weights, factors, tensor, standard):
        largest = largest.joined(block.largest(count)).largest(count)
    return largest
