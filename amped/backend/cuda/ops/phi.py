"""Phi of CP-APR on the GPU, from shards of packed nonzeros: launching ``phi.cu`` and ``phi_sums.cu``."""

from __future__ import annotations

from collections.abc import Sequence
from functools import cache
from typing import Any, NamedTuple

import cupy
import numpy as np

from partitioner.array_types import FloatDType
from partitioner.cuda.code import allow_shared, load, prepare
from partitioner.cuda.cubins import CudaFunction, CudaSource

from ...device import NOTHING, Array
from ...ops.mttkrp import Kernel, Offers, Operands, Share
from ...ops.phi import PHI, PhiParams, PhiProvider
from ..code.phi import SUMS, macros, most_blocks, source, suits
from ..device import CudaDevice
from ..layout import Limits, PackedLayout, make_layout
from ..shard import CudaShard, ShardCode
from .mttkrp import THREADS, combine, inputs_of, ranges_outside, scratch_bytes, widen

SUMMING = 512  # threads, as in phi_sums.cu
NOWHERE = np.uint64(0)
PAIR = 16  # bytes that each thread clears


class PackedPhi:
    """Phi of packed nonzeros; see `PhiProvider`, ``phi.cu``, and `Packed` for partial sums."""

    multi_model = False

    def __init__(self, device: CudaDevice) -> None:
        self._limits, self._number = device.limits, device.number

    def suits(self, kernel: Kernel, share: Share) -> bool:
        """See `PhiProvider`: no 16-bit copies, nor rows of tiled layouts that exceed shared memory."""
        return Offers.PACKED in kernel.offers and suits(make_layout(kernel.name, share, self._limits))

    def prepare(self, kernel: Kernel, share: Share) -> None:
        layout = make_layout(kernel.name, share, self._limits)
        prepare([SUMS, *(source(layout, logs) for logs in (False, True))])

    def bytes(self, kernel: Kernel, share: Share, nnz: int) -> int:
        layout = make_layout(kernel.name, share, self._limits)
        return max(scratch_bytes(layout, nnz, self._limits), 8 * most_blocks(layout, nnz, self._limits)) if nnz else 0

    def run(self, shard: CudaShard, operands: Operands, params: PhiParams, new: slice = NOTHING) -> None:
        """See `PhiProvider`; queued on the current stream. Each kernel reads the `skip` flag."""
        run_packed(self._call(shard, operands, params, False), operands, self._limits, self._number, new)

    def _call(self, shard: CudaShard, operands: Operands, params: PhiParams, logs: bool) -> PackedCall:
        dtype = shard.layout.share.dtype
        floor = max(params.floor, float(np.finfo(dtype).tiny))  # whose inverse is finite
        flag, code = NOWHERE if logs else _flag(params.skip), _compiled(shard.layout, logs, self._number)
        return PackedCall(shard, operands.factors, operands.own, floor, flag, code)

    def add_logs(self, shard: CudaShard, operands: Operands, params: PhiParams, total: Array) -> None:
        """See `PhiProvider`: each thread block has a sum, and one block adds these up."""
        if not shard.nnz:
            return
        scratch = operands.scratch
        if scratch is None:
            scratch = cupy.empty(8 * most_blocks(shard.layout, shard.nnz, self._limits), np.uint8)
        blocks = self._call(shard, operands, params, True).launch(0, scratch.data.ptr, 1)
        add_sums(np.uint64(scratch.data.ptr), blocks, total, self._number)

    def copy(self, source: Array, target: Array, params: PhiParams, dtype: FloatDType) -> None:
        arguments = source, target, np.int64(source.size), _flag(params.skip)
        _sums(self._number).copy((-(-source.size // THREADS),), (THREADS,), arguments)


@PHI.provider("cuda")
def providers(device: CudaDevice) -> Sequence[PhiProvider]:
    """Return the providers of the operation."""
    return [PackedPhi(device)]


def _flag(skip: Array) -> np.uint64:
    """Return the address of a flag that kernels read; 0 if there is none."""
    return NOWHERE if skip is None else np.uint64(skip.data.ptr)


class PackedCode(NamedTuple):
    """A kernel of ``phi.cu``, and its threads per block."""

    function: CudaFunction
    threads: int


class PackedCall(NamedTuple):
    """The arguments of a launch of ``phi.cu``, without its output."""

    shard: CudaShard
    factors: Sequence[Array]
    own: Array
    floor: float
    flag: np.uint64  # address of the `skip` flag
    code: PackedCode
    sums: np.uint64 = NOWHERE  # address of a number per thread block

    def launch(self, out: int, carry: int, panels: int) -> int:
        """Queue the launch; return the number of thread blocks that have a sum."""
        shard, layout = self.shard, self.shard.layout
        own = np.uint64(self.own.data.ptr + shard.first_row * self.own.strides[0])
        blocks = shard.blocks if any(layout.staged) else shard.jobs
        places = np.uint64(out), np.uint64(carry), shard.apart, own
        inputs, floor = inputs_of(layout, self.factors), layout.share.dtype.type(self.floor)
        self.code.function(
            (blocks, panels), (self.code.threads,), (inputs, *shard.read, *places, floor, self.flag, self.sums),
            shared_mem=layout.shared_bytes,
        )  # fmt: skip
        return blocks


def run_packed(call: PackedCall, operands: Operands, limits: Limits, device: int, new: slice) -> int:
    """Queue the addition of a shard's sums to the output; return the number of thread blocks. See `PhiProvider.run`."""
    shard, out, scratch, flag = call.shard, operands.out, operands.scratch, call.flag
    layout, row, columns = shard.layout, out.strides[0], out.shape[1]
    sums = _sums(device)

    def clear(place: int, nbytes: int) -> None:
        pairs = nbytes // PAIR
        sums.clear((-(-pairs // THREADS),), (THREADS,), (np.uint64(place), np.int64(pairs), flag))

    def clear_outside(first: int, end: int) -> None:
        for begin, stop in ranges_outside(new, first, end):
            clear(out.data.ptr + begin * row, (stop - begin) * row)

    if not shard.nnz:
        clear_outside(new.stop, new.stop)
        return 0
    if scratch is None:
        scratch = cupy.empty(scratch_bytes(layout, shard.nnz, limits), np.uint8)
    first, end, place = shard.first_row, shard.first_row + shard.rows, out.data.ptr + shard.first_row * row
    if layout.tiled and out.dtype != layout.share.dtype:
        clear_outside(first, end)
        clear(scratch.data.ptr, (shard.rows + shard.long_runs) * columns * 4)
        blocks = call.launch(scratch.data.ptr, 0, layout.panels)
        kept = min(max(0, new.start - first), shard.rows) if new.stop >= end else shard.rows
        widen(shard, sums.after, scratch.data.ptr, place, kept, columns, flag)
        return blocks
    clear_outside(*((first, end) if shard.filled else (new.stop, new.stop)))
    blocks = call.launch(place, scratch.data.ptr, layout.panels)
    if not layout.tiled:
        combine(shard, sums.after, scratch.data.ptr, place, columns, flag)
    return blocks


def add_sums(parts: np.uint64, blocks: int, total: Array, device: int) -> None:
    """Queue the addition of the thread blocks' sums, at an address, to `total`."""
    _sums(device).add((1,), (SUMMING,), (parts, np.int64(blocks), total))


def loaded(source: CudaSource, name: str, layout: PackedLayout) -> PackedCode:
    """Return a kernel of compiled ``phi.cu``."""
    function = load(source).get_function(name)
    allow_shared(function)
    return PackedCode(function, int(macros(layout)["THREAD_COUNT"]))


class _Sums(NamedTuple):
    after: ShardCode  # functions that add up partial sums, with a `skip` flag
    clear: Any
    add: Any
    copy: Any


@cache
def _compiled(layout: PackedLayout, logs: bool, device: int) -> PackedCode:
    return loaded(source(layout, logs), "logs" if logs else "phi", layout)


@cache
def _sums(device: int) -> _Sums:
    module = load(SUMS)
    after = {name: module.get_function(name) for name in ("combine", "combine_rest", "widen", "gather_long")}
    own = (module.get_function(name) for name in ("clear", "sum_logs", "copy"))
    return _Sums(ShardCode(None, **after), *own)
