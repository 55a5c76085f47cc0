"""SpTTM on a GPU: packing shards, and launching ``ttm.cu``."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from functools import cache, cached_property
from typing import Any, NamedTuple

import cupy
import numpy as np

from partitioner.cuda.code import load, prepare
from partitioner.cuda.cubins import CudaSource

from ...device import Array
from ...fibres import Chunks, most_slots, with_slots
from ...ops.ttm import TTM, ProductForm, TtmBytes, TtmKernel
from ..code import ttm
from ..device import CudaDevice
from ..layout import ALIGNMENT
from ..shard import copied, unloaded
from ..source import unit

SETTLING = 256  # threads of a block that adds up carries
CUTTING = 16  # bytes per chunk while chunks are cut
MARKING = 8  # bytes per fibre: its start, and one of its coordinates while these are copied


class TtmCode(NamedTuple):
    """The compiled functions of ``ttm.cu``."""

    ttm: Any
    settle: Any
    cut: Any
    mark_ends: Any


class Launch(NamedTuple):
    """Parameters of a launch of ``ttm``."""

    functions: TtmCode
    grid: tuple[int, int]
    threads: int
    row: int  # numbers per fibre of the result


@dataclass(frozen=True)
class CudaFibres:
    """Nonzeros of fibres in one memory block. See `FibreShard` and ``ttm.cu``."""

    memory: Any
    offsets: tuple[int, ...]  # of indices, values, chunks, and each level of carries
    sizes: tuple[int, ...]  # nonzeros, fibres, chunks, slots, then items of each level
    launch: Launch | None = None  # None if there is nothing to compute

    @property
    def nnz(self) -> int:
        """The number of nonzeros."""
        return self.sizes[0]

    @property
    def fibres(self) -> int:
        """The number of fibres."""
        return self.sizes[1]

    @property
    def nbytes(self) -> int:
        """The size in bytes."""
        return int(self.memory.nbytes)

    def unloaded(self) -> CudaFibres:
        return replace(self, memory=unloaded(self.memory))

    def copied(self, buffer: Array) -> CudaFibres:
        return replace(self, memory=copied(self.memory, buffer))

    @cached_property
    def read(self) -> tuple[np.uint64, ...]:
        """The device addresses of the parts, computed once: host time limits small tensors."""
        return tuple(np.uint64(self.memory.data.ptr + offset) for offset in self.offsets)


class FibresOnDevice:
    """See `TtmKernel`."""

    name = "fibres"
    most_nonzeros = 1 << 30

    def __init__(self, device: CudaDevice) -> None:
        self._device = device

    def prepare(self, form: ProductForm) -> None:
        prepare([_unit(form)])

    def bytes(self, form: ProductForm, nnz: int, fibres: int) -> TtmBytes:
        if not nnz:
            return TtmBytes(0, 0, 0)
        chunks = -(-nnz // ttm.chunk_size(form, nnz))
        slots = most_slots(chunks)
        padded = (nnz + ttm.PADDING) * (4 + form.width * form.dtype.itemsize)
        shard = padded + 16 * (chunks + slots) + 8 * ALIGNMENT
        return TtmBytes(shard, CUTTING * chunks + MARKING * fibres, slots * form.width * form.stride * 8)

    def make(self, indices: Array, values: Array, starts: Array, form: ProductForm) -> CudaFibres:
        nnz, width, pad = int(indices.size), form.width, ttm.PADDING
        if not nnz:
            return CudaFibres(cupy.empty(0, np.uint8), (0, 0, 0), (0, 0, 0, 0))
        fibres, launch = int(starts.size) - 1, self._launch(form, -(-nnz // ttm.chunk_size(form, nnz)))
        chunks = self._cut(starts, nnz, form)
        tables = chunks.table, *chunks.levels
        sizes = (nnz + pad) * 4, (nnz + pad) * width * form.dtype.itemsize, *(table.nbytes for table in tables)
        ends = np.cumsum([-(-size // ALIGNMENT) * ALIGNMENT for size in sizes]).tolist()
        offsets = (0, *ends[:-1])
        memory = cupy.empty(ends[-1], np.uint8)
        marked = memory[: sizes[0]].view(np.uint32)
        marked[:nnz].view(np.int32)[...] = cupy.asarray(indices, np.int32)
        _compiled(_code(form), self._device.number).mark_ends(
            (-(-fibres // SETTLING),), (SETTLING,), (marked, starts, np.int32(fibres))
        )
        numbers = memory[offsets[1] : offsets[1] + sizes[1]].view(form.dtype)
        numbers[: nnz * width] = cupy.asarray(values, form.dtype).reshape(-1)
        for array, filled in ((marked, nnz), (numbers, nnz * width)):
            array[filled:].data.memset_async(0, array[filled:].nbytes)
        for at, table in zip(offsets[2:], tables, strict=True):
            memory[at : at + table.nbytes].set(table.view(np.uint8).reshape(-1))
        counts = fibres, len(chunks.table), chunks.slots, *map(len, chunks.levels)
        self._device.trim()
        return CudaFibres(memory, offsets, (nnz, *counts), launch)

    def _cut(self, starts: Array, nnz: int, form: ProductForm) -> Chunks:
        """See `cut_chunks`; the cuts are computed on the device."""
        size = ttm.chunk_size(form, nnz)
        table = cupy.empty((-(-nnz // size), 4), np.int32)
        counts = np.int32(starts.size - 1), np.int64(nnz), np.int32(size), np.int32(ttm.SLACK), np.int32(len(table))
        cut = _compiled(_code(form), self._device.number).cut
        cut((-(-len(table) // SETTLING),), (SETTLING,), (starts, *counts, table))
        return with_slots(table.get())

    def _launch(self, form: ProductForm, chunks: int) -> Launch:
        lanes, groups = ttm.lanes(form), ttm.groups(form)
        grid = -(-chunks // groups), -(-form.width * ttm.vectors(form) // lanes)
        return Launch(_compiled(_code(form), self._device.number), grid, lanes * groups, form.width * form.stride)

    def run(self, shard: CudaFibres, matrix: Array, out: Array, scratch: Array = None) -> None:
        """See `TtmKernel`; queued on the current stream."""
        if shard.launch is None:
            return
        code, grid, threads, row = shard.launch
        _, _, chunks, slots, *levels = shard.sizes
        if scratch is None:
            scratch = cupy.empty(slots * row * 8, np.uint8)
        indices, values, table, *items = shard.read
        code.ttm(grid, (threads,), (indices, values, table, np.int32(chunks), matrix, out, scratch))
        for count, level in zip(levels, items, strict=True):
            code.settle((-(-count * row // SETTLING),), (SETTLING,), (level, np.int32(count), scratch, out))


@TTM.provider("cuda")
def providers(device: CudaDevice) -> Sequence[TtmKernel]:
    """Return the kernels of the operation, the default first."""
    return [FibresOnDevice(device)]


def _unit(form: ProductForm) -> CudaSource:
    return unit("ttm", ttm.macros(form))


def _code(form: ProductForm) -> ProductForm:
    """Return what the code for a tensor depends on."""
    return replace(form, length=0, nnz=0)


@cache
def _compiled(form: ProductForm, device: int) -> TtmCode:
    module = load(_unit(form))
    return TtmCode(*map(module.get_function, TtmCode._fields))
