"""Phi of CP-APR on the GPU, from shards of packed nonzeros: launching ``phi.cu`` and ``phi_sums.cu``."""

from __future__ import annotations

from collections.abc import Sequence
from functools import cache
from typing import Any, NamedTuple

import cupy
import numpy as np

from partitioner.array_types import FloatDType
from partitioner.cuda.code import allow_shared, load, prepare
from partitioner.cuda.cubins import CudaFunction

from ...device import NOTHING, Array
from ...ops.mttkrp import Kernel, Offers, Operands, Share
from ...ops.phi import PHI, PhiParams, PhiProvider
from ..code.phi import SUMS, macros, most_blocks, source, suits
from ..device import CudaDevice
from ..layout import PackedLayout, make_layout
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
        out, scratch, flag = operands.out, operands.scratch, _flag(params.skip)
        layout, row, columns = shard.layout, out.strides[0], out.shape[1]
        sums = _sums(self._number)

        def clear(place: int, nbytes: int) -> None:
            pairs = nbytes // PAIR
            sums.clear((-(-pairs // THREADS),), (THREADS,), (np.uint64(place), np.int64(pairs), flag))

        def clear_outside(first: int, end: int) -> None:
            for begin, stop in ranges_outside(new, first, end):
                clear(out.data.ptr + begin * row, (stop - begin) * row)

        if not shard.nnz:
            clear_outside(new.stop, new.stop)
            return
        if scratch is None:
            scratch = cupy.empty(scratch_bytes(layout, shard.nnz, self._limits), np.uint8)
        first, end, place = shard.first_row, shard.first_row + shard.rows, out.data.ptr + shard.first_row * row
        call = _Call(shard, operands.factors, operands.own, params.floor, flag, self._number)
        if layout.tiled and out.dtype != layout.share.dtype:
            clear_outside(first, end)
            clear(scratch.data.ptr, (shard.rows + shard.long_runs) * columns * 4)
            call.launch(False, scratch.data.ptr, 0)
            kept = min(max(0, new.start - first), shard.rows) if new.stop >= end else shard.rows
            widen(shard, sums.after, scratch.data.ptr, place, kept, columns, flag)
            return
        clear_outside(*((first, end) if shard.filled else (new.stop, new.stop)))
        call.launch(False, place, scratch.data.ptr)
        if not layout.tiled:
            combine(shard, sums.after, scratch.data.ptr, place, columns, flag)

    def add_logs(self, shard: CudaShard, operands: Operands, params: PhiParams, total: Array) -> None:
        """See `PhiProvider`: each thread block has a sum, and one block adds these up."""
        if not shard.nnz:
            return
        scratch = operands.scratch
        if scratch is None:
            scratch = cupy.empty(8 * most_blocks(shard.layout, shard.nnz, self._limits), np.uint8)
        call = _Call(shard, operands.factors, operands.own, params.floor, NOWHERE, self._number)
        blocks = call.launch(True, 0, scratch.data.ptr)
        _sums(self._number).add((1,), (SUMMING,), (scratch, np.int64(blocks), total))

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


class _Call(NamedTuple):
    """The arguments of a launch of ``phi.cu``, without its output."""

    shard: CudaShard
    factors: Sequence[Array]
    own: Array
    floor: float
    flag: np.uint64
    device: int

    def launch(self, logs: bool, out: int, carry: int) -> int:
        """Queue the launch; return the number of thread blocks."""
        shard, layout = self.shard, self.shard.layout
        code = _compiled(layout, logs, self.device)
        dtype = layout.share.dtype.type
        floor = dtype(max(self.floor, float(np.finfo(dtype).tiny)))  # whose inverse is finite
        own = np.uint64(self.own.data.ptr + shard.first_row * self.own.strides[0])
        blocks = shard.blocks if any(layout.staged) else shard.jobs
        code.function(
            (blocks, 1 if logs else layout.panels),
            (code.threads,),
            (
                inputs_of(layout, self.factors),
                *shard.read,
                np.uint64(out),
                np.uint64(carry),
                shard.apart,
                own,
                floor,
                self.flag,
            ),
            shared_mem=layout.shared_bytes,
        )
        return blocks


class _Code(NamedTuple):
    function: CudaFunction
    threads: int  # per block


class _Sums(NamedTuple):
    after: ShardCode  # functions that add up partial sums, with a `skip` flag
    clear: Any
    add: Any
    copy: Any


@cache
def _compiled(layout: PackedLayout, logs: bool, device: int) -> _Code:
    module = load(source(layout, logs))
    function = module.get_function("logs" if logs else "phi")
    allow_shared(function)
    return _Code(function, int(macros(layout)["THREAD_COUNT"]))


@cache
def _sums(device: int) -> _Sums:
    module = load(SUMS)
    after = {name: module.get_function(name) for name in ("combine", "combine_rest", "widen", "gather_long")}
    own = (module.get_function(name) for name in ("clear", "sum_logs", "copy"))
    return _Sums(ShardCode(None, **after), *own)
