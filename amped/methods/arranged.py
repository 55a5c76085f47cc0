"""The factor matrices of a model, arranged where they are stored: long ones are slow to arrange in host memory."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
from numpy.typing import NDArray

from partitioner.array_types import Floats

from ..backend.device import Array, Device
from ..backend.ops.columns import COLUMNS
from ..models.columns import arrange_columns, arrangement, readable_signs
from ..models.kruskal import KruskalTensor
from ..operators.base import Operator

LARGE = 1 << 24  # bytes of the matrices together; fewer are arranged in host memory


def arranged(
    operator: Operator,
    matrices: Array | None,
    weights: NDArray[np.float64],
    scales: NDArray[np.float64],
    norm: int,
    signed: bool,
) -> KruskalTensor:
    """Return the model of the matrices that an operator holds, normalised and sorted by weight.

    Parameters
    ----------
    operator : Operator
    matrices : array, optional
        A copy of `Operator.matrices`, to be used instead.
    weights, scales, norm : (R,) array, (order, R) array, int
        See `KruskalTensor.arrange`.
    signed : bool
        Whether signs are flipped as by `KruskalTensor.signed`.
    """
    stored = [operator.stored(mode, matrices) for mode in range(operator.order)]
    if not operator.whole:
        factors = [operator.factor(mode, matrices) for mode in range(operator.order)]
        model = KruskalTensor(weights, factors).arrange(scales, norm)
        return model.signed() if signed else model
    if not _is_large(operator.machine.device, stored):
        rows = [operator.rows(mode, matrices) for mode in range(operator.order)]
        model = KruskalTensor(weights, rows).arrange(scales, norm)
        model = model.signed() if signed else model
        model.factors = [operator.expand(mode, rows) for mode, rows in enumerate(model.factors)]
        return model
    columns = COLUMNS.require(operator.machine.device)
    sums = [columns.sums(matrix) for matrix in stored]
    norms = [np.sqrt(each.squares) if norm == 2 else each.magnitudes for each in sums]
    weights, order, divisors = arrangement(weights, norms, scales)
    if signed:
        divisors *= readable_signs([each.signed_squares for each in sums], [each.squares for each in sums])
    made = zip(stored, divisors, strict=True)
    factors = [columns.arranged(matrix, order, divisor[order], -np.inf) for matrix, divisor in made]
    return KruskalTensor(weights, factors)


def sorted_columns(operator: Operator, order: NDArray[np.intp]) -> list[Floats]:
    """Return the matrices that an operator holds, columns in another order; the smallest positive number becomes 0."""
    tiny, device = float(np.finfo(operator.options.dtype).smallest_subnormal), operator.machine.device
    stored = [operator.stored(mode) for mode in range(operator.order)]
    if _is_large(device, stored):
        columns, divisor = COLUMNS.require(device), np.ones(order.size)
        return [columns.arranged(matrix, order, divisor, tiny) for matrix in stored]
    factors = [operator.rows(mode) for mode in range(operator.order)]
    for factor in factors:
        arrange_columns(factor, order, flushed=tiny)
    return [operator.expand(mode, rows) for mode, rows in enumerate(factors)]


def _is_large(device: Device, stored: Sequence[Array]) -> bool:
    """Return whether matrices are large, with adjacent columns, and in the memory of a device that arranges them."""
    adjacent = all(matrix.strides[-1] == matrix.itemsize for matrix in stored)
    return adjacent and sum(matrix.nbytes for matrix in stored) >= LARGE and COLUMNS.first(device) is not None
