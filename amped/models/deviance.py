"""Deviances of any loss: how much more a model loses than one that fits each value by itself."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from partitioner.array_types import Floats
from partitioner.tensors.dense import DenseTensor
from partitioner.tensors.sparse import SparseTensor

from ..backend.formulas import Formula
from ..backend.losses import Loss
from ..errors import InputError
from .elements import Elements
from .explained import blocks_of, values_at

SCALES = np.geomspace(1e-20, 1e2, 441)
"""Magnitudes of the model, relative to the largest value, among which a search for a minimum begins."""
REFINEMENTS = 48  # golden sections
GOLDEN = (np.sqrt(5) - 1) / 2
UNIQUE = 1 << 12  # values that are fitted at a time
SAMPLE = 1 << 10  # values from which the search for the best constant begins

Vector = Floats


def best_values(loss: Loss, values: Floats) -> Vector:
    """Return the lowest loss of each value over all values of the model."""
    if loss.least is not None:
        return np.asarray(Formula(loss.least)(values.astype(np.float64, copy=False), 0.0), np.float64)
    unique, places = np.unique(values, return_inverse=True)
    parts = [_fitted(loss, unique[at : at + UNIQUE].astype(np.float64)) for at in range(0, unique.size, UNIQUE)]
    result: Vector = np.concatenate([np.empty(0), *parts])[places].reshape(np.shape(values))
    return result


def _fitted(loss: Loss, values: Vector) -> Vector:
    """Return the lowest loss of each of a few values, whose loss has one minimum."""
    grid = _grid(loss, values)
    low, high = _bracket(grid, loss.of(values[:, None], grid[None, :]))
    return _refined(lambda model: loss.of(values, model), low, high)


def best_constant(loss: Loss, values: Vector, weights: Vector) -> float:
    """Return the lowest sum of the loss of ascending values, with weights, over all constant models."""
    some = np.unique(np.linspace(0, values.size - 1, SAMPLE).astype(np.intp))
    grid = _grid(loss, values)
    with np.errstate(over="ignore"):  # far from the best one, losses may exceed the range
        sampled = np.array([float(weights[some] @ loss.of(values[some], m)) for m in grid])
        low, high = _bracket(grid, sampled[None, :])
        low = np.minimum(low * np.where(low < 0, 2, 0.5), low)
        high = np.maximum(high * np.where(high > 0, 2, 0.5), high)
        return float(_refined(lambda model: np.array([float(weights @ loss.of(values, model[0]))]), low, high)[0])


def _grid(loss: Loss, values: Vector) -> Vector:
    """Return values of the model, ascending, that enclose the best one for each value; links are logarithms."""
    scales = SCALES * (float(np.abs(values).max(initial=0.0)) or 1.0)
    scales = np.unique(np.concatenate([[0.0], scales, np.geomspace(1e-3, 1e3, 61)]))
    return np.asarray(scales if loss.nonnegative else np.concatenate([-scales[:0:-1], scales]), np.float64)


def _bracket(grid: Vector, sampled: Vector) -> tuple[Vector, Vector]:
    """Return the neighbours of the lowest grid point of each row of samples."""
    at = np.argmin(np.where(np.isfinite(sampled), sampled, np.inf), axis=1)
    return grid[np.maximum(at - 1, 0)], grid[np.minimum(at + 1, grid.size - 1)]


def _refined(function: Callable[[Vector], Vector], low: Vector, high: Vector) -> Vector:
    """Return the minima of functions of one number between two points, and at these."""
    least = np.fmin(function(low), function(high))
    for _ in range(REFINEMENTS):
        left, right = high - GOLDEN * (high - low), low + GOLDEN * (high - low)
        both = function(left), function(right)
        goes_left = both[0] <= both[1]
        low, high = np.where(goes_left, low, left), np.where(goes_left, right, high)
        least = np.fmin(least, np.fmin(*both))
    return least


class LossStandard(NamedTuple):
    """Deviance residuals of any loss; see `Residual`."""

    loss: Loss
    poisson: bool = False
    scaled: bool = False
    linear: bool = False

    def mean(self, model: Vector) -> NDArray[np.float64]:
        return np.asarray(self.loss.mean_of(0.0, model), np.float64)

    def of(self, values: Floats, model: Vector) -> NDArray[np.float64]:
        """Return ``sign(x - mean) sqrt(2 (f(x, m) - min f(x, .)))``."""
        excess = np.maximum(0.0, self.loss.of(values, model) - best_values(self.loss, values))
        return np.asarray(np.sign(values - self.mean(model)) * np.sqrt(2 * excess), np.float64)

    def misfit(self, elements: Elements) -> NDArray[np.float64]:
        """Return the deviances of elements."""
        return np.square(elements.standardised)

    def size(self, values: Vector) -> NDArray[np.float64]:
        """Return 1 for each value: slices are compared with others of as many elements."""
        return np.ones(values.size)


class DevianceRange(NamedTuple):
    """The losses between which the share of the deviance is measured that a model explains."""

    constant: float  # of the best constant model
    least: float  # of a model that fits each value by itself

    def explained(self, loss: float) -> float:
        """Return the share that a model of this loss explains; if a constant explains everything, relative to it."""
        whole = self.constant - self.least
        return float(1 - (loss - self.least) / (whole if whole > 0 else abs(self.constant) or 1.0))


def deviance_range(loss: Loss, tensor: SparseTensor | DenseTensor, zeros: float = 0.0) -> DevianceRange:
    """Return the range over the elements that a tensor stores, and this number of zeros."""
    values = [block for _, block in blocks_of(tensor)]
    unique, counts = np.unique(np.concatenate([*values, np.zeros(1)]), return_counts=True)
    exact, weights = unique.astype(np.float64), counts.astype(np.float64)
    weights[exact == 0] += zeros - 1
    exact, weights = exact[weights > 0], weights[weights > 0]
    return DevianceRange(best_constant(loss, exact, weights), float(weights @ best_values(loss, exact)))


def explained_loss(
    loss: Loss, weights: NDArray[np.float64], factors: Sequence[Floats], tensor: SparseTensor | DenseTensor
) -> float:
    """Return the share of the deviance that a model explains, over the elements that a tensor stores.

    It is 0 for the best constant, and 1 for a model that fits each value by itself.

    Raises
    ------
    InputError
        If a constant explains everything.
    """
    blocks = ((block, values_at(weights, factors, columns)) for columns, block in blocks_of(tensor))
    model = math.fsum(float(loss.of(block, expected).sum()) for block, expected in blocks)
    bounds = deviance_range(loss, tensor)
    if not bounds.constant > bounds.least:
        raise InputError("X is constant: the explained deviance is not defined")
    return bounds.explained(model)
