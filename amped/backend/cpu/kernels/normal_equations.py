"""The normal equations of CP-ALS for small ranks, in compiled code; see `backend.ops.equations` and `solve`.

In an iteration on a small tensor, the overhead of NumPy calls would exceed the arithmetic.
"""

from __future__ import annotations

import numpy as np

from partitioner.host.jit import jit

from ...ops.equations import NOISY, NOT_FINITE, RANGE


@jit
def prepare(grams, norms, scales, mode, totals, divisor, inverse):  # type: ignore[no-untyped-def]
    """Compute `inverse` and `divisor`, and clear `totals`; see `Equations.prepare`.

    Gauss-Jordan elimination; a positive definite matrix needs no pivoting. Return the condition number in the Frobenius
    norm, or NaN if the matrix is not positive definite or not finite.
    """
    order, rank = norms.shape
    size = 0.0
    for i in range(rank):
        for j in range(rank):
            product = 1.0
            for m in range(order):
                if m != mode:
                    product *= grams[m, i, j]
            inverse[i, j] = product
            size += product * product
    positive = True
    for k in range(rank):
        pivot = inverse[k, k]
        positive &= pivot > 0
        over = 1 / pivot if pivot != 0 else np.nan
        for i in range(rank):
            if i != k:
                part = inverse[i, k] * over
                for j in range(rank):
                    inverse[i, j] -= part * inverse[k, j]
                inverse[i, k] = -part
        for j in range(rank):
            inverse[k, j] *= over
        inverse[k, k] = over
    inverse_size = 0.0
    for j in range(rank):
        divisor[j] = norms[mode, j] * scales[mode, j]
    for i in range(rank):
        scale = 1.0
        for m in range(order):
            if m != mode:
                scale *= scales[m, i]
        for j in range(rank):
            inverse_size += inverse[i, j] * inverse[i, j]
            inverse[i, j] *= scale / divisor[j] if divisor[j] != 0 else np.inf  # Numba raises an error for x / 0
    totals[:] = 0.0
    return np.sqrt(size) * np.sqrt(inverse_size) if positive else np.nan


@jit
def constrain(grams, scales, mode, divisor, ridge, gram, right):  # type: ignore[no-untyped-def]
    """Compute the quadratic problem of non-negative rows, a `System`; return whether it is finite."""
    order, rank = scales.shape
    finite = True
    for i in range(rank):
        scale, known = 1.0, 1.0
        for m in range(order):
            if m != mode:
                scale *= scales[m, i]
                known *= grams[m, i, i]
        right[i] = scale * divisor[i]
        for j in range(rank):
            product = 1.0
            for m in range(order):
                if m != mode:
                    product *= grams[m, i, j]
            if i == j:
                product += ridge
            finite &= np.isfinite(product)
            # A column that is zero in another mode gets zeros.
            gram[i, j] = product * (divisor[i] * divisor[j]) if known != 0 else 0.0
    return finite


@jit
def finish(totals, divisor, mode, norms, scales, grams, first, again, most):  # type: ignore[no-untyped-def]
    """Normalise the columns of a mode, or return a flag; see `Equations.finish`."""
    rank = norms.shape[1]
    finite = True
    for j in range(rank):
        if totals[rank + 1, j] != 0:
            return NOISY
        for p in range(rank + 3, totals.shape[0]):  # NaN propagates
            if totals[p, j] > totals[rank + 2, j] or totals[p, j] != totals[p, j]:
                totals[rank + 2, j] = totals[p, j]
        for i in range(rank):
            finite &= np.isfinite(totals[i, j])
    for j in range(rank):
        largest = totals[rank + 2, j]
        if not again and largest != 0 and not 1 / most < largest < most:
            return RANGE
    if not finite:
        return NOT_FINITE
    for j in range(rank):
        length = np.sqrt(totals[j, j]) * divisor[j] if first else max(totals[rank + 2, j] * divisor[j], 1.0)
        norms[mode, j] = length if length > 0 else 1.0
        scales[mode, j] = divisor[j] / norms[mode, j]
    for i in range(rank):
        for j in range(rank):
            grams[mode, i, j] = totals[i, j] * (scales[mode, i] * scales[mode, j])
    return 0


@jit
def put(rows, source, target, largest, dots):  # type: ignore[no-untyped-def]
    """Store solved rows, rounded to the target's precision, also in `rows`; add to the `Sums` of their columns.

    `dots` is empty if they are not needed. Without branches, so that the loops over columns are vectorised; NaN
    propagates.
    """
    count, rank = rows.shape
    for i in range(count):
        for j in range(rank):
            exact, before = rows[i, j], largest[j]
            size = abs(exact)
            largest[j] = before if (before >= size) | (before != before) else size
            target[i, j] = exact
            rows[i, j] = target[i, j]
        if dots.size:
            for j in range(rank):
                dots[j] += source[i, j] * rows[i, j]
