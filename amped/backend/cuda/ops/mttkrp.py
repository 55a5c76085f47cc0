"""MTTKRP kernels on the GPU: memory, packing, and launching ``mttkrp.cu``, ``combine.cu`` and ``coordinates.cu``."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import replace
from functools import cache, lru_cache
from typing import Any

import cupy
import numpy as np

from partitioner.cuda.code import allow_shared, load, prepare
from partitioner.cuda.cubins import CudaFunction
from partitioner.tensors.ingest import MAX_ORDER

from ...device import NOTHING, Array
from ...ops.mttkrp import MTTKRP, Kernel, KernelBytes, Offers, Share
from .. import coordinates
from .. import shard as packing
from ..coordinates import ATOMIC, PERMUTED, CoordinateShard
from ..device import CudaDevice
from ..layout import Limits, MemoryPart, PackedLayout, gains, kernel_names, make_layout, most_long_runs, shard_bytes
from ..shard import CudaShard, ShardCode
from ..source import by_value, packer, unit

FAN_IN = 16  # as in combine.cuh
THREADS = 128
SPAN = 1024  # rows that a warp examines, as in combine.cu
REST_THREADS, REST_SUMS = 512, 2048  # one thread block adds up a level of at most REST_SUMS sums
MOST_NONZEROS = 1 << 30  # of a shard


class Packed:
    """Nonzeros in packed records, in the order of one layout; see `Kernel` and `mttkrp.cu`."""

    code = "mttkrp"
    most_nonzeros = MOST_NONZEROS
    reads_narrow, offers = True, Offers.PACKED
    derive = None

    def __init__(self, name: str, device: CudaDevice) -> None:
        self.name, self._device, self._limits = name, device, device.limits
        self.repeatable = name in ("segmented", "fibre")  # others use reductions in L2, in any order

    def suits(self, share: Share) -> bool:
        return self.name in kernel_names(len(share.lengths) + 1)

    def gains(self, share: Share) -> bool:
        return gains(self.name, share, self._limits)

    def keeps_columns(self, share: Share) -> bool:
        """See `Kernel`: packing copies them."""
        return False

    def prepare(self, share: Share) -> None:
        layout = make_layout(self.name, share, self._limits)
        prepare([packer(len(share.lengths), share.dtype), unit("combine", {}), unit("mttkrp", dict(layout.macros))])

    def bytes(self, share: Share, nnz: int) -> KernelBytes:
        if not nnz:
            return KernelBytes(0, 0, 0)
        layout = make_layout(self.name, share, self._limits)
        whole = shard_bytes(layout, nnz, MOST_NONZEROS, self._limits)
        return KernelBytes(whole, packing.packing_bytes(layout, nnz), scratch_bytes(layout, nnz, self._limits))

    def make(self, columns: Sequence[Array], values: Array, share: Share, continues: bool) -> CudaShard:
        """See `Kernel`. Compiles the code for the layout, so that `run` needs no lookup."""
        columns = [cupy.asarray(column, np.int32) for column in columns]
        values = cupy.asarray(values, share.dtype)
        layout = make_layout(self.name, share, self._limits)
        packed = packing.make_shard(self, columns, values, layout, continues, self._limits)
        del columns, values
        self._device.trim()
        return replace(packed, functions=_functions(layout, packed, self._device.number))

    def run(
        self,
        shard: CudaShard,
        factors: Sequence[Array],
        out: Array,
        new: slice = NOTHING,
        scratch: Array = None,
        double: bool = False,
    ) -> None:
        """See `Kernel`; queued on the current stream."""
        if not shard.nnz:
            out[new] = 0
            return
        layout, double = shard.layout, double and shard.layout.share.dtype == np.float32
        if double:
            functions = shard.functions._replace(mttkrp=_compiled(layout.macros_in_double, self._device.number))
            shard = replace(shard, functions=functions)
        if scratch is None:
            scratch = cupy.empty(scratch_bytes(layout, shard.nnz, self._limits), np.uint8)
        first, end = shard.first_row, shard.first_row + shard.rows
        place = out.data.ptr + first * out.strides[0]
        if layout.tiled and not double and out.dtype != layout.share.dtype:  # rows of the shard are overwritten
            _clear_outside(out, new, first, end)
            columns = out.shape[1]
            scratch.data.memset_async(0, (shard.rows + shard.long_runs) * columns * 4)
            _launch(shard, factors, scratch.data.ptr)  # first, because the GPU is idle when a sweep begins
            kept = min(max(0, new.start - first), shard.rows) if new.stop >= end else shard.rows
            widen(shard, shard.functions, scratch.data.ptr, place, kept, columns)
            return
        if layout.tiled:
            if new.start < new.stop:
                out[new] = 0
            _launch(shard, factors, place)
        else:
            _clear_outside(out, new, first, end)
            if not shard.filled:
                _clear_gaps(
                    shard, slice(max(new.start, first) - first, min(new.stop, end) - first), place, out.shape[1]
                )
            _launch(shard, factors, place, scratch.data.ptr)
            combine(shard, shard.functions, scratch.data.ptr, place, out.shape[1])


class Coordinates:
    """Nonzeros in coordinate form; see `Kernel` and `coordinates.cu`. Slower, so used only on request."""

    code = "coordinates"
    most_nonzeros = MOST_NONZEROS
    repeatable = reads_narrow = False

    def __init__(self, name: str, device: CudaDevice) -> None:
        self.name, self._device = name, device
        self.offers = Offers.SORTED if name == ATOMIC else Offers.NOTHING

    @property
    def derive(self) -> Callable[[CoordinateShard, Share], CoordinateShard] | None:
        return self._derive if self.name == PERMUTED else None

    def _derive(self, shard: CoordinateShard, share: Share) -> CoordinateShard:
        shard = coordinates.permuted(shard, share)
        self._device.trim()
        return shard

    def suits(self, share: Share) -> bool:
        return True

    def gains(self, share: Share) -> bool:
        return False

    def keeps_columns(self, share: Share) -> bool:
        """See `Kernel`: columns are copied to the device."""
        return False

    def prepare(self, share: Share) -> None:
        """See `Kernel`: code is compiled at the first call."""

    def bytes(self, share: Share, nnz: int) -> KernelBytes:
        making = coordinates.packing_bytes(share, nnz)
        return KernelBytes(coordinates.shard_bytes(share, nnz), making, coordinates.scratch_bytes(share, self.name))

    def make(self, columns: Sequence[Array], values: Array, share: Share, continues: bool) -> CoordinateShard:
        columns = [cupy.asarray(column, np.int32) for column in columns]
        shard = coordinates.make_shard(self, columns, cupy.asarray(values, share.dtype), share)
        del columns
        self._device.trim()
        return shard

    def run(
        self,
        shard: CoordinateShard,
        factors: Sequence[Array],
        out: Array,
        new: slice = NOTHING,
        scratch: Array = None,
        double: bool = False,
    ) -> None:
        """See `Kernel`; queued on the current stream."""
        out[new] = 0
        if shard.nnz:
            coordinates.mttkrp(shard, factors, out, scratch, double)


@MTTKRP.provider("cuda")
def providers(device: CudaDevice) -> Sequence[Kernel]:
    """Return the kernels of the operation; the first supports all nonzeros."""
    packed = [Packed(name, device) for name in kernel_names(MAX_ORDER)]
    return [*packed, *(Coordinates(name, device) for name in (ATOMIC, PERMUTED))]


@cache
def _compiled(macros: tuple[tuple[str, str | int], ...], device: int) -> CudaFunction:
    function = load(unit("mttkrp", dict(macros))).get_function("mttkrp")
    allow_shared(function)
    return function


@cache
def _sums(name: str, device: int) -> CudaFunction:
    return load(unit("combine", {})).get_function(name)


def _functions(layout: PackedLayout, shard: CudaShard, device: int) -> ShardCode:
    """Return the compiled functions for a shard, including those that add up partial sums."""
    after: dict[str, Any] = {}
    if not layout.tiled:
        after = {name: _sums(name, device) for name in ("clear_gaps", "combine", "combine_rest")}
    elif layout.share.dtype == np.float32:
        after = {"widen": _sums("widen", device), "gather_long": _sums("gather_long", device)}
    return ShardCode(_compiled(layout.macros, device), **after)


def levels(items: int) -> Iterator[tuple[int, int, int]]:
    """Yield (items, step, back) of each level of the sum of carries; see ``combine``."""
    step, back = 1, 0
    while True:
        yield items, step, back
        if items <= FAN_IN:
            return
        items, step, back = -(-items // FAN_IN), step * FAN_IN, step


def scratch_bytes(layout: PackedLayout, nnz: int, limits: Limits) -> int:
    """Return the bytes of scratch memory for the MTTKRP of `nnz` nonzeros."""
    share = layout.share
    if not nnz:
        return 0
    if layout.tiled:
        rows = share.rows.stop - share.rows.start + most_long_runs(layout, nnz, limits)
        return rows * share.stride * 4 if share.dtype == np.float32 else 0
    sizes = [items for items, _, _ in levels(-(-nnz // layout.chunk_of(nnz, limits)))]
    return (sizes[0] + sum(-(-items // FAN_IN) for items in sizes)) * share.stride * 8


def ranges_outside(new: slice, first: int, end: int) -> Iterator[tuple[int, int]]:
    """Yield the ranges of the `new` rows outside `first` to `end`."""
    for begin, stop in ((new.start, min(first, new.stop)), (max(end, new.start), new.stop)):
        if begin < stop:
            yield begin, stop


def _clear_outside(out: Array, new: slice, first: int, end: int) -> None:
    for begin, stop in ranges_outside(new, first, end):
        out[begin:stop] = 0


def _clear_gaps(shard: CudaShard, new: slice, out: int, columns: int) -> None:
    """Set the `new` rows of the shard without nonzeros to zero; the others are written."""
    warps = -(-(new.stop - new.start) // SPAN)
    if warps > 0:
        numbers = np.int32(shard.runs), np.int32(new.start), np.int32(new.stop)
        arguments = shard.at(MemoryPart.RUNS), *numbers, np.uint64(out), np.int32(columns)
        shard.functions.clear_gaps((-(-32 * warps // THREADS),), (THREADS,), arguments)


def _launch(shard: CudaShard, factors: Sequence[Array], out: int, carry: int = 0) -> None:
    layout = shard.layout
    inputs = inputs_of(layout, factors)
    shard.functions.mttkrp(
        (shard.blocks,) if any(layout.staged) else (shard.jobs, layout.panels),
        (layout.groups * layout.lanes,),
        (inputs, *shard.read, np.uint64(out), np.uint64(carry), shard.apart),
        shared_mem=layout.shared_bytes,
    )


def widen(
    shard: CudaShard, functions: ShardCode, sums: int, out: int, kept: int, columns: int, *flag: np.uint64
) -> None:
    """Add the sums of tiles, in single precision, to the first `kept` rows of the output; set the other rows.

    `flag` is the address of the flag that disables `functions`, if they are compiled with one.
    """
    vectors, added = shard.rows * columns // 4, kept * columns // 4
    numbers = np.uint64(sums), np.uint64(out), np.int64(vectors), np.int64(added)
    functions.widen((-(-vectors // THREADS),), (THREADS,), (*numbers, *flag))
    if shard.long_runs:
        threads = -(-shard.long_runs // FAN_IN) * columns
        long_sums = np.uint64(sums + shard.rows * columns * 4)
        arguments = (
            shard.at(MemoryPart.LONG_ROWS),
            long_sums,
            np.uint64(out),
            np.int64(shard.long_runs),
            np.int32(columns),
        )
        functions.gather_long((-(-threads // THREADS),), (THREADS,), (*arguments, *flag))


def combine(shard: CudaShard, functions: ShardCode, carry: int, out: int, columns: int, *flag: np.uint64) -> None:
    """Add the sums of runs that several chunks share to the output; `flag` as in `widen`."""
    up = carry + shard.chunks * columns * 8
    for items, step, back in levels(shard.chunks):
        groups = -(-items // FAN_IN)
        numbers = np.int64(items), np.int64(step), np.int64(back), np.int32(columns)
        places = np.uint64(carry), np.uint64(up), np.uint64(out)
        arguments = shard.at(MemoryPart.STARTS), shard.at(MemoryPart.RUNS), *places, *numbers, *flag
        if groups * columns <= REST_SUMS:
            functions.combine_rest((1,), (REST_THREADS,), arguments)
            return
        functions.combine((-(-groups * columns // THREADS),), (THREADS,), arguments)
        carry, up = up, up + groups * columns * 8


def inputs_of(layout: PackedLayout, factors: Sequence[Array]) -> np.void:
    """Return the factor matrices in the format of ``mttkrp``."""
    return _inputs(tuple(f.data.ptr for f in factors), layout.blocks, layout.share.lengths)


@lru_cache(1024)
def _inputs(factors: tuple[int, ...], blocks: tuple[int, ...], lengths: tuple[int, ...]) -> np.void:
    shape = (len(factors),)
    fields = np.dtype([("factor", "u8", shape), ("block", "i4", shape), ("length", "i4", shape)], align=True)
    inputs = np.zeros(1, fields)
    inputs["factor"], inputs["block"], inputs["length"] = factors, blocks, lengths
    return by_value(inputs)
