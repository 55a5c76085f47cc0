"""Solution of a row's normal equations, given their Gram matrix; see `least_squares`.

`work` are the work arrays of a thread, see `gram.work_of`.
"""

from __future__ import annotations

import numpy as np

from partitioner.host.jit import inner

from ...row_constants import CONSISTENT, DOUBTED, LEAST_PIVOT, ROUNDING
from ..simd.doubles import EIGHT, each, fold, fused, load, store, times, total
from ..simd.thread_team import inlined


@inlined
def padded_product(pi, at, row, width):  # type: ignore[no-untyped-def]
    """Return eight partial sums of the inner product of a row of Pi and a padded row."""
    result = times(load(pi, at), load(row, 0))
    for c in range(EIGHT, width, EIGHT):
        result = fused(load(pi, at + c), load(row, c), result)
    return result


@inlined
def eight_products(pi, at, padded, width):  # type: ignore[no-untyped-def]
    """Return the inner products of eight rows of Pi, from `at` on, and a padded row."""
    return fold(
        padded_product(pi, at, padded, width),
        padded_product(pi, at + width, padded, width),
        padded_product(pi, at + 2 * width, padded, width),
        padded_product(pi, at + 3 * width, padded, width),
        padded_product(pi, at + 4 * width, padded, width),
        padded_product(pi, at + 5 * width, padded, width),
        padded_product(pi, at + 6 * width, padded, width),
        padded_product(pi, at + 7 * width, padded, width),
    )


@inlined
def pad(b, padded):  # type: ignore[no-untyped-def]
    """Write b followed by -1."""
    for r in range(b.size):
        padded[r] = b[r]
    padded[b.size] = -1.0


@inner
def squares_of(matrix, padded):  # type: ignore[no-untyped-def]
    """Return the sum of squared residuals by a Gram matrix."""
    result, width = 0.0, matrix.shape[1]
    for r in range(matrix.shape[0]):
        result += padded[r] * total(padded_product(matrix, r * width, padded, width))
    return result


@inner
def subtract(matrix, common, right):  # type: ignore[no-untyped-def]
    """Subtract a row's matrix from a common one; set its right-hand side."""
    rank = common.shape[0]
    for i in range(rank):
        for k in range(rank):
            matrix[i, k] = common[i, k] - matrix[i, k]
        matrix[rank, i] = matrix[i, rank] = right[i]
    matrix[rank, rank] = 0.0


@inner
def solve_equations(work, ridge, sweeps, b):  # type: ignore[no-untyped-def]
    """Solve a row's equations, given their Gram matrix; return whether their solution is not unique.

    With `sweeps`, the row `b` >= 0 is improved by sweeps over its components (HALS). Otherwise it becomes the solution,
    the shortest one if there are several. The padded row in `work` becomes b followed by -1.
    """
    matrix, padded, deficient = work[0], work[9], False
    if sweeps > 0:
        pad(b, padded)
        _descend(matrix, ridge, sweeps, padded)
        for r in range(b.size):
            b[r] = padded[r]
    elif _eliminate(matrix, ridge, work[3], padded):
        for r in range(b.size):
            b[r] = padded[r]
    else:
        for r in range(b.size):
            matrix[r, r] += ridge
        deficient = _leastsquares_of(work, b)
        for r in range(b.size):
            matrix[r, r] -= ridge
        pad(b, padded)
    return deficient


@inner
def _descend(matrix, ridge, sweeps, padded):  # type: ignore[no-untyped-def]
    width = padded.size
    for _ in range(sweeps):
        moved = False
        for r in range(matrix.shape[0] - 1):
            slope, pivot = -total(padded_product(matrix, r * width, padded, width)), matrix[r, r] + ridge
            value = max(padded[r] + (slope - ridge * padded[r]) / pivot, 0.0) if pivot > 0 else 0.0
            moved |= value != padded[r]
            padded[r] = value
        if not moved:
            return


@inner
def _eliminate(matrix, ridge, upper, padded):  # type: ignore[no-untyped-def]
    """Solve by Gaussian elimination of the symmetric matrix; return whether no pivot is too small.

    Elimination in row i starts at the largest multiple of eight that is at most i.
    """
    rank, width = upper.shape
    for i in range(rank):
        for c in range(i // EIGHT * EIGHT, width, EIGHT):
            store(upper, i * width + c, load(matrix, i * width + c))
        upper[i, i] += ridge
    for k in range(rank):
        pivot = upper[k, k]
        if not pivot > DOUBTED * (matrix[k, k] + ridge):
            return False
        inverse = 1 / pivot
        for i in range(k + 1, rank):
            multiple = each(-inverse * upper[k, i])
            for c in range(i // EIGHT * EIGHT, width, EIGHT):
                at = i * width + c
                store(upper, at, fused(multiple, load(upper, k * width + c), load(upper, at)))
    for c in range(width):
        padded[c] = 0.0
    padded[rank] = -1.0
    for k in range(rank - 1, -1, -1):
        rest = each(0.0)
        for c in range(k // EIGHT * EIGHT, width, EIGHT):
            rest = fused(load(upper, k * width + c), load(padded, c), rest)
        padded[k] = -total(rest) / upper[k, k]
    return True


@inner
def _leastsquares_of(work, b):  # type: ignore[no-untyped-def]
    """Solve by a Cholesky factorisation with pivots, of the matrix scaled to a unit diagonal.

    If it ends at `count` < R columns, the shortest solution is ``L S^-1 S^-1 L^T y``, where L (R, count) is the factor,
    ``S = L^T L``, and y the right-hand side.
    """
    matrix, lower, small, vectors, pivots = work[0], work[1], work[2], work[7], work[8]
    rank = b.size
    scale, left, y = vectors[0], vectors[1], vectors[2]
    for r in range(rank):
        scale[r] = np.sqrt(matrix[r, r])
        left[r] = 1.0 if scale[r] > 0 else 0.0
        pivots[r] = r
    count = 0
    while count < rank:
        at = count
        for i in range(count + 1, rank):
            if left[pivots[i]] > left[pivots[at]]:
                at = i
        pivots[count], pivots[at] = pivots[at], pivots[count]
        p = pivots[count]
        if not left[p] > LEAST_PIVOT:
            break
        pivot = np.sqrt(left[p])
        lower[p, count] = pivot
        for i in range(count + 1, rank):
            q = pivots[i]
            entry = matrix[q, p] / (scale[q] * scale[p]) if scale[q] > 0 else 0.0
            for j in range(count):
                entry -= lower[q, j] * lower[p, j]
            lower[q, count] = entry / pivot
            left[q] -= lower[q, count] * lower[q, count]
        count += 1
    if count == rank:
        _substitute(matrix, lower, pivots, scale, y, count, b)
        return False
    for r in range(rank):
        b[r] = 0.0
    _shortest(matrix, lower, small, pivots, scale, y, count, b)
    if not _is_solution(matrix, scale, b):
        for i in range(count):
            for j in range(i + 1):
                lower[pivots[i], j] /= scale[pivots[i]]
        for r in range(rank):
            b[r] = 0.0
        _substitute(matrix, lower, pivots, scale, y, count, b)
    return True


@inlined
def _is_solution(matrix, scale, b):  # type: ignore[no-untyped-def]
    """Return whether b solves the equations. The shortest solution loses digits if components differ much in size."""
    rank, left, size = b.size, 0.0, 0.0
    for i in range(rank):
        if scale[i] > 0:
            right = matrix[rank, i] / scale[i]
            rest = right
            for k in range(rank):
                rest -= matrix[i, k] / scale[i] * b[k]
            left, size = left + rest * rest, size + right * right
    return left <= CONSISTENT * CONSISTENT * size


@inlined
def _substitute(matrix, lower, pivots, scale, y, count, b):  # type: ignore[no-untyped-def]
    """Solve by forward and backward substitution, for `count` components; the others are not changed."""
    for i in range(count):
        p = pivots[i]
        entry = matrix[b.size, p] / scale[p]
        for j in range(i):
            entry -= lower[p, j] * y[j]
        y[i] = entry / lower[p, i]
    for i in range(count - 1, -1, -1):
        entry = y[i]
        for j in range(i + 1, count):
            entry -= lower[pivots[j], i] * y[j]
        y[i] = entry / lower[pivots[i], i]
    for i in range(count):
        b[pivots[i]] = y[i] / scale[pivots[i]]


@inlined
def _shortest(matrix, lower, small, pivots, scale, y, count, b):  # type: ignore[no-untyped-def]
    """Write the shortest solution; see `_least_squares`."""
    rank = b.size
    for i in range(rank):
        for j in range(count):
            lower[pivots[i], j] = lower[pivots[i], j] * scale[pivots[i]] if j <= i else 0.0
    for j in range(count):
        y[j] = 0.0
        for r in range(rank):
            y[j] += lower[r, j] * matrix[rank, r]
        for k in range(j + 1):
            small[j, k] = 0.0
            for r in range(rank):
                small[j, k] += lower[r, j] * lower[r, k]
    for j in range(count):  # Cholesky factorisation of S in place; without columns that depend on others up to rounding
        least = ROUNDING * small[j, j]
        for k in range(j + 1):
            entry = small[j, k]
            for i in range(k):
                entry -= small[j, i] * small[k, i]
            small[j, k] = entry / small[k, k] if k < j else np.sqrt(entry) if entry > least else np.inf
    for _ in range(2):
        for j in range(count):
            for k in range(j):
                y[j] -= small[j, k] * y[k]
            y[j] /= small[j, j]
        for j in range(count - 1, -1, -1):
            for k in range(j + 1, count):
                y[j] -= small[k, j] * y[k]
            y[j] /= small[j, j]
    for r in range(rank):
        for j in range(count):
            b[r] += lower[r, j] * y[j]
