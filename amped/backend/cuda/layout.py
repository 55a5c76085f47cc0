"""Layouts of nonzeros on a GPU: their order, the bits of a record, and the division into jobs.

Needs no GPU. `packed.cuh` explains tiles, jobs, chunks and records.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from enum import IntEnum
from functools import cached_property
from itertools import pairwise
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from ..ops.mttkrp import Share
from .source import REALS, Macros

VECTOR = 16  # bytes that a thread loads at once
STRIP = 4  # interleaved chunks, as in packed.cuh
AT_ONCE = 4  # records per load of a thread
PANEL = 8  # vectors of a row in a tile, one L2 cache line; wider rows take several passes over the records
GATHER_THREADS = 128
CHUNK = 256  # nonzeros: longest sum in the factors' precision
FIBRE_CHUNK = 512  # nonzeros of the fibre kernel, which adds one sum per fibre
LEAST_CHUNK = 32
WAVES = 4  # least number of thread blocks per multiprocessor
RESERVED_SHARED = 2048  # bytes of shared memory left unused
DENSE_TILE = 16384  # nonzeros per tile from which loading factor rows into shared memory pays off
LONG_RUN, LONGEST_RUN = 64, 512  # nonzeros, as in pack.cu
ALIGNMENT = 256  # bytes; alignment of the parts of a shard
SORTING = 4 + 3 * 8  # bytes per nonzero: a permutation, and scratch memory of its sort
LEAST_RUN = 2.5  # nonzeros; adding shorter runs to the output costs more than blocks of rows save
MOST_TILES = 512  # limits the rounding error of an output row, to which each tile adds in single precision
LEAST_FIBRE = 1.5  # nonzeros
STORED = {"full": "STORED_AS_REAL", "fp16": "STORED_AS_FP16", "bf16": "STORED_AS_BF16"}
L2_PARTS = {"quarter": 1 / 4, "third": 1 / 3, "half": 1 / 2}  # share of the L2 cache for a block of factor rows
# Range of the mean run length; short runs need large blocks.
BLOCK_RUNS = {"blocked-quarter": (16.0, math.inf), "blocked-half": (LEAST_RUN, 32.0)}
LEAST_TILED = 1 << 20  # nonzeros; for fewer, all layouts take microseconds


class MemoryPart(IntEnum):
    """Parts of `CudaShard.memory`, in this order; see `packed.cuh`."""

    JOBS, FIRST_JOBS, STARTS, RUNS, LONG_ROWS, RECORDS = range(6)


class Limits(NamedTuple):
    """A GPU's number of multiprocessors, shared memory per thread block (bytes) and L2 cache (bytes)."""

    processors: int
    shared: int
    l2: int


class ValueCode(NamedTuple):
    """Encoding of a value in a record: raw bits if `grain` is 0, otherwise the integer ``value / grain - low``."""

    bits: int
    grain: float
    low: int


class Schedule(NamedTuple):
    """Maximum threads per block, blocks per multiprocessor, and nonzeros whose factor rows are loaded together.

    Each is as large as registers allow without spilling, which `tests/amped/backend/cuda/test_nvrtc.py` checks.
    """

    threads: int
    blocks: int
    batch: int

    def halved(self) -> Schedule:
        """Return a schedule for twice the columns per thread: half the batch, and fewer blocks or threads."""
        if self.blocks == 1:
            return self._replace(threads=min(self.threads, 768), batch=max(1, self.batch // 2))
        return self._replace(blocks=max(1, self.blocks - 2), batch=max(1, self.batch // 2))


def _gather_schedule(inputs: int, double: bool) -> Schedule:
    blocks, batch = {1: (7, 4), 2: (7, 4), 3: (5, 4), 4: (5, 2), 5: (4, 2)}.get(inputs, (3, 1))
    return Schedule(GATHER_THREADS, blocks - (2 if double else 0), batch)


def _staged_schedule(inputs: int, gathers: int, double: bool) -> Schedule:
    batch = 2 if inputs <= 4 else 1
    if double:
        return Schedule(512 if inputs <= 3 else 384, 1, batch)
    most = 768 if inputs <= 3 else 512 if inputs <= 5 else 384
    return Schedule({(1, 0): 1024, (2, 0): 1024, (2, 1): 896, (3, 1): 896}.get((inputs, gathers), most), 1, batch)


def value_code(share: Share) -> ValueCode:
    """Return the shortest exact encoding of a tensor's values."""
    raw = share.dtype.itemsize * 8
    low, high, grain = share.values
    if grain and share.values.largest / grain < 2**24:
        least, most = min(0, round(low / grain)), max(0, round(high / grain))
        bits = (most - least).bit_length()
        if bits < min(raw, 24):  # exact in single precision
            return ValueCode(bits, grain, least)
    return ValueCode(raw, 0.0, 0)


@dataclass(frozen=True)
class PackedLayout:
    """A layout: how the nonzeros of a mode are sorted, packed and processed."""

    kernel: str
    share: Share
    code: ValueCode
    blocks: tuple[int, ...]  # rows per block of each input mode; the mode's length if it is not blocked
    staged: tuple[bool, ...]  # for each input mode, whether blocks are loaded into shared memory
    fibre: bool = False  # whether rows of the first input mode are multiplied once per fibre
    tiled: bool = False  # whether sums are added to the output instead of stored
    passing: tuple[bool, ...] = ()  # for each input mode, whether its rows are evicted first from the L2 cache
    sums_pass: bool = False  # whether the output's rows are evicted first (only with `tiled`)

    @cached_property
    def fields(self) -> tuple[int, ...]:
        """Bits of each input index."""
        return tuple((block - 1).bit_length() for block in self.blocks)

    @cached_property
    def width(self) -> int:
        """Vectors of a factor row."""
        return self.share.row_bytes // VECTOR

    @cached_property
    def lanes(self) -> int:
        """Threads per row."""
        return row_lanes(self.width, PANEL if self.tiled else 32)

    @cached_property
    def panels(self) -> int:
        """Passes over the records."""
        return -(-self.width // self.lanes)

    @cached_property
    def schedule(self) -> Schedule:
        """The kernel's schedule on a multiprocessor."""
        inputs, double = len(self.blocks), self.share.dtype == np.float64
        if any(self.staged):
            schedule = _staged_schedule(inputs, self.staged.count(False), double)
        else:
            schedule = _gather_schedule(inputs, double)
        # With 16-bit factor rows a thread has twice the columns.
        return schedule if self.share.gather == "full" else schedule.halved()

    @cached_property
    def groups(self) -> int:
        """Groups of threads per block, which is also the number of chunks per job."""
        return max(1, self.schedule.threads // self.lanes // STRIP) * STRIP

    @cached_property
    def record(self) -> int:
        """Bytes of a record."""
        return -(-(self.code.bits + sum(self.fields) + self.fibre + 1) // 8)

    @cached_property
    def unit(self) -> int:
        """Bytes of a unit of interleaved records."""
        return STRIP * AT_ONCE * self.record

    @cached_property
    def chunk(self) -> int:
        """Maximum nonzeros of a chunk if no blocks are staged."""
        return FIBRE_CHUNK if self.fibre else CHUNK

    def chunk_of(self, nnz: int, limits: Limits) -> int:
        """Return the nonzeros of a chunk, few enough to occupy every multiprocessor."""
        busy = -(-nnz // (limits.processors * WAVES * self.groups * AT_ONCE)) * AT_ONCE
        return min(self.chunk, max(LEAST_CHUNK, busy))

    @cached_property
    def shared_bytes(self) -> int:
        """Bytes of shared memory of a block of threads."""
        return sum(b for b, s in zip(self.blocks, self.staged, strict=True) if s) * self.lanes * VECTOR

    @cached_property
    def grid(self) -> tuple[int, ...]:
        """Number of blocks of rows of each input mode."""
        return tuple(-(-n // b) for n, b in zip(self.share.lengths, self.blocks, strict=True))

    @cached_property
    def macros(self) -> tuple[tuple[str, str | int], ...]:
        """The macros with which the kernels of packed nonzeros are compiled."""
        macros: Macros = {
            "INPUTS": len(self.blocks), "REAL": REALS[self.share.dtype], "STORED": STORED[self.share.gather],
            "LANES": self.lanes, "WIDTH": self.width, "GROUPS": self.groups,
            "BLOCKS": self.schedule.blocks, "BATCH": self.schedule.batch,
            "TILED": int(self.tiled), "STAGED": _mask(self.staged), "FIBRE": int(self.fibre),
            "PASSING": _mask(self.passing), "SUMS_PASS": int(self.sums_pass), "RECORD": self.record,
            "VALUE_BITS": self.code.bits, "VALUE_RAW": int(not self.code.grain),
            "VALUE_GRAIN": repr(self.code.grain), "VALUE_LOW": self.code.low,
            "FIELDS": ",".join(map(str, self.fields)),
        }  # fmt: skip
        return tuple(macros.items())

    @cached_property
    def macros_in_double(self) -> tuple[tuple[str, str | int], ...]:
        """The macros for computing in double precision with values and factors in single precision.

        Vectors take twice the registers, so fewer are loaded together, by fewer thread blocks.
        """
        few = {"BLOCKS": max(1, self.schedule.blocks // 2), "BATCH": 1}
        return tuple((dict(self.macros) | {"REAL": "double", "STORED": "STORED_AS_FLOAT"} | few).items())


def _mask(flags: Sequence[bool]) -> int:
    """Return a bit mask of the input modes whose flag is set."""
    return sum(1 << m for m, flag in enumerate(flags) if flag)


def row_lanes(width: int, most: int) -> int:
    """Return the threads per row of `width` vectors: at most `most`, and the fewest that need no more passes."""
    return -(-width // -(-width // most))


def kernel_names(order: int) -> tuple[str, ...]:
    """Return the names of all layouts for tensors of this order."""
    inputs = order - 1
    fibre = ("fibre",) if inputs > 1 else ()
    return ("segmented", *fibre, *(f"tiled-{k + 1}" for k in range(inputs)), *(f"blocked-{name}" for name in L2_PARTS))


def make_layout(kernel: str, share: Share, limits: Limits) -> PackedLayout:
    """Return the layout of this name, or a substitute if it would have too many tiles."""
    code, whole, none = value_code(share), share.lengths, (False,) * len(share.lengths)
    family, _, part = kernel.partition("-")
    if family == "tiled":
        return _staged(share, code, limits, int(part))
    if family == "blocked":
        return _blocked(share, code, limits, part)
    return PackedLayout(kernel, share, code, whole, none, fibre=family == "fibre")


def gains(kernel: str, share: Share, limits: Limits) -> bool:
    """Return whether a kernel may be the fastest for nonzeros of this kind."""
    layout = make_layout(kernel, share, limits)
    return layout.kernel == kernel and _may_beat_segmented(layout)


def _may_beat_segmented(layout: PackedLayout) -> bool:
    """Return whether a layout may be faster than `segmented`, judged by mean fibre, tile and run lengths."""
    share, tiles = layout.share, math.prod(layout.grid)
    rows: int = max(1, share.rows.stop - share.rows.start)
    if layout.fibre:
        return share.nnz >= LEAST_FIBRE * rows * share.lengths[0]
    if not layout.tiled:
        return True
    least, most = BLOCK_RUNS.get(layout.kernel, (LEAST_RUN, math.inf))
    dense = share.nnz >= DENSE_TILE * tiles if any(layout.staged) else tiles > 1
    return dense and least <= share.nnz / (rows * tiles) <= most and share.nnz >= LEAST_TILED


def _staged(share: Share, code: ValueCode, limits: Limits, count: int) -> PackedLayout:
    """Stage blocks of the `count` shortest input modes in shared memory, or of fewer if there are too many tiles."""
    remaining = (limits.shared - RESERVED_SHARED) // _panel_bytes(share)
    blocks, chosen = list(share.lengths), sorted(range(len(share.lengths)), key=share.lengths.__getitem__)[:count]
    for k, m in enumerate(chosen):
        blocks[m] = equal_block(share.lengths[m], remaining // (count - k))
        remaining -= blocks[m]
    staged = tuple(m in chosen for m in range(len(blocks)))
    layout = PackedLayout(f"tiled-{count}", share, code, tuple(blocks), staged, tiled=True)
    if math.prod(layout.grid) <= MOST_TILES:
        return layout
    return _staged(share, code, limits, count - 1) if count > 1 else make_layout("segmented", share, limits)


def _blocked(share: Share, code: ValueCode, limits: Limits, part: str) -> PackedLayout:
    """Gather from the longest input mode block by block, so that a block stays in the L2 cache."""
    longest, panel = max(range(len(share.lengths)), key=share.lengths.__getitem__), _panel_bytes(share)
    most = int(limits.l2 * L2_PARTS[part]) // panel
    most = max(most, -(-share.lengths[longest] // MOST_TILES))
    blocks = tuple(equal_block(n, most) if m == longest else n for m, n in enumerate(share.lengths))

    def passes(rows: int) -> bool:  # a matrix larger than L2 must not evict the block
        return rows * panel > limits.l2

    return PackedLayout(
        f"blocked-{part}", share, code, blocks, (False,) * len(blocks), tiled=True,
        passing=tuple(map(passes, blocks)), sums_pass=passes(share.rows.stop - share.rows.start),
    )  # fmt: skip


def _panel_bytes(share: Share) -> int:
    return row_lanes(share.row_bytes // VECTOR, PANEL) * VECTOR


def equal_block(length: int, most: int) -> int:
    """Return the rows per block when a mode is cut into equal blocks of at most `most` rows."""
    return -(-length // -(-length // max(1, most)))


class Jobs(NamedTuple):
    """Jobs in tile order."""

    tile: NDArray[np.int32]  # (jobs,)
    begin: NDArray[np.int64]  # (jobs,) first nonzero of each
    nonzeros: NDArray[np.int64]  # (jobs,)
    chunk: NDArray[np.int32]  # (jobs,)
    unit: NDArray[np.int64]  # (jobs + 1,) start of each job's records, in units
    first: NDArray[np.int32]  # (blocks + 1,) first job of each thread block, and the end


def cut_jobs(layout: PackedLayout, tiles: NDArray[np.int64], limits: Limits) -> Jobs:
    """Cut nonzeros into jobs of equal size; `tiles` are the numbers of nonzeros of the tiles."""
    ends = np.concatenate([[0], np.cumsum(tiles)])
    nnz = int(ends[-1])
    groups, blocks = layout.groups, limits.processors
    if any(layout.staged):  # one thread block per multiprocessor, each with an equal, contiguous share
        cuts = np.unique(np.concatenate([ends, [nnz * b // blocks for b in range(1, blocks)]]))
        chunk = -(-np.diff(cuts) // (groups * AT_ONCE)) * AT_ONCE
        first = np.searchsorted(cuts, [nnz * b // blocks for b in range(blocks + 1)])
    else:
        size = layout.chunk_of(nnz, limits)
        runs = [np.arange(a, b, size * groups) for a, b in pairwise(ends) if b > a]
        cuts = np.concatenate([*runs, [nnz]])
        chunk = np.full(cuts.size - 1, size)
        first = np.arange(cuts.size)
    unit = np.concatenate([[0], np.cumsum(chunk // AT_ONCE * (groups // STRIP))])
    tile = np.searchsorted(ends, cuts[:-1], "right") - 1
    narrow = np.int32
    return Jobs(tile.astype(narrow), cuts[:-1], np.diff(cuts), chunk.astype(narrow), unit, first.astype(narrow))


def most_jobs(layout: PackedLayout, nnz: int, limits: Limits) -> int:
    """Return the most jobs that `cut_jobs` makes of `nnz` nonzeros."""
    whole = limits.processors if any(layout.staged) else nnz // (layout.chunk_of(nnz, limits) * layout.groups)
    return math.prod(layout.grid) + whole


def most_long_runs(layout: PackedLayout, nnz: int, limits: Limits) -> int:
    """Return the most long runs that `nnz` nonzeros in tiles have: two at the ends of each chunk, and others."""
    return min(nnz, 2 * most_jobs(layout, nnz, limits) * layout.groups + nnz // LONG_RUN)


def shard_bytes(layout: PackedLayout, nnz: int, most: int, limits: Limits) -> int:
    """Return an upper bound on the bytes of shards of at most `most` nonzeros, `nnz` in all."""
    share, shards, tiles = layout.share, -(-nnz // most), math.prod(layout.grid)
    rows: int = share.rows.stop - share.rows.start
    if any(layout.staged):
        jobs = shards * (limits.processors + tiles)
        filling = jobs * layout.groups * AT_ONCE
    else:  # chunks have at least LEAST_CHUNK; where they are short, jobs are at most WAVES per multiprocessor
        least, usual = (nnz // (chunk * layout.groups) for chunk in (LEAST_CHUNK, layout.chunk))
        jobs = min(least, usual + shards * limits.processors * WAVES) + shards * (tiles + 1)
        filling = shards * tiles * layout.chunk * layout.groups
    chunks, runs, long_runs = jobs * layout.groups, min(nnz, rows) + shards, 0
    if layout.tiled:
        runs = min(nnz, rows * tiles + chunks + nnz // LONGEST_RUN)
        long_runs = min(nnz, 2 * chunks + nnz // LONG_RUN)
    job = 24 + 4 * len(layout.blocks)
    ends = shards * (len(MemoryPart) * ALIGNMENT + layout.unit)
    return (nnz + filling) * layout.record + 4 * (runs + long_runs + chunks) + jobs * job + ends


def bases(layout: PackedLayout, tile: NDArray[np.int32]) -> NDArray[np.int32]:
    """Return the first row of each tile's block in each input mode, (tiles, inputs)."""
    index = np.stack(np.unravel_index(tile, layout.grid), axis=1)
    first: NDArray[np.int32] = (index * np.array(layout.blocks)).astype(np.int32)
    return first
