"""Phi of several models on the GPU: launching ``interleaved.cu`` and ``interleaved_sums.cu``.

The models of a group follow each other; the columns of each model are contiguous.
"""

from __future__ import annotations

from collections.abc import Sequence
from functools import cache, lru_cache
from typing import NamedTuple

import cupy
import numpy as np

from partitioner.array_types import FloatDType
from partitioner.cuda.code import load, prepare
from partitioner.cuda.cubins import CudaFunction

from ...device import NOTHING, Array
from ...ops.mttkrp import Kernel, Offers, Operands, Share
from ...ops.phi import PHI, Groups, GroupShape, PhiParams, PhiProvider, joined
from ..code.interleaved import LEAST_LANES, MOST_LANES, arranged, chosen, lanes_of, source, sums, threads, width
from ..device import CudaDevice
from ..layout import VECTOR, MemoryPart, PackedLayout, make_layout
from ..shard import CudaShard
from ..source import by_value
from .mttkrp import THREADS, inputs_of, ranges_outside, scratch_bytes

KERNELS = "clear", "copy", "combine_models", "measure", "apply", "sum_logs"
SUMMING = 512  # threads, as in interleaved_sums.cu
ELEMENTS, MOST_BLOCKS = 1024, 64  # per model: numbers per thread block, and maximum number of blocks
USUAL = 16  # columns of models whose code is compiled in advance
NOWHERE = np.uint64(0)


class OfLanes:
    """See `InterleavedPhi`; supports shards of packed nonzeros, sorted by row."""

    multi_model = True

    def __init__(self, device: CudaDevice) -> None:
        self._limits, self._number = device.limits, device.number

    def width(self, dtype: FloatDType) -> int:
        return width(dtype)

    def models(self, rank: int, dtype: FloatDType) -> int:
        lanes = lanes_of(rank, dtype)
        return width(dtype) * dtype.itemsize // VECTOR // lanes if lanes else 0

    def columns(self, model: int, models: int, dtype: FloatDType) -> slice:
        each = width(dtype) // models
        return slice(model * each, (model + 1) * each)

    def suits(self, kernel: Kernel, share: Share) -> bool:
        """See `InterleavedPhi`: no 16-bit copies."""
        packed = Offers.PACKED in kernel.offers and share.gather == "full"
        return packed and kernel.name == chosen(share, self._limits)

    def prepare(self, kernel: Kernel, share: Share) -> None:
        layout, most = make_layout(kernel.name, share, self._limits), lanes_of(USUAL, share.dtype)
        lanes = max(most, LEAST_LANES)
        prepare([sums(share.dtype), *(source(layout, lanes, logs) for logs in (False, True))])

    def bytes(self, kernel: Kernel, share: Share, nnz: int) -> int:
        """See `InterleavedPhi`: carries, or sums of thread blocks."""
        if not nnz:
            return 0
        layout = make_layout(kernel.name, share, self._limits)
        models = share.stride * share.dtype.itemsize // VECTOR
        blocks = _blocks(-(-nnz // layout.chunk_of(nnz, self._limits)), layout, MOST_LANES)
        return max(scratch_bytes(layout, nnz, self._limits), 8 * blocks * models)

    def run(self, shard: CudaShard, operands: Operands, params: PhiParams, new: slice = NOTHING) -> None:
        """See `InterleavedPhi`; queued on the current stream. Each kernel reads `skip`."""
        _, own, out, scratch = operands
        args, columns, row = self._arguments(params.groups, out.shape[1], own.dtype), out.shape[1], out.strides[0]
        live, functions = _live(args, params.skip), _sums(own.dtype, self._number)
        first, end = shard.first_row, shard.first_row + (shard.rows if shard.nnz else 0)
        outside = ranges_outside(new, first, end) if shard.filled and shard.nnz else [(new.start, new.stop)]
        for begin, stop in outside:
            if begin < stop:
                numbers = np.uint64(out.data.ptr + begin * row), np.int64(columns), np.int64(stop - begin)
                functions["clear"](args.grid(stop - begin), (THREADS,), (*numbers, live))
        if not shard.nnz:
            return
        if scratch is None:
            scratch = cupy.empty(scratch_bytes(shard.layout, shard.nnz, self._limits), np.uint8)
        place = np.uint64(out.data.ptr + first * row)
        self._launch(shard, operands, params, (place, np.uint64(scratch.data.ptr)), args)
        carries = np.uint64(scratch.data.ptr), np.uint64(scratch.data.ptr + shard.chunks * columns * 8)
        sizes = np.int64(shard.chunks), np.int32(columns)
        arguments = shard.at(MemoryPart.STARTS), shard.at(MemoryPart.RUNS), *carries, place, *sizes, live
        functions["combine_models"]((1, args.number), (SUMMING,), arguments)

    def add_logs(self, shard: CudaShard, operands: Operands, params: PhiParams, total: Array) -> None:
        if not shard.nnz:
            return
        dtype, scratch = operands.own.dtype, operands.scratch
        args, add = self._arguments(params.groups, total.size, dtype), _sums(dtype, self._number)["sum_logs"]
        if scratch is None:
            scratch = cupy.empty(self.bytes(shard.kernel, shard.layout.share, shard.nnz), np.uint8)
        for lanes, models in args.parts.items():  # one after the other, because they share scratch memory
            some, blocks = args._replace(units={lanes: args.units[lanes]}), _blocks(shard.chunks, shard.layout, lanes)
            self._launch(shard, operands, params, (NOWHERE, np.uint64(scratch.data.ptr)), some, logs=True)
            parts = np.uint64(scratch.data.ptr + models.start * blocks * 8)
            add((1, models.stop - models.start), (SUMMING,), (parts, np.int64(blocks), args.models[models], total))

    def _launch(
        self,
        shard: CudaShard,
        operands: Operands,
        params: PhiParams,
        sums: tuple[np.uint64, np.uint64],
        device_models: _DeviceModels,
        logs: bool = False,
    ) -> None:
        """Queue ``interleaved.cu`` for the units of each number of lanes; `sums` are the addresses of its output."""
        own, skip = operands.own, None if logs else params.skip
        dtype, row = own.dtype.type, own.strides[0]
        place = np.uint64(own.data.ptr + shard.first_row * row)
        numbers = np.int32(row // VECTOR), dtype(max(params.floor, np.finfo(dtype).tiny)), np.int32(shard.chunks)
        inputs, flags = inputs_of(shard.layout, operands.factors), NOWHERE if skip is None else skip
        addresses = _pointers(
            *(shard.at(part) for part in (MemoryPart.JOBS, MemoryPart.RECORDS, MemoryPart.STARTS, MemoryPart.RUNS))
        )
        for lanes, units in device_models.units.items():
            code = _compiled(shard.layout, lanes, logs, self._number)
            grid = _blocks(shard.chunks, shard.layout, lanes), len(units)
            code(grid, (threads(shard.layout).threads,), (inputs, addresses, *sums, place, *numbers, units, flags))

    def copy(self, source: Array, target: Array, params: PhiParams, dtype: FloatDType) -> None:
        args = self._arguments(params.groups, source.size, dtype)
        _sums(dtype, self._number)["copy"]((1, args.number), (THREADS,), (source, target, _live(args, params.skip)))

    def measure(self, phi: Array, matrix: Array, groups: Groups, violations: Array, done: Array) -> None:
        args = self._arguments(groups, matrix.shape[1], matrix.dtype)
        arguments = *_rows(phi), *_rows(matrix), np.int64(len(matrix)), violations, _live(args, done)
        _sums(matrix.dtype, self._number)["measure"](args.grid(len(matrix)), (THREADS,), arguments)

    def apply(
        self, phi: Array, matrix: Array, groups: Groups, violations: Array, facts: Array, tol: float, done: Array
    ) -> None:
        args = self._arguments(groups, matrix.shape[1], matrix.dtype)
        decides = violations, facts, np.float64(tol), args.models, done
        arguments = *_rows(phi), *_rows(matrix), np.int64(len(matrix)), *decides
        _sums(matrix.dtype, self._number)["apply"](args.grid(len(matrix)), (THREADS,), arguments)

    def _arguments(self, groups: Groups | None, columns: int, dtype: FloatDType) -> _DeviceModels:
        if groups is None:
            size = width(dtype)
            groups = {GroupShape(self.models(1, dtype), 1): np.arange(0, columns // size * size, size)}
        by_models = joined(groups, lambda kind: kind.models)
        key = tuple((models, begins.tobytes()) for models, begins in sorted(by_models.items()))
        return _on_device(key, dtype, self._number)


@PHI.provider("cuda")
def providers(device: CudaDevice) -> Sequence[PhiProvider]:
    """Return the providers of the operation."""
    return [OfLanes(device)]


class _DeviceModels(NamedTuple):
    """Models in device memory; see `Arranged`."""

    models: Array
    units: dict[int, Array]
    parts: dict[int, slice]
    columns: int  # largest number of columns of a model

    @property
    def number(self) -> int:
        """The number of models."""
        return len(self.models)

    def grid(self, rows: int) -> tuple[int, int]:
        """Return the grid of thread blocks for `rows` rows of each model."""
        return max(1, min(MOST_BLOCKS, -(-rows * self.columns // ELEMENTS))), self.number


@lru_cache(64)
def _on_device(groups: tuple[tuple[int, bytes], ...], dtype: FloatDType, device: int) -> _DeviceModels:
    """Return the models of groups, from pairs of their number per group and the groups' first columns."""
    result = arranged({count: np.frombuffer(begins, np.int64) for count, begins in groups}, dtype)
    units = {lanes: cupy.asarray(each) for lanes, each in result.units.items()}
    return _DeviceModels(cupy.asarray(result.models), units, result.parts, int(result.models[:, 1].max()))


def _live(device_models: _DeviceModels, done: Array) -> np.void:
    return _pointers(device_models.models.data.ptr, 0 if done is None else done.data.ptr)


@lru_cache(1024)
def _pointers(*addresses: int | np.uint64) -> np.void:
    return by_value(np.array(addresses, np.uint64))


def _blocks(chunks: int, layout: PackedLayout, lanes: int) -> int:
    """Return the number of thread blocks of a unit that process `chunks` chunks."""
    return -(-chunks // (threads(layout).threads // lanes))


def _rows(matrix: Array) -> tuple[np.void, np.int64]:
    """Return a matrix and its row stride in numbers, as arguments of kernels."""
    return matrix, np.int64(matrix.strides[0] // matrix.itemsize)


@cache
def _compiled(layout: PackedLayout, lanes: int, logs: bool, device: int) -> CudaFunction:
    return load(source(layout, lanes, logs)).get_function("logs" if logs else "phi")


@cache
def _sums(dtype: FloatDType, device: int) -> dict[str, CudaFunction]:
    module = load(sums(dtype))
    return {name: module.get_function(name) for name in KERNELS}
