"""Eigenvectors of small symmetric matrices, computed by rank 0 so that all ranks have identical ones."""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from ..backend.blas import scipy_linalg
from ..backend.device import Array, Device
from ..parallel.mpi import Comm

LEAST_ON_DEVICE = 160  # rows from which a GPU solves an eigenproblem faster than its host
SMALL = 64  # rows up to which computing all eigenvectors is as fast as computing some

Matrix = NDArray[np.float64]


def eigenvectors(matrix: Array, count: int, device: Device, comm: Comm) -> tuple[Matrix, Matrix]:
    """Return the `count` largest eigenvalues of a symmetric matrix, descending, and their eigenvectors. Collective.

    Only rank 0's matrix is used; it may be in host or device memory.
    """
    result = comm.bcast(_eigenvectors(matrix, count, device) if comm.rank == 0 else None)
    assert result is not None
    return result


def _eigenvectors(matrix: Array, count: int, device: Device) -> tuple[Matrix, Matrix]:
    on_host = isinstance(matrix, np.ndarray)
    if device.on_host or len(matrix) < LEAST_ON_DEVICE:
        return leading(matrix if on_host else device.to_host(matrix), count)
    values, vectors = device.xp.linalg.eigh(device.to_device(np.ascontiguousarray(matrix)) if on_host else matrix)
    last = device.to_host(device.xp.ascontiguousarray(vectors[:, ::-1][:, :count]))
    return device.to_host(values)[::-1][:count].copy(), last


def in_part(size: int, count: int) -> bool:
    """Return whether SciPy computes only the first `count` of `size` eigenvectors; otherwise NumPy computes all."""
    return size > SMALL and 2 * count <= size


def leading_bytes(size: int, count: int) -> int:
    """Return the memory that `leading` needs in addition to the matrix and to SciPy's libraries."""
    return 8 * size * (size + 2 * count if in_part(size, count) else 4 * size)


def leading(gram: Matrix, count: int) -> tuple[Matrix, Matrix]:
    """Return the same as `eigenvectors` for a host matrix, without communication."""
    size = len(gram)
    if in_part(size, count):
        values, vectors = scipy_linalg().eigh(gram, subset_by_index=(size - count, size - 1), check_finite=False)
    else:
        values, vectors = np.linalg.eigh(gram)
    return np.ascontiguousarray(values[::-1][:count]), np.ascontiguousarray(vectors[:, ::-1][:, :count])
