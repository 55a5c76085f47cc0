"""Deviances of any loss: how much more a model loses than one that fits each value by itself."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from partitioner.tensors.dense import DenseTensor
from partitioner.tensors.sparse import SparseTensor

from ..backend.losses import Loss
from ..errors import InputError
from .elements import Elements
from .explained import blocks_of, values_at

SCALES = np.concatenate([[0.0], np.geomspace(1e-10, 1e10, 401)])  # magnitudes of the model among which a search begins
REFINEMENTS = 60  # golden sections
GOLDEN = (np.sqrt(5) - 1) / 2
UNIQUE = 1 << 12  # values that are fitted at a time

Vector = NDArray[np.float64]


def best_values(loss: Loss, values: NDArray[Any]) -> Vector:
    """Return the lowest loss of each value over all values of the model."""
    unique, places = np.unique(values, return_inverse=True)
    parts = [_fitted(loss, unique[at : at + UNIQUE].astype(np.float64)) for at in range(0, unique.size, UNIQUE)]
    result: Vector = np.concatenate([np.empty(0), *parts])[places].reshape(np.shape(values))
    return result


def _fitted(loss: Loss, values: Vector) -> Vector:
    """Return the lowest loss of each of a few values, whose loss has one minimum."""
    return _minimum(lambda model: loss.of(values[:, None], model), _grid(loss), values.size)


def best_constant(loss: Loss, values: NDArray[Any], weights: Vector) -> float:
    """Return the lowest sum of the loss of values with weights over all constant models."""

    def total(model: Vector) -> Vector:
        return np.array([[float(weights @ loss.of(values, m)) for m in row] for row in np.atleast_2d(model)])

    return float(_minimum(total, _grid(loss), 1)[0])


def _grid(loss: Loss) -> Vector:
    grid = np.maximum(SCALES, loss.lower) if loss.nonnegative else np.concatenate([-SCALES[:0:-1], SCALES])
    return np.asarray(grid, np.float64)


def _minimum(function: Any, grid: Vector, count: int) -> Vector:
    """Return the minima of `count` functions of one number, each between the neighbours of its lowest grid point."""
    with np.errstate(over="ignore"):
        sampled = function(np.broadcast_to(grid, (1, grid.size)))
    sampled = np.where(np.isfinite(sampled), sampled, np.inf)
    at = np.argmin(sampled, axis=1)
    low, high = grid[np.maximum(at - 1, 0)], grid[np.minimum(at + 1, grid.size - 1)]
    least: Vector = sampled[np.arange(count), at]
    for _ in range(REFINEMENTS):
        left, right = high - GOLDEN * (high - low), low + GOLDEN * (high - low)
        both = function(np.stack([left, right], axis=1))
        goes_left = both[:, 0] <= both[:, 1]
        low, high = np.where(goes_left, low, left), np.where(goes_left, right, high)
        least = np.fmin(least, both.min(axis=1))
    return least


class LossStandard(NamedTuple):
    """Deviance residuals of any loss; see `Residual`."""

    loss: Loss
    poisson: bool = False
    scaled: bool = False
    linear: bool = False

    def mean(self, model: Vector) -> Vector:
        return self.loss.mean_of(0.0, model)

    def of(self, values: NDArray[Any], model: Vector) -> Vector:
        """Return ``sign(x - mean) sqrt(2 (f(x, m) - min f(x, .)))``."""
        excess = np.maximum(0.0, self.loss.of(values, model) - best_values(self.loss, values))
        return np.asarray(np.sign(values - self.mean(model)) * np.sqrt(2 * excess), np.float64)

    def misfit(self, elements: Elements) -> Vector:
        """Return the deviances of elements."""
        return np.square(elements.standardised)

    def size(self, values: Vector) -> Vector:
        """Return 1 for each value: slices are compared with others of as many elements."""
        return np.ones(values.size)


def explained_loss(
    loss: Loss, weights: Vector, factors: Sequence[NDArray[Any]], tensor: SparseTensor | DenseTensor
) -> float:
    """Return the share of the deviance that a model explains, over the elements that a tensor stores.

    It is 0 for the best constant, and 1 for a model that fits each value by itself.

    Raises
    ------
    InputError
        If a constant explains everything.
    """
    model, least, values = 0.0, 0.0, list[NDArray[Any]]()
    for columns, block in blocks_of(tensor):
        model += float(loss.of(block, values_at(weights, factors, columns)).sum())
        least += float(best_values(loss, block).sum())
        values.append(block)
    unique, counts = np.unique(np.concatenate(values), return_counts=True)
    constant = best_constant(loss, unique, counts.astype(np.float64))
    if not constant > least:
        raise InputError("X is constant: the explained deviance is not defined")
    return float(1 - (model - least) / (constant - least))
