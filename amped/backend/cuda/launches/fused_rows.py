"""Launching code that solves rows of one run or several in one pass over the MTTKRP, and adds up what it leaves."""

from __future__ import annotations

import cupy
import numpy as np

from partitioner.array_types import FloatDType
from partitioner.cuda.code import allow_shared, load
from partitioner.cuda.cubins import CudaFunction, CudaSource

from ...device import Array
from ...ops.solve import Sums
from ..device import CudaDevice
from ..source import ALONE, REALS, unit
from .device_matrices import strides_of

THREADS = 256  # as in solve.cu and nonnegative.cu
ADDED = 32  # sums of a block of threads, as in add_parts.cuh
NOWHERE = np.uint64(0)


class FusedRows:
    """Launches ``solve`` of solve.cu or ``hals`` of nonnegative.cu, and then ``add_parts`` of add_parts.cuh.

    Parameters
    ----------
    solve_rows, add_parts
        Compiled code.
    shared : int
        The shared memory of a block of threads, beyond what its code declares.
    blocks : int
        Blocks of threads that solve the rows of a run, at most.
    least : int
        Rows of a block of threads, at least.
    rank, places : int
        The most columns of a run, and how many runs there are.
    runs
        The `Runs` of ``batch_index.cuh``.
    """

    def __init__(
        self, device: CudaDevice, solve_rows: CudaFunction, add_parts: CudaFunction, shared: int, blocks: int,
        least: int, rank: int, places: int = 1, runs: np.void = ALONE,
    ) -> None:  # fmt: skip
        self._device, self._solve_rows, self._add_parts, self._shared = device, solve_rows, add_parts, shared
        self._blocks, self._least, self._places, self._runs = blocks, least, places, runs
        self._parts = cupy.empty((places, max(1, blocks), rank + 2, rank), np.float64)

    def run(
        self,
        source: Array,
        operands: tuple[object, ...],
        target: Array,
        sums: Sums,
        apart: int = 0,
        again: bool = False,
    ) -> None:
        """Queue the solving of rows on the current stream, and sums beside it: the next MTTKRP needs rows only.

        `operands` come between the rows of the MTTKRP and those of the factor matrix; `sums` are those of the first
        run, those of the next one are `apart` numbers from them. `again`: of runs that are out of `RANGE`.
        """
        rows, (_, _, lines, rank) = len(source), self._parts.shape
        if not rows:
            return
        blocks, which = min(self._blocks, -(-rows // self._least)), (self._runs, np.int32(again))
        stride, other = strides_of(source, target)
        arguments = *which, source, stride, *operands, target, other, np.int64(rows), self._parts
        self._solve_rows((blocks, self._places), (THREADS,), arguments, shared_mem=self._shared)
        grid, dots = -(-lines * rank // ADDED), NOWHERE if sums.dots is None else sums.dots
        with self._device.side_stream():
            places = sums.gram, dots, sums.largest, np.int64(apart)
            self._add_parts((grid, self._places), (THREADS,), (*which, self._parts, np.int32(blocks), *places))


def rows_unit(name: str, rank: int, dtype: FloatDType, batch: bool = False) -> CudaSource:
    """Return the CUDA source that solves rows of one run or, with `batch`, of several runs of up to `rank` columns."""
    return unit(name, {"RANK": rank, "REAL": REALS[dtype], **({"SEVERAL": 1} if batch else {})})


def functions_of(source: CudaSource, name: str) -> tuple[CudaFunction, CudaFunction]:
    """Return the compiled code that solves rows, which may have all shared memory, and that adds up what it leaves."""
    module = load(source)
    function = module.get_function(name)
    allow_shared(function)
    return function, module.get_function("add_parts")
