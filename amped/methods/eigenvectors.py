"""Eigenvectors of small symmetric matrices: rank 0 finds them, so that all ranks have the same."""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from ..backend.blas import scipy_linalg
from ..backend.device import Array, Device
from ..parallel.mpi import Comm

LEAST_ON_DEVICE = 160  # rows of an eigenproblem that a GPU solves sooner than its host
SMALL = 64  # up to so many rows a whole eigenproblem takes no longer than a part of it

Matrix = NDArray[np.float64]


def eigenvectors(matrix: Array, count: int, device: Device, comm: Comm) -> tuple[Matrix, Matrix]:
    """Return the `count` largest eigenvalues of a symmetric matrix, descending, and their eigenvectors. Collective.

    Rank 0's matrix counts, on its host or its device.
    """
    result = comm.bcast(_found(matrix, count, device) if comm.rank == 0 else None)
    assert result is not None
    return result


def _found(matrix: Array, count: int, device: Device) -> tuple[Matrix, Matrix]:
    args = isinstance(matrix, np.ndarray)
    if device.on_host or len(matrix) < LEAST_ON_DEVICE:
        return leading(matrix if args else device.to_host(matrix), count)
    values, vectors = device.xp.linalg.eigh(device.to_device(np.ascontiguousarray(matrix)) if args else matrix)
    last = device.to_host(device.xp.ascontiguousarray(vectors[:, ::-1][:, :count]))
    return device.to_host(values)[::-1][:count].copy(), last


def in_part(size: int, count: int) -> bool:
    """Return whether SciPy finds the first `count` eigenvectors of a matrix of `size` rows; if not, NumPy finds all."""
    return size > SMALL and 2 * count <= size


def leading_bytes(size: int, count: int) -> int:
    """Return the bytes that `leading` takes beside the matrix, without SciPy's own."""
    return 8 * size * (size + 2 * count if in_part(size, count) else 4 * size)


def leading(gram: Matrix, count: int) -> tuple[Matrix, Matrix]:
    """Do the same on the host."""
    size = len(gram)
    if in_part(size, count):
        values, vectors = scipy_linalg().eigh(gram, subset_by_index=(size - count, size - 1), check_finite=False)
    else:
        values, vectors = np.linalg.eigh(gram)
    return np.ascontiguousarray(values[::-1][:count]), np.ascontiguousarray(vectors[:, ::-1][:, :count])
