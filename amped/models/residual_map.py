"""Residuals of a model over two modes, summed over the other ones."""

from __future__ import annotations

import math
from collections.abc import Sequence

import numpy as np
from numpy.typing import NDArray

from partitioner.array_types import Floats
from partitioner.tensors.dense import DenseTensor
from partitioner.tensors.sparse import SparseTensor

from ..errors import InputError
from .elements import Residual, blocks_with_model
from .explained import inner_product

MOST = 1 << 24  # cells of a map
LEAST = 1e-10  # expected counts are clamped


def residual_map(
    weights: NDArray[np.float64],
    factors: Sequence[Floats],
    tensor: SparseTensor | DenseTensor,
    modes: tuple[int, int],
    standard: Residual,
    partial: bool = False,
) -> NDArray[np.float64]:
    """Return the sums of residuals over all modes but two, in standard deviations, (I, J).

    The standard deviation of a sum of residuals is, for counts, the root of its expected count; for other losses the
    root mean square of all residuals times the root of the number of elements. Cells without elements are 0. If it is
    `partial`, elements that a sparse tensor does not store are missing.

    Raises
    ------
    InputError
        If the map has too many cells.
    """
    shape = tensor.shape[modes[0]], tensor.shape[modes[1]]
    if math.prod(shape) > MOST:
        raise InputError(f"modes: a map of {shape[0]:,} x {shape[1]:,} cells, at most {MOST:,} are possible")
    (number, values, expected), squares = np.zeros((3, math.prod(shape))), 0.0
    for block in blocks_with_model(weights, factors, tensor, standard):
        cells = block.places[modes[0]].astype(np.int64) * shape[1] + block.places[modes[1]]
        number += np.bincount(cells, minlength=number.size)
        values += np.bincount(cells, block.values, number.size)
        expected += np.bincount(cells, block.expected, number.size)
        squares += float(np.square(block.values - block.expected).sum())
    if isinstance(tensor, SparseTensor) and not partial:
        number[:] = math.prod(tensor.shape) / number.size
        expected[:] = _sums(weights, factors, modes).ravel()
        squares = _squares(weights, factors, tensor)
    if standard.poisson:
        spread = np.sqrt(np.maximum(expected, LEAST))
    else:
        spread = np.sqrt(number * (squares / max(1.0, float(number.sum()))))
    found = np.divide(values - expected, spread, out=np.zeros(number.size), where=spread > 0)
    return found.reshape(shape)


def _sums(weights: NDArray[np.float64], factors: Sequence[Floats], modes: tuple[int, int]) -> NDArray[np.float64]:
    """Return the sums of the model over all modes but two."""
    others = [factor.sum(axis=0, dtype=np.float64) for mode, factor in enumerate(factors) if mode not in modes]
    scale = weights * np.prod(others, axis=0) if others else weights
    rows: NDArray[np.float64] = (factors[modes[0]] * scale) @ factors[modes[1]].T.astype(np.float64)
    return rows


def _squares(weights: NDArray[np.float64], factors: Sequence[Floats], tensor: SparseTensor) -> float:
    """Return the sum of all squared residuals, absent elements being zeros."""
    grams = [np.asarray(factor, np.float64).T @ np.asarray(factor, np.float64) for factor in factors]
    size = float(weights @ np.prod(grams, axis=0) @ weights)
    return max(0.0, tensor.norm() ** 2 + size - 2 * inner_product(weights, factors, tensor))
