"""Weighted elements that stand for the earlier data of a model while it is fitted again together with new elements."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from partitioner.array_types import Floats
from partitioner.tensors.sparse import SparseTensor

from ..backend.losses import Loss
from .explained import values_at

MOST = 1 << 20  # elements that stand for the earlier data, or zeros of new slices
PER_ELEMENT = 10  # of them per new element
FEWEST = 1 << 16  # unless the earlier data have fewer
OPTIMAL, HALVINGS = 1e-6, 80  # of the search for values at which a model is optimal

Places = NDArray[np.int64]


class WeightedElements(NamedTuple):
    """Elements of a tensor, (order, n) indices, with values and weights, (n,)."""

    places: Places
    values: NDArray[np.float64]
    weights: NDArray[np.float64]

    def joined(self, other: WeightedElements) -> WeightedElements:
        """Return the elements of both; where both have an element, the other's one."""
        own, theirs = _keys(self.places), _keys(other.places)
        kept = ~np.isin(own, theirs)
        return WeightedElements(
            np.concatenate([self.places[:, kept], other.places], axis=1),
            np.concatenate([self.values[kept], other.values]),
            np.concatenate([self.weights[kept], other.weights]),
        )

    def tensors(self, shape: Sequence[int]) -> tuple[SparseTensor, SparseTensor]:
        """Return the values and the weights as tensors of the same elements."""
        columns = self.places.astype(np.int32)
        pair = (
            SparseTensor.from_columns(columns.copy(), each, shape, keep_zeros=True)
            for each in (self.values, self.weights)
        )
        return next(pair), next(pair)


def _keys(places: Places) -> NDArray[np.void]:
    """Return each element's indices as one comparable item."""
    rows = np.ascontiguousarray(places.T.astype(np.int64))
    return rows.view([("", np.int64)] * rows.shape[1]).reshape(-1)


def drawn_places(shape: Sequence[int], count: int, rng: np.random.Generator) -> tuple[Places, float]:
    """Return the indices of all elements, or of `count` random ones; and how many elements each stands for."""
    total = math.prod(shape)
    if total <= count:
        return np.indices(shape).reshape(len(shape), -1), 1.0
    places = np.stack([rng.integers(0, length, count) for length in shape])
    return np.unique(places, axis=1), total / count


def earlier_elements(
    weights: NDArray[np.float64], factors: Sequence[Floats], loss: Loss, count: int, rng: np.random.Generator
) -> WeightedElements:
    """Return elements that stand for the data of a model: values at which the model has the lowest loss."""
    places, each = drawn_places([len(factor) for factor in factors], count, rng)
    model = values_at(weights, factors, list(places))
    return WeightedElements(places, optimal_values(loss, model), np.full(len(model), each))


def optimal_values(loss: Loss, model: NDArray[np.float64]) -> NDArray[np.float64]:
    """Return for each value m of a model the x, in the range of the data, at which f(x, m) is stationary in m.

    That is the expected value for losses whose derivative is linear in x; otherwise it is found by bisection.
    """
    model = np.maximum(model, loss.lower)
    mean = np.clip(np.asarray(loss.mean_of(model, model), np.float64), loss.domain.low, loss.domain.high)
    slope, scale = np.abs(loss.slope(mean, model)), np.abs(loss.slope(mean + 1, model)) + 1
    if (slope <= OPTIMAL * scale).all():
        return mean
    low = np.maximum(mean - np.abs(mean) - 1, loss.domain.low)
    high = np.minimum(mean + np.abs(mean) + 1, loss.domain.high)
    for _ in range(HALVINGS):
        middle = (low + high) / 2
        above = loss.slope(middle, model) < 0  # the model is too low for this x
        low, high = np.where(above, low, middle), np.where(above, middle, high)
    return (low + high) / 2


def zeros_of_slices(
    shape: Sequence[int], mode: int, slices: NDArray[np.int64], count: int, rng: np.random.Generator
) -> WeightedElements:
    """Return zeros in all elements of some slices of a mode, or in `count` random ones with larger weights."""
    sizes = [slices.size if m == mode else length for m, length in enumerate(shape)]
    places, each = drawn_places(sizes, count, rng)
    places[mode] = slices[places[mode]]
    return WeightedElements(places, np.zeros(places.shape[1]), np.full(places.shape[1], each))
