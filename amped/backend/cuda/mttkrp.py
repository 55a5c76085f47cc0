"""MTTKRP of one shard on a GPU: compiling and launching ``segmented.cu``."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from functools import cache
from typing import Any

import cupy
import numpy as np

from ..base import Array, Shard
from .source import compile_options, text

CHUNKS = {"segmented-128": 128, "segmented-256": 256, "segmented-512": 512}
KERNELS = ("segmented-256", "segmented-128", "segmented-512")  # the first is the one for --deterministic
FAN_IN = 32  # as in segmented.cu
BLOCK = 128  # threads
VECTOR = 16  # bytes that a thread loads at once


@cache
def _functions(order: int, dtype: np.dtype[Any], device: int) -> tuple[Any, Any]:
    # CuPy keeps compiled kernels on disk, keyed by source, options and architecture.
    module = cupy.RawModule(code=text(), options=compile_options(order, dtype))
    return module.get_function("segmented"), module.get_function("combine")


def _levels(nnz: int, chunk: int) -> Iterator[tuple[int, int, int]]:
    """Yield (items, step, back) of each level of the sum of carries; see ``combine``."""
    items, step, back = -(-nnz // chunk), chunk, 1
    while True:
        yield items, step, back
        if items <= FAN_IN:
            return
        items, step, back = -(-items // FAN_IN), step * FAN_IN, step


def scratch_bytes(nnz: int, stride: int) -> int:
    """Return the bytes of carries for the smallest chunk."""
    levels = [items for items, _, _ in _levels(nnz, min(CHUNKS.values()))]
    return (levels[0] + sum(-(-items // FAN_IN) for items in levels)) * stride * 8


def mttkrp(shard: Shard, factors: Sequence[Array], out: Array, row_begin: int, kernel: str) -> None:
    """See `Backend.mttkrp`; queued on the current stream."""
    if not shard.nnz:
        return
    stride, dtype = out.shape[1], factors[0].dtype
    segmented, combine = _functions(len(factors) + 1, dtype, out.device.id)
    width = stride * dtype.itemsize // VECTOR
    tiles = -(-width // BLOCK)
    lanes = -(-width // tiles)
    per_block = BLOCK // lanes
    chunk = CHUNKS[kernel]
    rows = shard.indices[0]
    shape = np.int32(lanes), np.int32(width), np.int32(row_begin), np.int32(shard.continues)

    def launch(function: Any, items: int, *args: Any) -> None:
        function((-(-items // per_block), tiles), (per_block * lanes,), (*args, *shape))

    carry = cupy.empty((-(-shard.nnz // chunk), stride), np.float64)
    inputs = _pointers([*shard.indices[1:], *factors])
    launch(segmented, len(carry), inputs, rows, shard.values, out, carry, np.int64(shard.nnz), np.int32(chunk))
    for items, step, back in _levels(shard.nnz, chunk):
        groups = -(-items // FAN_IN)
        up = cupy.empty((groups, stride), np.float64)
        launch(combine, groups, rows, carry, up, out, np.int64(items), np.int64(step), np.int64(back))
        carry = up


def _pointers(arrays: Sequence[Array]) -> Any:
    """Pack device addresses into a structure that is passed to a kernel by value."""
    packed = np.array([a.data.ptr for a in arrays], np.uint64)
    return packed.view(np.dtype((np.void, packed.nbytes)))[0]
