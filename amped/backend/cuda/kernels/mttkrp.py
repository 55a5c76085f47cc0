"""MTTKRP of one shard on a GPU: compiling and launching ``mttkrp.cu`` and ``combine.cu``."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from functools import cache, lru_cache
from typing import Any

import cupy
import numpy as np

from ...base import Array
from ..layout import Layout, Limits, Part, most_long_runs
from ..shard import CudaShard
from ..source import by_value, compile_options, text

FAN_IN = 16  # as in combine.cu
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
def _sums(name: str, device: int) -> Any:
    return cupy.RawModule(code=text("combine"), options=compile_options({})).get_function(name)


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
        rows = share.rows.stop - share.rows.start + most_long_runs(layout, nnz, limits)
        return rows * share.stride * 4 if share.dtype == np.float32 else 0
    sizes = [items for items, _, _ in levels(-(-nnz // layout.chunk_of(nnz, limits)))]
    return (sizes[0] + sum(-(-items // FAN_IN) for items in sizes)) * share.stride * 8


def mttkrp(shard: CudaShard, factors: Sequence[Array], out: Array, new: slice) -> None:
    """See `Backend.mttkrp`; queued on the current stream."""
    first, end = shard.first_row, shard.first_row + shard.rows
    if shard.layout.tiled and out.dtype != shard.layout.share.dtype:  # rows of the shard need not be cleared
        for begin, stop in ((new.start, min(first, new.stop)), (max(end, new.start), new.stop)):
            if begin < stop:
                out[begin:stop] = 0
        sums = cupy.zeros((shard.rows + shard.long_runs, out.shape[1]), np.float32)
        _launch(shard, factors, sums)  # before anything else: a GPU waits for the host when a sweep begins
        kept = min(max(0, new.start - first), shard.rows) if new.stop >= end else shard.rows
        _widen(shard, sums, out[first:end], kept)
        return
    if new.start < new.stop:
        out[new] = 0
    part = out[first:end]
    if shard.layout.tiled:
        _launch(shard, factors, part)
    else:
        carry = cupy.empty((shard.chunks, out.shape[1]), np.float64)
        _launch(shard, factors, part, carry)
        _combine(shard, carry, part)


def _launch(shard: CudaShard, factors: Sequence[Array], out: Array, carry: Array | None = None) -> None:
    layout = shard.layout
    inputs = _inputs(tuple(f.data.ptr for f in factors), layout.blocks, layout.share.lengths)
    _kernel(layout.macros, out.device.id)(
        (shard.blocks,) if any(layout.staged) else (shard.jobs, layout.panels),
        (layout.groups * layout.lanes,),
        (
            inputs,
            *shard.read,
            out,
            NOWHERE if carry is None else carry,
        ),
        shared_mem=layout.shared_bytes,
    )


def _widen(shard: CudaShard, sums: Array, out: Array, kept: int) -> None:
    """Add the sums of tiles, in single precision, to the output's first `kept` rows; set the others to them."""
    columns = out.shape[1]
    vectors, added = out.size // 4, kept * columns // 4
    widen, gather_long = (_sums(name, out.device.id) for name in ("widen", "gather_long"))
    widen((-(-vectors // THREADS),), (THREADS,), (sums, out, np.int64(vectors), np.int64(added)))
    if shard.long_runs:
        threads = -(-shard.long_runs // FAN_IN) * columns
        numbers = np.int64(shard.long_runs), np.int32(columns)
        long_sums = sums[shard.rows :]
        gather_long((-(-threads // THREADS),), (THREADS,), (shard.at(Part.LONG_ROWS), long_sums, out, *numbers))


def _combine(shard: CudaShard, carry: Array, out: Array) -> None:
    """Add the sums of runs that several chunks share to the output."""
    columns, combine = out.shape[1], _sums("combine", out.device.id)
    for items, step, back in levels(shard.chunks):
        groups = -(-items // FAN_IN)
        up = cupy.empty((groups, columns), np.float64)
        numbers = np.int64(items), np.int64(step), np.int64(back), np.int32(columns)
        grid = (-(-groups * columns // THREADS),)
        combine(grid, (THREADS,), (shard.at(Part.STARTS), shard.at(Part.RUNS), carry, up, out, *numbers))
        carry = up


@lru_cache(1024)
def _inputs(factors: tuple[int, ...], blocks: tuple[int, ...], lengths: tuple[int, ...]) -> Any:
    shape = (len(factors),)
    fields = np.dtype([("factor", "u8", shape), ("block", "i4", shape), ("length", "i4", shape)], align=True)
    inputs = np.zeros(1, fields)
    inputs["factor"], inputs["block"], inputs["length"] = factors, blocks, lengths
    return by_value(inputs)
