"""Euclidean projections of matrices onto the sets of constraints, in float64, by NumPy or CuPy."""

from __future__ import annotations

import math
from typing import Any

import numpy as np
from numpy.typing import NDArray

from partitioner.host.imports import scipy_module

from ...backend.device import Array
from .arrays import HOST, Arrays
from .terms import ModeTerms

Matrix = NDArray[np.float64]

WELL = 1e-8  # least ratio of a Gram matrix's eigenvalues by which its root is computed
FEW = 1 << 10  # numbers that are sorted sooner than partitioned
ASSIGNMENTS = 10  # rounds in which rows move between columns that must not overlap


def project(matrix: Array, terms: ModeTerms, arrays: Arrays = HOST) -> Array:
    """Return the matrix that is closest to `matrix`, (I, R), among those that meet the constraints.

    Penalties, functions of users and fixed elements do not count. For non-negative orthonormal columns the result meets
    the constraints but need not be the closest, which is hard to find.
    """
    low, high, shape, xp = terms.low, terms.high, terms.shape, arrays.xp
    if shape == "simplex":
        return simplex(matrix, 1 if terms.option == "rows" else 0, xp)
    if shape == "orthonormal":
        return arrays.by_host(disjoint, matrix) if terms.nonnegative else polar(matrix, arrays)
    if shape == "sparse":
        result = largest(matrix, terms.count, low, high, xp)
    elif shape == "monotone":
        result = bounded(monotone(matrix, terms.option == "decreasing", arrays), low, high, xp)
    elif shape == "unimodal":
        result = unimodal_columns(matrix, low, high, arrays)
    else:
        result = bounded(matrix, low, high, xp)
    return in_ball(result, arrays) if terms.ball else result


def bounded(matrix: Array, low: float, high: float, xp: Any = np) -> Array:
    """Return the matrix with all entries moved into the bounds."""
    if low > -math.inf:
        matrix = xp.maximum(matrix, low)
    return xp.minimum(matrix, high) if high < math.inf else matrix


def shrunk(matrix: Array, threshold: Any, terms: ModeTerms, xp: Any = np) -> Array:
    """Return the proximal operator of the L1 penalty; `threshold`: its factor times the step."""
    if not terms.l1:
        return matrix
    if terms.low >= 0:
        return matrix - threshold
    return xp.sign(matrix) * xp.maximum(abs(matrix) - threshold, 0.0)


def in_ball(matrix: Array, arrays: Arrays = HOST) -> Array:
    """Shorten columns to a 2-norm of at most 1. After the projection onto a cone this projects onto both."""
    xp = arrays.xp
    return matrix / xp.maximum(1.0, xp.sqrt(arrays.column_squares(matrix)))


def simplex(matrix: Array, axis: int, xp: Any = np) -> Array:
    """Project each column (axis 0) or row (axis 1) onto the numbers of at least 0 that add up to 1.

    By sorting (Held, Wolfe and Crowder, Validation of subgradient optimization, 1974).
    """
    if axis == 1:
        return xp.ascontiguousarray(simplex(matrix.T, 0, xp).T)
    means = (-xp.sort(-matrix, axis=0)).cumsum(axis=0)
    means -= 1.0
    means /= xp.arange(1.0, len(matrix) + 1)[:, None]
    # With the k largest numbers instead of k - 1, the mean grows exactly if the k-th one is part of the result.
    return xp.maximum(matrix - means.max(axis=0), 0.0)


def polar(matrix: Array, arrays: Arrays = HOST) -> Array:
    """Return the closest matrix with orthonormal columns, the factor of the polar decomposition.

    On a GPU it is computed from the Gram matrix if that is well-conditioned, since a QR decomposition has many steps;
    otherwise from the triangular factor, (R, R), on the host.
    """
    if not arrays.on_host:
        gram = arrays.to_host(matrix.T @ matrix)
        values, vectors = np.linalg.eigh(gram) if np.isfinite(gram).all() else (np.zeros(1), gram)
        if values[0] > WELL * values[-1]:
            return _newton_step(matrix @ arrays.xp.asarray((vectors / np.sqrt(values)) @ vectors.T), arrays.xp)
    rows, triangle = arrays.xp.linalg.qr(matrix)
    return rows @ arrays.by_host(_small_polar, triangle)


def _newton_step(matrix: Array, xp: Any) -> Array:
    """Return a matrix whose columns are orthonormal but for rounding, from one with an error of 1e-8 or less."""
    return matrix @ (1.5 * xp.eye(matrix.shape[1]) - 0.5 * (matrix.T @ matrix))


def _small_polar(matrix: Matrix) -> Matrix:
    left, _, right = np.linalg.svd(matrix, full_matrices=False)
    result: Matrix = left @ right
    return result


def disjoint(matrix: Matrix) -> Matrix:
    """Return a close matrix with orthonormal columns and no negative entry: each row has at most one nonzero.

    Rows are assigned to columns so that the sum of the columns' norms grows. It is a convex function of the
    assignment, which the maximum of its tangent increases in each round. Columns without rows get the best one.
    """
    squares, (rows, columns) = np.square(np.maximum(matrix, 0.0)), matrix.shape
    every, chosen = np.arange(rows), squares.argmax(axis=1)
    for _ in range(ASSIGNMENTS):
        sums = np.bincount(chosen, squares[every, chosen], columns)
        weights = 1 / np.sqrt(np.maximum(sums, sums.max(initial=0) * 1e-12 + 1e-300))
        before, chosen = chosen, (squares * weights).argmax(axis=1)
        if (before == chosen).all():
            break
    _fill_empty(matrix, chosen)
    result = np.zeros_like(matrix)
    result[every, chosen] = np.sqrt(squares[every, chosen])
    for column in np.flatnonzero(np.linalg.norm(result, axis=0) <= 0):
        result[np.flatnonzero(chosen == column)[:1], column] = 1.0
    result /= np.linalg.norm(result, axis=0)
    return result


def _fill_empty(matrix: Matrix, chosen: NDArray[np.intp]) -> None:
    """Assign a row to each column that has none, in place, from columns with several."""
    counts = np.bincount(chosen, minlength=matrix.shape[1])
    for column in np.flatnonzero(counts == 0):
        spare = np.flatnonzero(counts[chosen] > 1)
        row = spare[matrix[spare, column].argmax()]
        counts[chosen[row]] -= 1
        counts[column], chosen[row] = 1, column


def largest(matrix: Array, count: int, low: float, high: float, xp: Any = np) -> Array:
    """Keep the `count` entries of each column, within bounds, that reduce the distance most; the others become 0."""
    clipped = bounded(matrix, low, high, xp)
    if count >= len(matrix):
        return clipped
    gains = xp.square(matrix) - xp.square(matrix - clipped)
    return xp.where(_most(gains, count, xp), clipped, 0.0)


def _most(numbers: Array, count: int, xp: Any) -> Array:
    """Return whether each number is among the `count` largest of its column; of equal ones the first are."""
    if xp is not np or numbers.size < FEW:
        stable = {"kind": "stable"} if xp is np else {}  # CuPy's sort is
        return xp.argsort(xp.argsort(-numbers, axis=0, **stable), axis=0) < count
    place = len(numbers) - count
    least = np.partition(numbers, place, axis=0)[place]
    more, equal = numbers > least, numbers == least
    return more | (equal & (np.cumsum(equal, axis=0) <= count - more.sum(axis=0)))


def monotone(matrix: Array, decreasing: bool, arrays: Arrays = HOST) -> Array:
    """Return the closest matrix with increasing (or decreasing) columns: isotonic regression."""
    if arrays.isotonic is not None:
        return arrays.isotonic.monotone(matrix, decreasing)
    isotonic_regression = scipy_module("optimize").isotonic_regression  # takes 0.1 seconds to import

    def of_host(numbers: Matrix) -> Matrix:
        return np.column_stack([isotonic_regression(column, increasing=not decreasing).x for column in numbers.T])

    return arrays.by_host(of_host, matrix)


def unimodal_columns(matrix: Array, low: float, high: float, arrays: Arrays = HOST) -> Array:
    """Return the closest matrix whose columns are as `unimodal` returns them."""
    if arrays.isotonic is not None:
        return arrays.isotonic.unimodal(matrix, low, high)
    return arrays.by_host(lambda numbers: np.column_stack([unimodal(each, low, high) for each in numbers.T]), matrix)


def unimodal(column: Matrix, low: float = -math.inf, high: float = math.inf) -> Matrix:
    """Return the closest numbers within bounds that increase and then decrease.

    The errors of all increasing beginnings come from one pass, those of all decreasing ends from another (Stout,
    Unimodal regression via prefix isotonic regression, 2008).
    """
    isotonic_regression = scipy_module("optimize").isotonic_regression
    errors = _errors_of_beginnings(column, low, high) + _errors_of_beginnings(column[::-1], low, high)[::-1]
    peak = int(errors.argmin())
    parts = [column[:peak], column[peak:]]
    halves = [isotonic_regression(p, increasing=not end).x for end, p in enumerate(parts) if p.size]
    result: Matrix = np.clip(np.concatenate(halves), low, high)
    return result


def _errors_of_beginnings(column: Matrix, low: float, high: float) -> Matrix:
    """Return the squared error of the isotonic regression of the first 0, 1, ... numbers, less their squares."""
    sums, counts, means, totals = list[float](), list[int](), [-math.inf], [0.0]
    errors = np.zeros(column.size + 1)
    for number, value in enumerate(column.tolist(), 1):
        total, count = value, 1
        mean = value
        while means[-1] >= mean:  # pool with blocks that are not below
            total, count = total + sums.pop(), count + counts.pop()
            mean = total / count
            means.pop()
            totals.pop()
        sums.append(total)
        counts.append(count)
        means.append(mean)
        level = mean if low <= mean <= high else low if mean < low else high
        totals.append(totals[-1] + level * (count * level - 2 * total))
        errors[number] = totals[-1]
    return errors
