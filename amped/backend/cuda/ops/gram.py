"""Gram matrices on the GPU: compiling and launching ``gram.cu``."""

from __future__ import annotations

from collections.abc import Sequence
from functools import cache

import cupy
import numpy as np

from partitioner.array_types import FloatDType
from partitioner.cuda.code import load
from partitioner.cuda.cubins import CudaFunction, CudaSource

from ...device import Array
from ...ops.gram import GRAM, GramProvider
from ..device import CudaDevice
from ..launches.device_matrices import strides_of
from ..source import REALS, unit

MOST_COLUMNS, THREADS, ADDED, TILE = 64, 256, 32, 32  # as in gram.cu
BLOCKS = 2  # per multiprocessor


class CudaGram:
    """See `GramProvider`."""

    def __init__(self, device: CudaDevice) -> None:
        self._device = device

    def suits(self, rank: int) -> bool:
        return rank <= MOST_COLUMNS

    def bytes(self, rows: int, rank: int) -> int:
        return 8 * rank * rank * (self._blocks(rows) + 1)

    def _blocks(self, rows: int) -> int:
        """Return the number of thread blocks that share `rows` rows."""
        return min(-(-rows // TILE), self._device.limits.processors * BLOCKS)

    def gram(self, matrix: Array) -> Array:
        (rows, rank), blocks = matrix.shape, self._blocks(len(matrix))
        parts, total = cupy.empty((blocks, rank, rank), np.float64), cupy.empty((rank, rank), np.float64)
        function, add = gram_functions(matrix.dtype, self._device.number)
        if rows:
            function((blocks,), (THREADS,), (matrix, *strides_of(matrix), np.int64(rows), np.int32(rank), parts))
        add((-(-total.size // ADDED),), (THREADS,), (parts, np.int32(blocks), np.int32(total.size), total))
        return total


@GRAM.provider("cuda")
def providers(device: CudaDevice) -> Sequence[GramProvider]:
    """Return the providers of the operation."""
    return [CudaGram(device)]


def gram_unit(dtype: FloatDType) -> CudaSource:
    """Return the code for matrices of a type."""
    return unit("gram", {"REAL": REALS[dtype]})


@cache
def gram_functions(dtype: FloatDType, device: int) -> tuple[CudaFunction, CudaFunction]:
    """Return the compiled code that multiplies some rows, and that adds up what thread blocks leave."""
    module = load(gram_unit(dtype))
    return module.get_function("gram"), module.get_function("add_parts")
