"""Gram matrices on the GPU: launching ``gram`` of ``solve.cu``."""

from __future__ import annotations

from collections.abc import Sequence
from functools import cache

import cupy
import numpy as np

from partitioner.array_types import FloatDType
from partitioner.cuda.code import load
from partitioner.cuda.cubins import CudaFunction

from ...device import Array
from ...ops.gram import GRAM, GramProvider
from ..device import CudaDevice
from ..launches.device_matrices import strides_of
from ..launches.fused_rows import ADDED, NOWHERE, THREADS
from ..source import ALONE
from . import solve


class CudaGram:
    """See `GramProvider`."""

    def __init__(self, device: CudaDevice) -> None:
        self._device = device

    def suits(self, rank: int) -> bool:
        return self._device.capability >= solve.LEAST_CAPABILITY and rank <= solve.MOST_COLUMNS

    def bytes(self, rows: int, rank: int) -> int:
        return 8 * rank * (solve.blocks_of(rows, self._device) * (rank + 2) + rank + 1)

    def gram(self, matrix: Array) -> Array:
        (rows, rank), blocks = matrix.shape, solve.blocks_of(len(matrix), self._device)
        total, largest = cupy.zeros((rank, rank), np.float64), cupy.empty(rank, np.float64)
        if rows:
            parts = cupy.empty((blocks, rank + 2, rank), np.float64)
            function, add = _functions(rank, matrix.dtype, self._device.number)
            function((blocks,), (THREADS,), (matrix, *strides_of(matrix), np.int64(rows), parts))
            sums = parts, np.int32(blocks), total, NOWHERE, largest, np.int64(0)
            add((-(-parts[0].size // ADDED), 1), (THREADS,), (ALONE, np.int32(0), *sums))
        return total


@GRAM.provider("cuda")
def providers(device: CudaDevice) -> Sequence[GramProvider]:
    """Return the providers of the operation."""
    return [CudaGram(device)]


@cache
def _functions(rank: int, dtype: FloatDType, device: int) -> tuple[CudaFunction, CudaFunction]:
    module = load(solve.solving_unit(rank, dtype))
    return module.get_function("gram"), module.get_function("add_parts")
