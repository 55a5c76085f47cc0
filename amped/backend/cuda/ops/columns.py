"""Sums and arrangement of columns on a GPU: compiling and launching ``columns.cu``."""

from __future__ import annotations

from collections.abc import Sequence
from functools import cache
from typing import NamedTuple

import cupy
import numpy as np
from numpy.typing import NDArray

from partitioner.array_types import FloatDType, Floats
from partitioner.cuda.code import load
from partitioner.cuda.cubins import CudaFunction, CudaSource

from ...device import Array
from ...ops.columns import COLUMNS, ColumnsProvider, ColumnSums
from ..device import CudaDevice
from ..source import REALS, unit

WARP, WARPS, SUMS = 32, 8, 3  # as in columns.cu
BLOCKS, THREADS = 1024, 256  # thread blocks that share the rows of a sum; threads of a block that arranges
TOTAL_BLOCKS, TOTAL_ROWS = 512, 64  # of a total: thread blocks at most, and rows of each at least
AT_ONCE = 1 << 28  # bytes arranged before they are copied to the host


class CudaColumns:
    """See `ColumnsProvider`."""

    def __init__(self, device: CudaDevice) -> None:
        self._device = device

    def sums(self, matrix: Array) -> ColumnSums:
        """See `ColumnsProvider`."""
        rows, columns = matrix.shape
        blocks = max(1, min(BLOCKS, -(-rows // WARPS)))
        parts = cupy.empty((blocks, SUMS, columns), np.float64)
        code = _code(matrix.dtype, self._device.number)
        code.sums((blocks, -(-columns // WARP)), (WARP * WARPS,), (*_described(matrix), parts))
        return ColumnSums(*parts.get().sum(axis=0))

    def totals(self, matrix: Array) -> Array:
        """See `ColumnsProvider`: blocks of threads sum some rows each, and one sums these."""
        rows, columns = matrix.shape
        blocks, across = max(1, min(TOTAL_BLOCKS, -(-rows // TOTAL_ROWS))), -(-columns // WARP)
        parts, result = cupy.empty((blocks, columns), np.float64), cupy.empty(columns, np.float64)
        code = _code(matrix.dtype, self._device.number)
        code.totals((blocks, across), (WARP * WARPS,), (*_described(matrix), parts))
        code.add_totals((1, across), (WARP * WARPS,), (*_described(parts), result))
        return result

    def arranged(self, matrix: Array, order: NDArray[np.intp], divisor: Floats, flushed: float) -> Array:
        """See `ColumnsProvider`."""
        dtype, copy = matrix.dtype, cupy.empty(matrix.shape, matrix.dtype)
        code = _code(dtype, self._device.number)
        params = cupy.asarray(order.astype(np.int32)), cupy.asarray(divisor.astype(dtype)), dtype.type(flushed)
        code.arrange((-(-matrix.size // THREADS),), (THREADS,), (*_described(matrix), *params, copy))
        return copy

    def on_host(self, matrix: Array, order: NDArray[np.intp], divisor: Floats, flushed: float) -> Floats:
        """See `ColumnsProvider`."""
        (rows, columns), dtype = matrix.shape, matrix.dtype
        result, step = np.empty((rows, columns), dtype), max(1, AT_ONCE // (columns * dtype.itemsize))
        for begin in range(0, rows, step):
            copy = self.arranged(matrix[begin : begin + step], order, divisor, flushed)
            self._device.fetch(copy, result[begin : begin + step])
        return result


@COLUMNS.provider("cuda")
def providers(device: CudaDevice) -> Sequence[ColumnsProvider]:
    """Return the providers of the operation."""
    return [CudaColumns(device)]


def _described(matrix: Array) -> tuple[object, ...]:
    """Return the arguments that describe a matrix: address, rows, columns, and numbers from row to row."""
    rows, columns = matrix.shape
    return np.uint64(matrix.data.ptr), np.int64(rows), np.int32(columns), np.int64(matrix.strides[0] // matrix.itemsize)


def columns_unit(dtype: FloatDType) -> CudaSource:
    """Return the code for matrices of a type."""
    return unit("columns", {"REAL": REALS[dtype]})


class _Code(NamedTuple):
    """The functions of ``columns.cu``."""

    sums: CudaFunction
    totals: CudaFunction
    add_totals: CudaFunction
    arrange: CudaFunction


@cache
def _code(dtype: FloatDType, device: int) -> _Code:
    module = load(columns_unit(dtype))
    return _Code(*map(module.get_function, ("column_sums", "totals", "add_totals", "arrange")))
