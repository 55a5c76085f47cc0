"""A shard of packed nonzeros: how a GPU packs sorted columns, and the layout in memory."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cache, cached_property
from typing import Any, NamedTuple

import cupy
import numpy as np
from numpy.typing import NDArray

from partitioner.array_types import HostArray
from partitioner.cuda import sort
from partitioner.cuda.code import load
from partitioner.cuda.pinned import pinned_empty

from ..device import Array
from ..ops.mttkrp import NOTHING_STORED, Kernel
from .layout import ALIGNMENT, SORTING, Jobs, Limits, MemoryPart, PackedLayout, bases, cut_jobs
from .source import by_value, packer

THREADS, SUMMING = 128, 1024  # threads of a block; of a block that computes prefix sums
AHEAD = 2  # runs that a thread reads ahead


class ShardCode(NamedTuple):
    """Compiled functions: the kernel of ``mttkrp.cu``, and the kernels of ``combine.cu`` that complete its output."""

    mttkrp: Any
    clear_gaps: Any = None
    combine: Any = None
    combine_rest: Any = None
    widen: Any = None
    gather_long: Any = None


NOT_COMPILED = ShardCode(None)


@dataclass
class CudaShard:
    """Packed nonzeros of a range of output rows. See `Shard`."""

    kernel: Kernel
    layout: PackedLayout
    nnz: int
    first_row: int  # of the range, relative to the rank's first row
    rows: int  # number of rows of the range
    jobs: int
    blocks: int  # number of thread blocks, which share the jobs
    chunks: int  # number of chunks with nonzeros
    long_runs: int  # number of runs whose sums have separate rows after the output
    runs: int  # number of runs; of one tile, a run is all nonzeros of a row
    offsets: tuple[int, ...]  # start in `memory` of each `MemoryPart`
    memory: Array  # (bytes,) uint8; on the device, or page-locked on the host
    functions: ShardCode = NOT_COMPILED

    @property
    def filled(self) -> bool:
        """Whether every row has nonzeros and its sum is stored."""
        return not self.layout.tiled and self.runs == self.rows

    @property
    def nbytes(self) -> int:
        """Size of `memory` in bytes."""
        return int(self.memory.size)

    def unloaded(self, stored: Mapping[int, Any] = NOTHING_STORED) -> CudaShard:
        """See `Shard`: the memory is page-locked, so that the copy engine reads it at the full speed of the link."""
        return replace(self, memory=unloaded(self.memory))

    def copied(self, buffer: Array) -> CudaShard:
        """See `Movable`; queued on the current stream."""
        return replace(self, memory=copied(self.memory, buffer))

    def at(self, part: MemoryPart) -> np.uint64:
        """Return the device address of a part."""
        return np.uint64(self.memory.data.ptr + self.offsets[part])

    @cached_property
    def read(self) -> tuple[np.uint64, ...]:
        """Device addresses that ``mttkrp`` reads; cached, because a GPU waits for the host in small modes."""
        parts = MemoryPart.JOBS, MemoryPart.FIRST_JOBS, MemoryPart.RECORDS, MemoryPart.STARTS, MemoryPart.RUNS
        return tuple(self.at(part) for part in parts)

    @cached_property
    def apart(self) -> np.void:
        """The rows of long runs, in the form of the argument of ``mttkrp``."""
        kind = np.dtype([("rows", "u8"), ("first", "i4")], align=True)
        return by_value(np.array([(self.at(MemoryPart.LONG_ROWS), self.rows)], kind))


def unloaded(memory: Array) -> HostArray:
    """Copy device memory to page-locked memory."""
    pinned = pinned_empty(memory.nbytes)
    memory.get(out=pinned)
    return pinned


def copied(memory: Any, buffer: Array) -> Array:
    """Queue a copy of page-locked memory into a buffer on the current stream; return that part of the buffer."""
    target = buffer[: memory.nbytes]
    target.set(memory, stream=cupy.cuda.get_current_stream())
    return target


class PackingCode(NamedTuple):
    """The compiled functions of ``pack.cu``."""

    number_tiles: Any
    count_runs: Any
    sum_counts: Any
    pack: Any


@cache
def _packing_code(layout: PackedLayout, device: int) -> PackingCode:
    code = packer(len(layout.share.lengths), layout.share.dtype)
    return PackingCode(*map(load(code).get_function, PackingCode._fields))


def packing_bytes(layout: PackedLayout, nnz: int) -> int:
    """Return the temporary bytes that `make_shard` needs in addition to the shard."""
    share = layout.share
    columns = 4 * (len(share.lengths) + 1) + share.dtype.itemsize
    order = 4 + SORTING if math.prod(layout.grid) > 1 else 0  # tile of each nonzero, and their order
    return nnz * (columns + order)


def make_shard(
    kernel: Kernel, columns: Sequence[Array], values: Array, layout: PackedLayout, continues: bool, limits: Limits
) -> CudaShard:
    """Pack nonzeros in device memory that are sorted by output row, then by the input modes in order.

    See `Kernel.make`; columns are int32.
    """
    counts, order = _tiles(columns[1:], layout)
    jobs = cut_jobs(layout, counts, limits)
    spans = np.zeros(jobs.tile.size, np.dtype([("begin", "i8"), ("count", "i8"), ("tile", "i4")], align=True))
    spans["begin"], spans["count"], spans["tile"] = jobs.begin, jobs.nonzeros, jobs.tile
    table = _table(layout, jobs)
    sorted_columns = by_value(
        np.array([*(c.data.ptr for c in columns), values.data.ptr, 0 if order is None else order.data.ptr], np.uint64)
    )
    first_row, last_row = (int(columns[0][at]) for at in (0, -1))
    rows = last_row - first_row + 1
    packed = by_value(_packed_layout(layout, jobs.tile.size, continues, first_row, rows))
    code = _packing_code(layout, values.device.id)
    chunks = jobs.tile.size * layout.groups
    grid = (-(-chunks // THREADS),)
    on_device = cupy.asarray(table.view(np.uint8)), cupy.asarray(spans.view(np.uint8))
    firsts = cupy.zeros((2, chunks + 1), np.int32)  # prefix sums of the runs, and of the long runs, per chunk
    code.count_runs(
        grid, (THREADS,), (sorted_columns, *on_device, packed, np.int32(chunks), firsts[0, 1:], firsts[1, 1:])
    )
    code.sum_counts((2,), (SUMMING,), (firsts, np.int64(chunks + 1)))
    runs, long_runs = int(firsts[0, -1]), int(firsts[1, -1])
    records = (int(jobs.unit[-1]) + 1) * layout.unit  # one more unit, which is read ahead
    sizes = [table.nbytes, jobs.first.nbytes, chunks * 4, (runs + AHEAD) * 4, long_runs * 4, records]
    offsets, size = _offsets(sizes)
    memory = cupy.empty(size, np.uint8)
    memory[: table.nbytes] = on_device[0]
    memory[offsets[1] : offsets[1] + jobs.first.nbytes].set(jobs.first.view(np.uint8))
    memory[offsets[3] + runs * 4 :].data.memset_async(0, AHEAD * 4)  # Phi reads the rows of runs ahead
    nonempty = int(np.sum(-(-jobs.nonzeros // jobs.chunk)))
    begin = first_row - layout.share.rows.start
    shard = CudaShard(
        kernel, layout, values.size, begin, rows, jobs.tile.size, jobs.first.size - 1, nonempty, long_runs,
        runs, offsets, memory,
    )  # fmt: skip
    parts = (shard.at(part) for part in (MemoryPart.STARTS, MemoryPart.RUNS, MemoryPart.LONG_ROWS, MemoryPart.RECORDS))
    code.pack(grid, (THREADS,), (sorted_columns, *on_device, packed, np.int32(chunks), firsts[0], firsts[1], *parts))
    return shard


def _tiles(inputs: Sequence[Array], layout: PackedLayout) -> tuple[Any, Array | None]:
    """Return the nonzeros per tile, and the permutation to tile order unless the nonzeros are in it."""
    nonzeros, tiles = inputs[0].size, math.prod(layout.grid)
    if tiles == 1:
        return np.array([nonzeros]), None
    number, tile = _packing_code(layout, inputs[0].device.id).number_tiles, cupy.zeros(nonzeros, np.int32)
    for column, parts, block in zip(inputs, layout.grid, layout.blocks, strict=True):
        if parts > 1:
            counts = np.int32(parts), np.int32(block), np.int64(nonzeros)
            number((-(-nonzeros // THREADS),), (THREADS,), (column, *counts, tile))
    return sort.counts(tile, tiles).get(), sort.sorted_places([tile], [0], [tiles])


def _table(layout: PackedLayout, jobs: Jobs) -> NDArray[np.void]:
    inputs = len(layout.blocks)
    kind = np.dtype([("unit", "i8"), ("chunk", "i4"), ("base", "i4", (inputs,))], align=True)
    table = np.zeros(jobs.tile.size, kind)
    table["unit"], table["chunk"], table["base"] = jobs.unit[:-1], jobs.chunk, bases(layout, jobs.tile)
    return table


def _packed_layout(layout: PackedLayout, jobs: int, continues: bool, first_row: int, rows: int) -> NDArray[np.void]:
    names = "jobs", "groups", "record", "value_bits", "fibre", "tiled", "continues", "first_row", "rows"
    fields = [(n, "i4") for n in names] + [("grain", "f8"), ("low", "i8"), ("bits", "i4", (len(layout.fields),))]
    packed = np.zeros(1, np.dtype(fields, align=True))
    bits, kind = layout.code.bits, (layout.fibre, layout.tiled)
    numbers = jobs, layout.groups, layout.record, bits, *kind, continues, first_row, rows
    for name, number in zip(names, numbers, strict=True):
        packed[name] = number
    packed["grain"], packed["low"], packed["bits"] = layout.code.grain, layout.code.low, layout.fields
    return packed


def _offsets(sizes: Sequence[int]) -> tuple[tuple[int, ...], int]:
    ends = np.cumsum([-(-size // ALIGNMENT) * ALIGNMENT for size in sizes])
    return (0, *(int(end) for end in ends[:-1])), int(ends[-1])
