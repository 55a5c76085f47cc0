"""The updates of CP-APR that are repeated for each mode, in compiled code; see `backend.ops.mu_update`."""

from __future__ import annotations

import numpy as np

from partitioner.host.jit import jit


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
