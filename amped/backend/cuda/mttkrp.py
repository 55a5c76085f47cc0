"""MTTKRP of one shard on a GPU: compiling and launching ``mttkrp.cu`` and ``combine.cu``."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from functools import cache
from typing import Any

import cupy
import numpy as np

from ..base import Array
from .layout import Layout, Limits
from .shard import CudaShard
from .source import compile_options, text

FAN_IN = 32  # as in combine.cu
THREADS = 128
NOWHERE = np.uint64(0)


@cache
def _kernel(macros: tuple[tuple[str, Any], ...], device: int) -> Any:
    # CuPy keeps compiled kernels on disk, keyed by source, options and architecture.
    module = cupy.RawModule(code=text("mttkrp"), options=compile_options(dict(macros)))
    function = module.get_function("mttkrp")
    function.max_dynamic_shared_size_bytes = cupy.cuda.Device(device).attributes["MaxSharedMemoryPerBlockOptin"]
    return function


@cache
def _sums(device: int) -> tuple[Any, Any]:
    module = cupy.RawModule(code=text("combine"), options=compile_options({}))
    return module.get_function("combine"), module.get_function("widen")


def levels(items: int) -> Iterator[tuple[int, int, int]]:
    """Yield (items, step, back) of each level of the sum of carries; see ``combine``."""
    step, back = 1, 0
    while True:
        yield items, step, back
        if items <= FAN_IN:
            return
        items, step, back = -(-items // FAN_IN), step * FAN_IN, step


def scratch_bytes(layout: Layout, nnz: int, limits: Limits) -> int:
    """Return the bytes that `mttkrp` of `nnz` nonzeros needs for a while."""
    share = layout.share
    if not nnz:
        return 0
    if layout.tiled:
        return (share.rows.stop - share.rows.start) * share.stride * 4 if share.dtype == np.float32 else 0
    sizes = [items for items, _, _ in levels(-(-nnz // layout.chunk_of(nnz, limits)))]
    return (sizes[0] + sum(-(-items // FAN_IN) for items in sizes)) * share.stride * 8


def mttkrp(shard: CudaShard, factors: Sequence[Array], out: Array) -> None:
    """See `Backend.mttkrp`; queued on the current stream."""
    layout, columns = shard.layout, out.shape[1]
    function = _kernel(layout.macros, out.device.id)
    combine, widen = _sums(out.device.id)
    inputs = np.zeros(1, _inputs_type(len(factors)))
    inputs["factor"] = [f.data.ptr for f in factors]
    inputs["block"], inputs["length"] = layout.blocks, layout.share.lengths
    narrow = carry = None
    part = out[shard.first_row : shard.first_row + shard.rows]
    if layout.tiled and out.dtype != factors[0].dtype:
        narrow = cupy.zeros(part.shape, np.float32)
    if not layout.tiled:
        carry = cupy.empty((shard.chunks, columns), np.float64)
    staged = any(layout.staged)
    grid = (shard.blocks,) if staged else (shard.jobs, layout.panels)
    function(
        grid,
        (layout.groups * layout.lanes,),
        (
            np.frombuffer(inputs.tobytes(), np.dtype((np.void, inputs.nbytes)))[0],
            *(shard.at(k) for k in (0, 1, 4, 2, 3)),
            out,
            NOWHERE if narrow is None else np.uint64(narrow.data.ptr - shard.first_row * columns * 4),
            NOWHERE if carry is None else carry,
        ),
        shared_mem=layout.shared_bytes,
    )
    if narrow is not None:
        vectors = narrow.size // 4
        widen((-(-vectors // THREADS),), (THREADS,), (narrow, part, np.int64(vectors)))
    if carry is not None:
        _combine(combine, shard, carry, out)


def _combine(combine: Any, shard: CudaShard, carry: Array, out: Array) -> None:
    columns = out.shape[1]
    for items, step, back in levels(shard.chunks):
        groups = -(-items // FAN_IN)
        up = cupy.empty((groups, columns), np.float64)
        numbers = np.int64(items), np.int64(step), np.int64(back), np.int32(columns)
        grid = (-(-groups * columns // THREADS),)
        combine(grid, (THREADS,), (shard.at(2), shard.at(3), carry, up, out, *numbers))
        carry = up


@cache
def _inputs_type(inputs: int) -> np.dtype[Any]:
    return np.dtype([("factor", "u8", (inputs,)), ("block", "i4", (inputs,)), ("length", "i4", (inputs,))], align=True)
