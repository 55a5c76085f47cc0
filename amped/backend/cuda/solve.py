"""Rows of factor matrices, solved in one pass over the MTTKRP: compiling and launching ``solve.cu``."""

from __future__ import annotations

from functools import cache
from typing import Any

import cupy
import numpy as np

from ..base import Array
from .layout import Limits
from .source import REALS, compile_options, text

SIDE, ROWS = 16, 64  # as in solve.cu
THREADS = SIDE * SIDE
BLOCKS = 2  # of threads on a multiprocessor: more leave more to add up
MOST_COLUMNS = 128  # a thread has as many sums in registers
NOWHERE = np.uint64(0)


def shared_bytes(rank: int) -> int:
    """Return the shared memory of a block of threads: the inverse, and a tile of rows."""
    span = -(-rank // SIDE) * SIDE
    return 8 * (rank * span + ROWS * (span + 1))


@cache
def _kernels(rank: int, dtype: np.dtype[Any], device: int) -> tuple[Any, Any]:
    module = cupy.RawModule(code=text("solve"), options=compile_options({"RANK": rank, "REAL": REALS[dtype]}))
    function = module.get_function("solve")
    function.max_dynamic_shared_size_bytes = shared_bytes(rank)
    return function, module.get_function("add_parts")


def suits(rank: int, limits: Limits) -> bool:
    """Tell whether rows of so many columns fit a block of threads."""
    return rank <= MOST_COLUMNS and shared_bytes(rank) <= limits.shared


def solve(
    source: Array, inverse: Array, target: Array, gram: Array, largest: Array, dots: Array | None, limits: Limits
) -> None:
    """See `dense.solve`; queued on the current stream."""
    rows, rank = source.shape
    if not rows:
        return
    solve_rows, add_parts = _kernels(rank, target.dtype, source.device.id)
    blocks = min(-(-rows // ROWS), limits.processors * min(BLOCKS, limits.shared // shared_bytes(rank)))
    parts = cupy.empty((blocks, rank + 2, rank), np.float64)
    strides = [np.int64(matrix.strides[0] // matrix.itemsize) for matrix in (source, target)]
    arguments = source, strides[0], cupy.ascontiguousarray(inverse), target, strides[1], np.int64(rows), parts
    solve_rows((blocks,), (THREADS,), arguments, shared_mem=shared_bytes(rank))
    grid = -(-parts[0].size // THREADS)
    add_parts((grid,), (THREADS,), (parts, np.int32(blocks), gram, NOWHERE if dots is None else dots, largest))
