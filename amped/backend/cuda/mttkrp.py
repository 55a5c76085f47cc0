"""MTTKRP of one shard on a GPU: compiling and launching ``segmented.cu``."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from functools import cache
from importlib.resources import files
from typing import Any

import cupy
import numpy as np

from ..base import Array, Shard

CHUNKS = {"segmented-64": 64, "segmented-128": 128, "segmented-256": 256}
KERNELS = ("segmented-128", "segmented-64", "segmented-256")  # the first is the one for --deterministic
FAN_IN = 32  # as in segmented.cu
BLOCK = 256  # threads
VECTOR = 16  # bytes that a thread loads at once
REALS = {np.dtype(np.float32): "float", np.dtype(np.float64): "double"}


def compile_options(order: int, dtype: Any) -> tuple[str, ...]:
    """Return the options that make the kernels for tensors of `order` modes and factors of `dtype`."""
    return ("-std=c++17", f"-DORDER={order}", f"-DREAL={REALS[np.dtype(dtype)]}")


def source() -> str:
    """Return the text of the kernels."""
    return files(__package__).joinpath("segmented.cu").read_text()


@cache
def _functions(order: int, dtype: np.dtype[Any], device: int) -> tuple[Any, Any, Any]:
    # CuPy keeps compiled kernels on disk, keyed by source, options and architecture.
    module = cupy.RawModule(code=source(), options=compile_options(order, dtype))
    return tuple(module.get_function(n) for n in ("segmented", "combine_chunks", "combine_carries"))  # type: ignore[return-value]


def _levels(nnz: int, chunk: int) -> Iterator[tuple[int, int, int]]:
    """Yield (items, step, back) of each level of the sum of carries; see ``combine``."""
    items, step, back = -(-nnz // chunk), chunk, 1
    while True:
        yield items, step, back
        if items <= FAN_IN:
            return
        items, step, back = -(-items // FAN_IN), step * FAN_IN, step


def scratch_bytes(nnz: int, stride: int, dtype: Any) -> int:
    """Return the bytes of carries for the smallest chunk."""
    levels = [items for items, _, _ in _levels(nnz, min(CHUNKS.values()))]
    doubles = sum(-(-items // FAN_IN) for items in levels)
    return levels[0] * stride * np.dtype(dtype).itemsize + doubles * stride * 8


def mttkrp(shard: Shard, factors: Sequence[Array], out: Array, row_begin: int, kernel: str) -> None:
    """See `Backend.mttkrp`; queued on the current stream."""
    if not shard.nnz:
        return
    dtype, stride = out.dtype, out.shape[1]
    segmented, combine_chunks, combine_carries = _functions(len(factors) + 1, dtype, out.device.id)
    width = stride * dtype.itemsize // VECTOR
    tiles = -(-width // BLOCK)
    lanes = -(-width // tiles)
    per_block = BLOCK // lanes
    chunk = CHUNKS[kernel]
    rows = shard.indices[0]
    shape = np.int32(lanes), np.int32(width), np.int32(row_begin), np.int32(shard.continues)

    def launch(function: Any, items: int, *args: Any) -> None:
        function((-(-items // per_block), tiles), (per_block * lanes,), (*args, *shape))

    carry: Array = None
    for items, step, back in _levels(shard.nnz, chunk):
        if carry is None:
            carry = cupy.empty((items, stride), dtype)
            inputs = _pointers([*shard.indices[1:], *factors])
            launch(segmented, items, inputs, rows, shard.values, out, carry, np.int64(shard.nnz), np.int32(chunk))
        up = cupy.empty((-(-items // FAN_IN), stride), np.float64)
        combine = combine_chunks if back == 1 else combine_carries
        launch(combine, -(-items // FAN_IN), rows, carry, up, out, np.int64(items), np.int64(step), np.int64(back))
        carry = up


def _pointers(arrays: Sequence[Array]) -> Any:
    """Pack device addresses into a structure that is passed to a kernel by value."""
    packed = np.array([a.data.ptr for a in arrays], np.uint64)
    return packed.view(np.dtype((np.void, packed.nbytes)))[0]
