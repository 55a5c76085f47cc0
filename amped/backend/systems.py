"""Least-squares rows whose matrices differ, all at once, without compiled code.

The last axis of all arrays is the row, so that NumPy's inner loops run over rows instead of a few components.
"""

from __future__ import annotations

from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from .row_constants import CONSISTENT, DOUBTED, LEAST_PIVOT

Matrix = NDArray[np.float64]


def triangle_size(rank: int) -> int:
    """Return the number of elements of a symmetric matrix."""
    return rank * (rank + 1) // 2


class Pairs:
    """The elements (r, s), r >= s, of symmetric R x R matrices, as columns."""

    def __init__(self, rank: int) -> None:
        self.first, self.second = np.tril_indices(rank)
        self.index = np.empty((rank, rank), np.intp)  # the pair of each element of a matrix
        self.index[self.first, self.second] = self.index[self.second, self.first] = np.arange(self.first.size)

    def products(self, factor: Matrix, out: Matrix | None = None) -> Matrix:
        """Return the products of each pair of rows of a transposed factor matrix, (pairs, rows)."""
        return np.multiply(factor[self.first], factor[self.second], out=out)


class Solved(NamedTuple):
    """Solved rows, (R, rows), and how many of those with equations have no unique solution."""

    rows: Matrix
    deficient: int


def solve_systems(matrices: Matrix, rights: Matrix, ridge: float, sweeps: int, start: Matrix) -> Solved:
    """Solve the equations of rows; see `ops.rowproblems.RowTerms`.

    Parameters
    ----------
    matrices : (R, R, rows) array
        Without the ridge.
    rights : (R, rows) array
    ridge, sweeps
        See `RowTerms`.
    start : (R, rows) array
        From which non-negative rows are improved. Other rows become the shortest solution.
    """
    if ridge:
        matrices = matrices.copy()
        each = np.arange(len(matrices))
        matrices[each, each] += ridge
    if sweeps:
        return Solved(_descend(matrices, rights, sweeps, start), 0)
    return _least_squares(matrices, rights)


def _descend(matrices: Matrix, rights: Matrix, sweeps: int, start: Matrix) -> Matrix:
    """Improve non-negative rows by sweeps over their components (HALS)."""
    each = np.arange(len(rights))
    pivots = matrices[each, each]
    inverse = np.divide(1.0, pivots, out=np.zeros_like(pivots), where=pivots > 0)
    coefficients = matrices * -inverse[:, None]
    coefficients[each, each] = 0.0
    constants, rows, product = rights * inverse, start.copy(), np.empty_like(start)
    steps = list(zip(coefficients, constants, rows, strict=True))
    for _ in range(sweeps):
        before = rows.copy()
        for coefficient, constant, row in steps:
            np.multiply(coefficient, rows, out=product)
            np.add.reduce(product, axis=0, out=row)
            np.add(row, constant, out=row)
            np.maximum(row, 0.0, out=row)
        if np.array_equal(rows, before):
            break
    return rows


def _least_squares(matrices: Matrix, rights: Matrix) -> Solved:
    """Solve by elimination, of matrices scaled to unit diagonals; doubtful ones by Cholesky factors with pivots."""
    rank, each = len(rights), np.arange(len(rights))
    scale = np.sqrt(matrices[each, each])
    inverse = np.divide(1.0, scale, out=np.zeros_like(scale), where=scale > 0)
    work = np.empty((rank, rank + 1, rights.shape[1]))
    np.multiply(matrices, inverse[:, None], out=work[:, :rank])
    work[:, :rank] *= inverse
    np.multiply(rights, inverse, out=work[:, rank])
    with np.errstate(all="ignore"):
        for k in range(rank - 1):
            following = work[k, k + 1 :] / work[k, k]
            work[k + 1 :, k + 1 :] -= work[k + 1 :, k, None] * following
        rows = work[:, rank]
        for k in range(rank - 1, -1, -1):
            rows[k] /= work[k, k]
            if k:
                rows[:k] -= work[:k, k] * rows[k]
    doubtful = np.flatnonzero(~(work[each, each].min(axis=0) > DOUBTED))
    rows *= inverse
    if not doubtful.size:
        return Solved(rows, 0)
    shortest = _shortest(matrices[..., doubtful], rights[:, doubtful], scale[:, doubtful], inverse[:, doubtful])
    rows[:, doubtful] = shortest.rows
    return Solved(rows, shortest.deficient)


def _shortest(matrices: Matrix, rights: Matrix, scale: Matrix, inverse: Matrix) -> Solved:
    """Return the shortest solutions; see `backend.cpu.rows.equations`.

    The factors, (rows, R, R), have as many nonzero columns as the matrices' rank.
    """
    matrices, rights, scale, inverse = (np.moveaxis(array, -1, 0) for array in (matrices, rights, scale, inverse))
    scaled = matrices * inverse[:, :, None] * inverse[:, None, :]
    lower, count = _factors(scaled)
    rank, rows = rights.shape[1], np.zeros(rights.shape)
    whole, few = count == rank, (count > 0) & (count < rank)
    if whole.any():
        rows[whole] = np.linalg.solve(scaled[whole], (rights * inverse)[whole, :, None])[..., 0] * inverse[whole]
    if few.any():
        factor = lower[few] * scale[few, :, None]
        small, right = factor.swapaxes(1, 2) @ factor, factor.swapaxes(1, 2) @ rights[few, :, None]
        each = np.arange(rank)
        small[:, each, each] += each >= count[few, None]
        try:
            rows[few] = (factor @ np.linalg.solve(small, np.linalg.solve(small, right)))[..., 0]
        except np.linalg.LinAlgError:
            rows[few] = np.nan
        rows[few] = _corrected(rows[few], scaled[few], (rights * inverse)[few], scale[few], inverse[few])
    return Solved(np.moveaxis(rows, 0, -1), int(np.count_nonzero(~whole & (count > 0))))


def _corrected(rows: Matrix, scaled: Matrix, rights: Matrix, scale: Matrix, inverse: Matrix) -> Matrix:
    """Return rows, (rows, R), in which those that do not solve the scaled equations are replaced.

    The shortest solution loses digits if components differ much in size. Its replacement is the shortest one of the
    scaled equations.
    """
    with np.errstate(all="ignore"):
        left = np.einsum("nrs,ns->nr", scaled, rows * scale) - rights
        wrong = ~(np.linalg.norm(left, axis=1) <= CONSISTENT * np.linalg.norm(rights, axis=1))
    wrong &= np.isfinite(scaled).all(axis=(1, 2)) & np.isfinite(rights).all(axis=1)
    if wrong.any():
        pseudo = np.linalg.pinv(scaled[wrong], rcond=LEAST_PIVOT, hermitian=True)
        rows[wrong] = np.einsum("nrs,ns->nr", pseudo, rights[wrong]) * inverse[wrong]
    return rows


def _factors(matrices: Matrix) -> tuple[Matrix, NDArray[np.intp]]:
    """Return pivoted Cholesky factors of matrices with unit diagonals, and the number of columns of each."""
    left, lower, count = matrices.copy(), np.zeros_like(matrices), np.zeros(len(matrices), np.intp)
    rows, rank = np.arange(len(matrices)), matrices.shape[1]
    open_rows = np.ones((len(matrices), rank), bool)
    for k in range(rank):
        diagonal = np.where(open_rows, np.einsum("nrr->nr", left), -1.0)
        at = diagonal.argmax(axis=1)
        pivot = diagonal[rows, at]
        active = (pivot > LEAST_PIVOT) & (count == k)
        column = np.where(open_rows & active[:, None], left[rows, :, at], 0.0)
        column /= np.sqrt(np.where(active, pivot, 1.0))[:, None]
        lower[:, :, k] = column
        left -= column[:, :, None] * column[:, None, :]
        open_rows[rows, at] = False
        count += active
    return lower, count


def least_pivot(matrix: NDArray[np.float64], ridge: float) -> float:
    """Return the smallest pivot of ``matrix + ridge I``, (R, R), scaled to a unit diagonal, without rows of zeros."""
    sums = matrix + ridge * np.eye(len(matrix))
    some = np.flatnonzero(sums.diagonal() > 0)
    scale = 1 / np.sqrt(sums.diagonal()[some])
    try:
        factor = np.linalg.cholesky(sums[np.ix_(some, some)] * np.outer(scale, scale))
    except np.linalg.LinAlgError:
        return 0.0
    return float(factor.diagonal().min(initial=1.0)) ** 2
