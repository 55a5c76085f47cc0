"""The non-negative core of a Tucker decomposition with given factor matrices: accelerated projected gradients.

Minimises ``<G, H(G)> / 2 - <D, G>`` over ``G >= 0``, where H(G) is G times the Gram matrices of the factor matrices,
and D is the tensor times the transposed factor matrices (FISTA: Beck and Teboulle, SIAM J. Imaging Sci. 2(1), 2009).
A step that would increase the objective restarts the acceleration instead (O'Donoghue and Candes, Found. Comput. Math.
15, 2015). Therefore the objective never increases.
"""

from __future__ import annotations

import math
from collections.abc import Sequence

import numpy as np
from numpy.typing import NDArray

MOST_AT_ONCE = 256  # elements of a core whose equations are multiplied by one matrix
SETTLED = 1e-12  # decrease of the objective, relative to its value, at which the steps end

Matrix = NDArray[np.float64]


def times(core: Matrix, matrices: Sequence[Matrix], skip: int | None = None) -> Matrix:
    """Return a core times a symmetric matrix in each mode but `skip`."""
    result, order = core, core.ndim
    for mode, matrix in enumerate(matrices):
        if mode == skip:  # the first mode moves to the end, as after a product
            result = np.moveaxis(result, 0, -1)
        else:
            result = np.tensordot(result, matrix, (0, 0))
    assert result.ndim == order
    return result


def solve_core(core: Matrix, data: Matrix, grams: Sequence[Matrix], steps: int) -> Matrix:
    """Return a better non-negative core, after at most this number of steps.

    Parameters
    ----------
    core, data : (R_0, R_1, ...) array
        The start G, non-negative, and D.
    grams : sequence of (R_n, R_n) array
        Of the factor matrices. Elements that belong to a zero column are not changed.
    steps : int
    """
    lengths = [np.sqrt(gram.diagonal()) for gram in grams]
    units = [np.where(length > 0, length, 1.0) for length in lengths]
    scaled = [gram / np.outer(unit, unit) for gram, unit in zip(grams, units, strict=True)]
    bound = math.prod(float(np.linalg.eigvalsh(gram)[-1]) for gram in scaled)
    if not bound > 0:
        return core
    scale = outer(units)
    result = _descended(core * scale, data / scale, scaled, 1 / bound, steps)
    return np.where(outer(lengths) > 0, result / scale, core)


def outer(vectors: Sequence[Matrix]) -> Matrix:
    """Return the outer product of vectors."""
    result = np.ones(())
    for vector in vectors:
        result = np.multiply.outer(result, vector)
    return result


def kronecker(matrices: Sequence[Matrix]) -> Matrix:
    """Return the Kronecker product of square matrices."""
    result: Matrix = np.ones((1, 1))
    for matrix in matrices:
        size = len(result) * len(matrix)
        result = (result[:, None, :, None] * matrix[:, None, :]).reshape(size, size)
    return result


def _descended(start: Matrix, data: Matrix, grams: Sequence[Matrix], size: float, steps: int) -> Matrix:
    """Return the best point after some steps of this size, the inverse of the gradient's Lipschitz constant."""

    hessian = kronecker(grams) if start.size <= MOST_AT_ONCE else None

    def multiplied(point: Matrix) -> Matrix:
        return times(point, grams) if hessian is None else (hessian @ point.ravel()).reshape(point.shape)

    def value(point: Matrix, product: Matrix) -> float:
        return float(np.vdot(point, product) / 2 - np.vdot(point, data))

    best, product = start, multiplied(start)
    least, momentum = value(best, product), 1.0
    ahead, product_ahead = best, product
    for _ in range(steps):
        point = np.maximum(0.0, ahead - size * (product_ahead - data))
        its_product = multiplied(point)
        its_value = value(point, its_product)
        if its_value > least:
            if ahead is best:  # a plain step: only rounding remains
                break
            momentum, ahead, product_ahead = 1.0, best, product
            continue
        settled = least - its_value <= SETTLED * abs(its_value)
        following = (1 + math.sqrt(1 + 4 * momentum**2)) / 2
        weight = (momentum - 1) / following
        ahead, product_ahead = point + weight * (point - best), its_product + weight * (its_product - product)
        best, product, least, momentum = point, its_product, its_value, following
        if settled:
            break
    return best
