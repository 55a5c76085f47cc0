"""Isotonic and unimodal regression on the GPU: compiling and launching ``isotonic.cu``."""

from __future__ import annotations

from collections.abc import Sequence
from functools import cache

import cupy
import numpy as np

from partitioner.cuda.code import load
from partitioner.cuda.cubins import CudaFunction

from ...device import Array
from ...ops.isotonic import ISOTONIC, Isotonic
from ..device import CudaDevice
from ..source import unit

KERNELS = "monotone", "prefix_errors", "find_peaks"
THREADS, WARP = 256, 32  # of a block, as in isotonic.cu; and of a block that has a thread per column
NOWHERE = np.uint64(0)


class CudaIsotonic:
    """See `Isotonic`."""

    def __init__(self, device: CudaDevice) -> None:
        self._number = device.number

    def monotone(self, matrix: Array, decreasing: bool) -> Array:
        return self._pooled(matrix, None, decreasing)

    def unimodal(self, matrix: Array, low: float, high: float) -> Array:
        """See `Isotonic`: a thread per column and direction finds the errors of all beginnings, one after the other."""
        rows, columns = matrix.shape
        matrix, sizes = cupy.ascontiguousarray(matrix), (np.int32(rows), np.int32(columns))
        errors = cupy.empty((2, rows + 1, columns), np.float64)
        stacks = cupy.empty((2, 4, rows + 1, columns), np.float64)
        peaks, functions = cupy.empty(columns, np.int32), _compiled(self._number)
        arguments = matrix, *sizes, np.float64(low), np.float64(high), stacks, errors
        functions["prefix_errors"]((-(-columns // WARP), 2), (WARP,), arguments)
        functions["find_peaks"]((columns,), (THREADS,), (errors, *sizes, peaks))
        return cupy.clip(self._pooled(matrix, peaks, False), low, high)

    def _pooled(self, matrix: Array, peaks: Array, decreasing: bool) -> Array:
        """Return isotonic regressions of columns; with `peaks`, of the parts before and, decreasing, from them on."""
        sums = cupy.array(matrix.T, np.float64, order="C")
        lengths, firsts = cupy.empty((2, *sums.shape), np.int32)
        place = NOWHERE if peaks is None else peaks
        arguments = sums, lengths, firsts, np.int32(len(matrix)), place, np.int32(-1 if decreasing else 1)
        _compiled(self._number)["monotone"]((len(sums), 1 if peaks is None else 2), (THREADS,), arguments)
        return cupy.ascontiguousarray(sums.T)


@ISOTONIC.provider("cuda")
def providers(device: CudaDevice) -> Sequence[Isotonic]:
    """Return the providers of the operation."""
    return [CudaIsotonic(device)]


@cache
def _compiled(device: int) -> dict[str, CudaFunction]:
    module = load(unit("isotonic", {}))
    return {name: module.get_function(name) for name in KERNELS}
