"""CP-APR's elementwise updates on the GPU: compiling and launching ``mu_update.cu``."""

from __future__ import annotations

from collections.abc import Sequence
from functools import cache

import cupy
import numpy as np

from partitioner.array_types import FloatDType
from partitioner.cuda.code import load, prepare
from partitioner.cuda.cubins import CudaFunction, CudaSource

from ...device import Array, Device
from ...ops.mu_update import MU_UPDATE, MuUpdate, MuUpdateProvider
from ..device import CudaDevice
from ..source import REALS, unit

KERNELS = "begin", "measure", "apply", "add_parts", "add_up", "end"
THREADS, MOST_BLOCKS = 256, 1024
WIDE, TALL = 32, 8  # as in mu_update.cu
NOWHERE = np.uint64(0)
PARTS, ROWS = 256, 64  # column sums: maximum number of blocks, minimum rows of each


class CudaMuUpdate:
    """See `MuUpdate`."""

    def __init__(self, device: CudaDevice, rank: int, dtype: FloatDType) -> None:
        self._functions = _compiled(dtype, device.number)
        self._parts = cupy.empty((PARTS, rank), np.float64)

    def _launch(self, name: str, arguments: tuple[object, ...], shape: tuple[int, int]) -> None:
        blocks = min(MOST_BLOCKS, -(-shape[0] * shape[1] // THREADS))
        if blocks:
            self._functions[name]((blocks,), (THREADS,), arguments)

    def begin(self, matrix: Array, weights: Array, kappa: Array | float, least: float) -> None:
        each = isinstance(kappa, cupy.ndarray)
        kappas = (kappa, np.float64(0)) if each else (NOWHERE, np.float64(kappa))
        arguments = *_rows(matrix), *_size(matrix), weights, *kappas, np.float64(least)
        self._launch("begin", arguments, matrix.shape)

    def measure(self, phi: Array, matrix: Array, violation: Array, done: Array) -> None:
        arguments = *_rows(phi), *_rows(matrix), *_size(matrix), violation, done
        self._launch("measure", arguments, matrix.shape)

    def apply(self, phi: Array, matrix: Array, violation: Array, fact: Array, tol: float, done: Array) -> None:
        rows, columns = _size(matrix)
        arguments = *_rows(phi), *_rows(matrix), rows, columns, violation, fact, np.float64(tol), done
        # Launched even without rows, because the violation is the maximum over all ranks.
        self._functions["apply"]((max(1, min(MOST_BLOCKS, -(-matrix.size // THREADS))),), (THREADS,), arguments)

    def add_columns(self, matrix: Array, sums: Array) -> None:
        rows, columns = matrix.shape
        if not rows:
            return
        blocks = min(PARTS, -(-rows // ROWS))
        across, down = -(-columns // WIDE), -(-columns // THREADS)
        self._functions["add_parts"]((blocks, across), (WIDE, TALL), (*_rows(matrix), *_size(matrix), self._parts))
        numbers = np.int32(blocks), np.int32(columns)
        self._functions["add_up"]((down,), (THREADS,), (self._parts, *numbers, sums))

    def end(self, phi: Array, matrix: Array, sums: Array, least: float) -> None:
        self._launch("end", (*_rows(phi), *_rows(matrix), *_size(matrix), sums, np.float64(least)), matrix.shape)


class DeviceProvider:
    """See `MuUpdateProvider`."""

    def __init__(self, device: CudaDevice) -> None:
        self._device = device

    def bytes(self, rank: int) -> int:
        return PARTS * rank * 8

    def prepare(self, dtype: FloatDType) -> None:
        prepare([_unit(dtype)])

    def make(self, device: Device, rank: int, dtype: FloatDType) -> MuUpdate:
        return CudaMuUpdate(self._device, rank, dtype)


@MU_UPDATE.provider("cuda")
def providers(device: CudaDevice) -> Sequence[MuUpdateProvider]:
    """Return the providers of the operation."""
    return [DeviceProvider(device)]


def _rows(matrix: Array) -> tuple[np.void, np.int64]:
    """Return a matrix and its row stride in numbers, as arguments of kernels."""
    return matrix, np.int64(matrix.strides[0] // matrix.itemsize)


def _size(matrix: Array) -> tuple[np.int64, np.int32]:
    return np.int64(matrix.shape[0]), np.int32(matrix.shape[1])


def _unit(dtype: FloatDType) -> CudaSource:
    return unit("mu_update", {"REAL": REALS[dtype]})


@cache
def _compiled(dtype: FloatDType, device: int) -> dict[str, CudaFunction]:
    module = load(_unit(dtype))
    return {name: module.get_function(name) for name in KERNELS}
