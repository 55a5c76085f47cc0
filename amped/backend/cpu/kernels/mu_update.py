"""The elementwise updates of CP-APR in compiled code; see `backend.ops.mu_update`.

`bits` are the numbers of a matrix as unsigned integers, and `limit` is the bits of the number below which marks count.
"""

from __future__ import annotations

import numpy as np

from partitioner.host.jit import jit


@jit
def begin(matrix, bits, weights, kappa, limit, shifts):  # type: ignore[no-untyped-def]
    """Convert A to B; see `MuUpdate.begin`. `shifts` is scratch, (R,)."""
    rank, mark = matrix.shape[1], bits.dtype.type(1)
    for i in range(matrix.shape[0]):
        for j in range(rank):
            number = bits[i, j]
            marked = (number < limit) & (number & mark)
            shifts[j] = kappa[j] if marked else 0.0
            bits[i, j] = number ^ marked  # without marks, zeros are zeros
        for j in range(rank):
            matrix[i, j] = (matrix[i, j] + shifts[j]) * weights[j]


@jit
def end(phi, matrix, bits, divisor, limit):  # type: ignore[no-untyped-def]
    """Convert B to A; see `MuUpdate.end`."""
    rank, mark = matrix.shape[1], bits.dtype.type(1)
    for i in range(matrix.shape[0]):
        for j in range(rank):
            matrix[i, j] = matrix[i, j] / divisor[j]
        for j in range(rank):
            number = bits[i, j]
            marked = (number & ~mark) | (mark if not phi[i, j] <= 1 else mark ^ mark)
            bits[i, j] = marked if number < limit else number


@jit
def measure(phi, matrix):  # type: ignore[no-untyped-def]
    """Return the largest ``|min(B, 1 - Phi)|`` of each column, 0 without rows; NaN propagates.

    Without branches, so that the loop over columns is vectorised.
    """
    rank = matrix.shape[1]
    largest = np.zeros(rank)
    for i in range(matrix.shape[0]):
        for j in range(rank):
            entry, slope, before = np.float64(matrix[i, j]), 1 - phi[i, j], largest[j]
            size = abs(entry if (entry < slope) | (entry != entry) else slope)
            largest[j] = before if (before >= size) | (before != before) else size
    return largest


@jit
def apply(phi, matrix):  # type: ignore[no-untyped-def]
    """Multiply B by Phi."""
    for i in range(matrix.shape[0]):
        for j in range(matrix.shape[1]):
            matrix[i, j] = matrix[i, j] * phi[i, j]
