"""Rows of factor matrices, solved in one pass over the MTTKRP: compiling and launching ``solve.cu``."""

from __future__ import annotations

from functools import cache
from typing import Any

import cupy
import numpy as np

from ...base import Array
from ..layout import Limits
from ..source import REALS, compile_options, text

SIDE, ROWS, THREADS = 8, 32, 256  # as in solve.cu
MOST_COLUMNS = 128  # a warp has its share of the Gram matrix in registers
LEAST_CAPABILITY = 80  # ten times: tensor cores compute in double precision
BLOCKS = 2  # of threads on a multiprocessor: more leave more to add up
FEWEST = 2 * ROWS  # rows of a block: its part takes as much as rank + 2 rows
NOWHERE = np.uint64(0)


def shared_bytes(rank: int) -> int:
    """Return the shared memory of a block of threads: the inverse, and a tile of rows before and after."""
    span = -(-rank // SIDE) * SIDE
    return 8 * (span + 2 * ROWS) * (span + (12 if span % 16 else 4))


def suits(rank: int, limits: Limits, device: Any) -> bool:
    """Tell whether a device solves rows of so many columns in one pass."""
    capable = int(device.compute_capability) >= LEAST_CAPABILITY
    return capable and rank <= MOST_COLUMNS and shared_bytes(rank) <= limits.shared


@cache
def _kernels(rank: int, dtype: np.dtype[Any], device: int) -> tuple[Any, Any]:
    module = cupy.RawModule(code=text("solve"), options=compile_options({"RANK": rank, "REAL": REALS[dtype]}))
    function = module.get_function("solve")
    function.max_dynamic_shared_size_bytes = shared_bytes(rank)
    return function, module.get_function("add_parts")


def solve(
    source: Array, inverse: Array, target: Array, gram: Array, largest: Array, dots: Array | None, limits: Limits
) -> None:
    """See `dense.solve`; queued on the current stream."""
    rows, rank = source.shape
    if not rows:
        return
    solve_rows, add_parts = _kernels(rank, target.dtype, source.device.id)
    blocks = min(-(-rows // FEWEST), limits.processors * min(BLOCKS, limits.shared // shared_bytes(rank)))
    parts = cupy.empty((blocks, rank + 2, rank), np.float64)
    strides = [np.int64(matrix.strides[0] // matrix.itemsize) for matrix in (source, target)]
    arguments = source, strides[0], cupy.ascontiguousarray(inverse), target, strides[1], np.int64(rows), parts
    solve_rows((blocks,), (THREADS,), arguments, shared_mem=shared_bytes(rank))
    grid = -(-parts[0].size // THREADS)
    add_parts((grid,), (THREADS,), (parts, np.int32(blocks), gram, NOWHERE if dots is None else dots, largest))
