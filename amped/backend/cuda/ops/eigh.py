"""Leading eigenvectors on a GPU: compiling and launching ``tridiagonal.cuh``, ``eigh.cu`` and ``whiten.cu``."""

from __future__ import annotations

from collections.abc import Sequence
from functools import cache

import cupy
import numpy as np

from partitioner.cuda.code import load, prepare
from partitioner.cuda.cubins import CudaFunction, CudaSource

from ...device import Array
from ...ops.eigh import EIGH, TURNS, Eigh
from ..device import CudaDevice
from ..source import unit

CAPABILITIES = 90, 100  # compute capabilities with clusters of 16 thread blocks; only 90 was measured
LEAST, MOST, MOST_COUNT = 8, 512, 64  # rows of a matrix; eigenvectors
ROWS, THREADS = 32, 256  # of a thread block, as in the sources
PORTABLE, LARGER_CLUSTERS = 8, 14  # thread blocks of a cluster; CU_FUNC_ATTRIBUTE_NON_PORTABLE_CLUSTER_SIZE_ALLOWED


class ClusterEigh:
    """See `Eigh`. A cluster of thread blocks holds the matrix in registers."""

    def __init__(self, device: CudaDevice) -> None:
        self._supported, self._number = device.capability in CAPABILITIES, device.number

    def suits(self, size: int, count: int) -> bool:
        return self._supported and LEAST <= size <= MOST and count <= min(size, MOST_COUNT)

    def prepare(self, size: int, count: int) -> None:
        prepare([_unit(size, count), _whitening(count)])

    def bytes(self, size: int, count: int) -> int:
        return 8 * (size * _parts(size) * ROWS + 3 * size)

    def eigenvectors(self, gram: Array, out: Array, facts: Array) -> None:
        size, count = out.shape
        tridiagonal, eigenvectors = _functions(size, count, self._number)
        t = cupy.empty((3, size), np.float64)  # diagonal, off-diagonal, factors
        reflections = cupy.empty((size, _parts(size) * ROWS), np.float64)
        tridiagonal((_parts(size),), (THREADS,), (gram, t[0], t[1], reflections, t[2]))
        of_each = facts[:count], facts[count : 2 * count]
        eigenvectors((count,), (THREADS,), (t[0], t[1], reflections, t[2], *of_each, out))

    def whiten(self, gram: Array, out: Array, facts: Array, turn: int) -> None:
        where = facts[turn - 2 * TURNS :], facts[turn - TURNS :]
        _whiten(len(gram), self._number)((1,), (THREADS,), (gram, out, *where))


@EIGH.provider("cuda")
def providers(device: CudaDevice) -> Sequence[Eigh]:
    """Return the providers of the operation."""
    return [ClusterEigh(device)]


def _parts(size: int) -> int:
    """Return the number of thread blocks of a cluster."""
    return -(-size // ROWS)


def _unit(size: int, count: int) -> CudaSource:
    return unit("eigh", {"SIZE": size, "COUNT": count})


def _whitening(count: int) -> CudaSource:
    return unit("whiten", {"COUNT": count})


@cache
def _functions(size: int, count: int, device: int) -> tuple[CudaFunction, CudaFunction]:
    module = load(_unit(size, count))
    tridiagonal, eigenvectors = map(module.get_function, ("tridiagonal", "eigenvectors"))
    if _parts(size) > PORTABLE:
        cupy.cuda.driver.funcSetAttribute(tridiagonal.ptr, LARGER_CLUSTERS, 1)
    return tridiagonal, eigenvectors


@cache
def _whiten(count: int, device: int) -> CudaFunction:
    return load(_whitening(count)).get_function("whiten")
