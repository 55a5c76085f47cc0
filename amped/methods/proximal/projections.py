"""Euclidean projections of matrices onto the sets of constraints, in NumPy float64."""

from __future__ import annotations

import math

import numpy as np
from numpy.typing import NDArray

from .terms import ModeTerms

Matrix = NDArray[np.float64]

ASSIGNMENTS = 10  # rounds in which rows move between columns that must not overlap


def project(matrix: Matrix, terms: ModeTerms) -> Matrix:
    """Return the matrix that is closest to `matrix`, (I, R), among those that meet the constraints.

    Penalties and functions of users are no sets and do not count. For non-negative orthonormal columns the result meets
    the constraints but need not be the closest, which is hard to find.
    """
    low, high, shape = terms.low, terms.high, terms.shape
    if shape == "simplex":
        return simplex(matrix, axis=1 if terms.option == "rows" else 0)
    if shape == "orthonormal":
        return disjoint(matrix) if terms.nonnegative else polar(matrix)
    if shape == "sparse":
        result = largest(matrix, terms.count, low, high)
    elif shape == "monotone":
        result = np.clip(monotone(matrix, terms.option == "decreasing"), low, high)
    elif shape == "unimodal":
        result = np.column_stack([unimodal(column, low, high) for column in matrix.T])
    else:
        result = np.clip(matrix, low, high)
    return in_ball(result) if terms.ball else result


def in_ball(matrix: Matrix) -> Matrix:
    """Shorten columns to a 2-norm of at most 1. After the projection onto a cone this projects onto both."""
    result: Matrix = matrix / np.maximum(1.0, np.linalg.norm(matrix, axis=0))
    return result


def simplex(matrix: Matrix, axis: int) -> Matrix:
    """Project each column (axis 0) or row (axis 1) onto the numbers of at least 0 that add up to 1.

    By sorting (Held, Wolfe and Crowder, Validation of subgradient optimization, 1974).
    """
    if axis == 1:
        return np.ascontiguousarray(simplex(matrix.T, 0).T)
    descending = -np.sort(-matrix, axis=0)
    excess = np.cumsum(descending, axis=0) - 1.0
    counts = np.arange(1, len(matrix) + 1)[:, None]
    last = len(matrix) - 1 - np.argmax((descending * counts > excess)[::-1], axis=0)
    columns = np.arange(matrix.shape[1])
    result: Matrix = np.maximum(matrix - excess[last, columns] / (last + 1), 0.0)
    return result


def polar(matrix: Matrix) -> Matrix:
    """Return the closest matrix with orthonormal columns, the factor of the polar decomposition."""
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


def largest(matrix: Matrix, count: int, low: float, high: float) -> Matrix:
    """Keep the `count` entries of each column, within bounds, that reduce the distance most; the others become 0."""
    clipped = np.clip(matrix, low, high)
    if count >= len(matrix):
        return clipped
    gains = np.square(matrix) - np.square(matrix - clipped)
    order = np.argsort(-gains, axis=0, kind="stable")
    np.put_along_axis(clipped, order[count:], 0.0, axis=0)
    return clipped


def monotone(matrix: Matrix, decreasing: bool) -> Matrix:
    """Return the closest matrix with increasing (or decreasing) columns: isotonic regression."""
    from scipy.optimize import isotonic_regression  # takes 0.1 seconds to import

    return np.column_stack([isotonic_regression(column, increasing=not decreasing).x for column in matrix.T])


def unimodal(column: Matrix, low: float = -math.inf, high: float = math.inf) -> Matrix:
    """Return the closest numbers within bounds that increase and then decrease.

    The errors of all increasing beginnings come from one pass, those of all decreasing ends from another (Stout,
    Unimodal regression via prefix isotonic regression, 2008).
    """
    from scipy.optimize import isotonic_regression

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
