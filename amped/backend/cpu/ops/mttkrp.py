"""MTTKRP kernels on the CPU: the order of nonzeros, memory, and the split over threads."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import replace

import numpy as np

from partitioner.sorting.sort import DIGIT_BITS, stable_argsort

from ...device import NOTHING, Array
from ...ops.mttkrp import MTTKRP, Kernel, KernelBytes, Offers, Share
from ..caches import own_cache
from ..device import CpuDevice
from ..kernels.sums import PANEL, add_sums
from ..layout import (
    FETCHED,
    NARROW,
    NUMBER,
    PIECE,
    WIDE,
    Column,
    Pieces,
    ThreadParts,
    block_rows,
    blocked,
    count_tiles,
    cut,
    cut_fibres,
    equal_parts,
    index_type,
    longest,
    most_pieces,
    tile_heights,
    tiled,
)
from ..shard import HostShard, constant

FAIR_CACHE = 4 << 20  # bytes of the last-level cache per core, if all cores use it
LAST_CACHE = 16 << 20  # bytes of the last-level cache that a run can use, as many cores share it
NEAR, FAR, FETCHED_BYTES = 12, 24, 8 << 10  # prefetch distance in nonzeros, and in bytes of rows
TURNS = 8  # parts of a shard per thread; faster threads take more of them
SMALLEST = 4096  # nonzeros per thread; with fewer, a second thread costs more than it saves
LEAST_TUNED = 1 << 19  # nonzeros; with fewer, kernels take milliseconds, but compiling another one takes seconds
LEAST_FIBRE = 1.5  # nonzeros per pair of output row and row of the first input mode
LEAST_PANEL = 8  # nonzeros per row that is copied into panels
LEAST_RUN, LONG_RUN = 8, 16  # nonzeros per output row and tile
LEAST_TILE = 2  # nonzeros of a thread per row of a tile; with fewer, a row is read only once
TILED_TURNS = 4  # parts per thread
LEAST_BLOCK = 2  # nonzeros per output row and block


class Segmented:
    """Sums pieces of output rows in vector registers, one after the other; supports all nonzeros. See `Kernel`."""

    name = code = "segmented"
    most_nonzeros = (1 << 32) - 1
    repeatable, reads_narrow = True, False
    offers = Offers.ROWS | Offers.SORTED
    derive: Callable[[HostShard, Share], HostShard] | None = None

    def __init__(self, device: CpuDevice) -> None:
        self._threads = device.threads

    def suits(self, share: Share) -> bool:
        return True

    def gains(self, share: Share) -> bool:
        return True

    def keeps_columns(self, share: Share) -> bool:
        """See `Kernel`: if nonzeros are streamed or modes are long; otherwise indices are converted to 16 bits."""
        return share.streamed or index_type(share) == WIDE

    def prepare(self, share: Share) -> None:
        """See `Kernel`: Numba compiles in one thread, at the first call."""

    def bytes(self, share: Share, nnz: int) -> KernelBytes:
        wide, inputs = self.keeps_columns(share), len(share.lengths)
        indices = WIDE.itemsize * (inputs + 1) if wide else NARROW.itemsize * inputs
        pieces = 8 * most_pieces(nnz, share.rows.stop - share.rows.start)
        copied = 0 if wide else WIDE.itemsize * (inputs + 1)
        carries = self._threads.count * TURNS * 2 * share.stride * 8
        return KernelBytes(nnz * (indices + share.dtype.itemsize) + pieces, nnz * copied, carries if nnz else 0)

    def make(self, columns: Sequence[Array], values: Array, share: Share, continues: bool) -> HostShard:
        rows, indices, values = self._converted(columns, values, share)
        pieces = cut(rows)
        parts = equal_parts(pieces, parts_of(values.size, self._threads.count, TURNS), continues)
        return self._shard(rows, indices, values, pieces, parts, share)

    def _converted(self, columns: Sequence[Array], values: Array, share: Share) -> tuple[Column, list[Column], Array]:
        """Return the output indices, the input modes' indices and the values in the format of a shard."""
        kind = WIDE if self.keeps_columns(share) else NARROW
        indices: list[Column] = [np.ascontiguousarray(column, kind) for column in columns[1:]]
        return np.ascontiguousarray(columns[0], WIDE), indices, np.ascontiguousarray(values)

    def _shard(
        self, rows: Column, indices: list[Column], values: Array, pieces: Pieces, parts: ThreadParts, share: Share
    ) -> HostShard:
        types = index_type(share), share.dtype
        own: Column | None = rows
        if not self.keeps_columns(share):  # `Shard.unloaded` identifies columns by their arrays
            own, indices, values = None, [*map(constant, indices)], constant(values)
        return HostShard(self, indices, values, own, pieces, parts, share.rows.start, types, _usual_prefetch(share))

    def run(
        self,
        shard: HostShard,
        factors: Sequence[Array],
        out: Array,
        new: slice = NOTHING,
        scratch: Array = None,
        double: bool = False,
    ) -> None:
        """See `Kernel`."""
        if shard.nnz:
            add_sums(self._threads, shard, factors, out, new, scratch, double)
        else:
            out[new] = 0


class Prefetched(Segmented):
    """Also prefetches factor rows, for matrices larger than a core's private cache."""

    name, offers = "prefetched", Offers.ROWS

    def gains(self, share: Share) -> bool:
        return share.nnz > LEAST_TUNED and _is_far(share)

    def make(self, columns: Sequence[Array], values: Array, share: Share, continues: bool) -> HostShard:
        return replace(super().make(columns, values, share, continues), ahead=_prefetch(share, share.row_bytes))


class Panelled(Segmented):
    """Computes one panel of columns at a time, from a copy of each matrix's panel."""

    name, code, offers = "panelled", "panelled", Offers.ROWS

    def gains(self, share: Share) -> bool:
        read = sum(share.lengths)
        worth = share.nnz > LEAST_TUNED and share.nnz >= LEAST_PANEL * read
        return worth and read * share.row_bytes > FAIR_CACHE and _has_panels(share)

    def bytes(self, share: Share, nnz: int) -> KernelBytes:
        usual = super().bytes(share, nnz)
        panels = sum(share.lengths) * share.row_bytes if nnz and _has_panels(share) else 0
        return usual._replace(running=usual.running + panels)

    def make(self, columns: Sequence[Array], values: Array, share: Share, continues: bool) -> HostShard:
        shard = super().make(columns, values, share, continues)
        return replace(shard, ahead=_prefetch(share, PANEL), panels=True) if _has_panels(share) else shard


class Fibre(Segmented):
    """Multiplies by the first input mode's row once per fibre, that is for nonzeros that share two indices."""

    name, code, offers = "fibre", "fibre", Offers.ROWS

    def suits(self, share: Share) -> bool:
        return len(share.lengths) > 1

    def gains(self, share: Share) -> bool:
        rows = share.rows.stop - share.rows.start
        return share.nnz > LEAST_TUNED and share.nnz >= LEAST_FIBRE * rows * share.lengths[0]

    def make(self, columns: Sequence[Array], values: Array, share: Share, continues: bool) -> HostShard:
        shard = super().make(columns, values, share, continues)
        return replace(shard, fibres=cut_fibres(shard.indices[0], shard.pieces))


class BlockedKernel(Segmented):
    """Processes the longest input matrix block by block; each block fits into the caches."""

    name, offers = "blocked", Offers.NOTHING

    def gains(self, share: Share) -> bool:
        rows, length = share.rows.stop - share.rows.start, share.lengths[longest(share.lengths)]
        blocks = -(-length // block_rows(share.row_bytes))
        return (
            share.nnz > LEAST_TUNED
            and length * share.row_bytes > LAST_CACHE
            and length >= rows * self._threads.count
            and share.nnz >= max(length // FETCHED, LEAST_BLOCK * blocks * rows)
        )

    def bytes(self, share: Share, nnz: int) -> KernelBytes:
        """See `Kernel`: building needs block keys and a permutation; each thread but one has a copy of the output."""
        usual = super().bytes(share, nnz)
        copies = (self._threads.count - 1) * (share.rows.stop - share.rows.start) * share.stride * 8 if nnz else 0
        making = nnz * (16 + 4 * len(share.lengths) + share.dtype.itemsize)
        return usual._replace(making=usual.making + making, running=usual.running + copies)

    def make(self, columns: Sequence[Array], values: Array, share: Share, continues: bool) -> HostShard:
        if not len(values):
            return super().make(columns, values, share, continues)
        rows, indices, values = self._converted(columns, values, share)
        inputs, values, pieces, blocks = blocked([rows, *indices], values, share.lengths, block_rows(share.row_bytes))
        parts = equal_parts(pieces, parts_of(values.size, self._threads.count), False)
        return replace(self._shard(rows, inputs, values, pieces, parts, share), blocks=blocks)


class TiledKernel(Segmented):
    """Processes nonzeros tile by tile; a tile has a block of rows of each input matrix.

    The blocks of a tile fit together into a core's private cache, or half of it. Each thread sums its parts of the
    output rows, tile by tile.
    """

    name, offers = "tiled", Offers.NOTHING

    def gains(self, share: Share) -> bool:
        rows, heights = share.rows.stop - share.rows.start, self._heights(share)
        tiles = count_tiles(share.lengths, heights)
        read_again = share.nnz >= LEAST_TILE * tiles * self._threads.count * sum(heights)
        return share.nnz > LEAST_TUNED and tiles > 1 and read_again and share.nnz >= LEAST_RUN * rows * tiles

    def bytes(self, share: Share, nnz: int) -> KernelBytes:
        """See `Kernel`: building needs keys and a permutation, and each tile has its own pieces."""
        usual, heights = super().bytes(share, nnz), self._heights(share)
        rows, tiles = share.rows.stop - share.rows.start, count_tiles(share.lengths, heights)
        more = 8 * (min(nnz, rows * tiles + nnz // PIECE) - most_pieces(nnz, rows))
        making = nnz * (16 + 4 * len(share.lengths) + share.dtype.itemsize)
        return usual._replace(shard=usual.shard + more, making=usual.making + making)

    def make(self, columns: Sequence[Array], values: Array, share: Share, continues: bool) -> HostShard:
        if not len(values):
            return super().make(columns, values, share, continues)
        rows, indices, values = self._converted(columns, values, share)
        count = parts_of(values.size, self._threads.count, TILED_TURNS)
        heights = self._heights(share)
        tiles = tiled([rows, *indices], values, share.lengths, heights, count, continues)
        shard = self._shard(rows, tiles.indices, tiles.values, tiles.pieces, tiles.parts, share)
        tight = sum(heights) * share.row_bytes > own_cache() // 2  # streamed data evicts some of it
        return replace(shard, rows=None, ahead=NEAR if tight else 0)

    def _heights(self, share: Share) -> list[int]:
        """Return the number of rows per block of each input matrix: more if output rows have few nonzeros per tile."""
        rows = share.rows.stop - share.rows.start
        heights = tile_heights(share.lengths, share.row_bytes, own_cache() // 2)
        if share.nnz < LONG_RUN * rows * count_tiles(share.lengths, heights):
            heights = tile_heights(share.lengths, share.row_bytes, own_cache())
        return heights


class Permuted(Segmented):
    """GenTen's MTTKRP-C (Phipps and Kolda, SIAM J. Sci. Comput. 41(3), 2019), the kernel with the least memory.

    All modes share mode 0's copy of the nonzeros; each other mode has a permutation.
    """

    name, code, offers = "permuted", "permuted", Offers.NOTHING

    def gains(self, share: Share) -> bool:
        """See `Kernel`: used only on request."""
        return False

    def keeps_columns(self, share: Share) -> bool:
        """See `Kernel`: several modes share them."""
        return True

    def bytes(self, share: Share, nnz: int) -> KernelBytes:
        """See `Kernel`: other modes than the first have only a permutation, computed by one or more sorting passes."""
        usual = super().bytes(share, nnz)
        if not share.column:
            return usual
        pieces = 8 * most_pieces(nnz, share.rows.stop - share.rows.start)
        return KernelBytes(4 * nnz + pieces, 4 * nnz * (share.rows.stop > 1 << DIGIT_BITS), usual.running)

    def derive(self, shard: HostShard, share: Share) -> HostShard:
        assert shard.rows is not None
        inputs = [shard.rows, *shard.indices]
        rows = inputs.pop(share.column)
        order = stable_argsort([rows], [share.rows.stop - share.rows.start], NUMBER)
        pieces = cut(rows, order)
        parts = equal_parts(pieces, parts_of(shard.nnz, self._threads.count, TURNS), False)
        return replace(self._shard(rows, inputs, shard.values, pieces, parts, share), permutation=order)


@MTTKRP.provider("cpu")
def providers(device: CpuDevice) -> Sequence[Kernel]:
    """Return the kernels of the operation; the first supports all nonzeros."""
    return [kind(device) for kind in (Segmented, Prefetched, Panelled, Fibre, BlockedKernel, TiledKernel, Permuted)]


def _is_far(share: Share) -> bool:
    """Return whether the matrices are larger than a core's private cache."""
    return sum(share.lengths) * share.row_bytes > own_cache()


def _usual_prefetch(share: Share) -> int:
    """Return the prefetch distance where it is not chosen by timing, 0 for none: few nonzeros and large matrices."""
    return _prefetch(share, share.row_bytes) if share.nnz <= LEAST_TUNED and _is_far(share) else 0


def _prefetch(share: Share, row_bytes: int) -> int:
    """Return the prefetch distance in nonzeros: longer if rows come from memory, up to the size of the L1 cache."""
    if sum(share.lengths) * row_bytes <= LAST_CACHE:
        return NEAR
    return min(FAR, max(NEAR // 2, FETCHED_BYTES // (len(share.lengths) * row_bytes)))


def _has_panels(share: Share) -> bool:
    """Return whether rows consist of several whole panels."""
    return share.row_bytes > PANEL and share.row_bytes % PANEL == 0


def parts_of(nnz: int, threads: int, each: int = 1) -> int:
    """Return the number of parts into which to split `nnz` nonzeros, at most `each` per thread."""
    return max(1, min(threads * each, nnz // SMALLEST))
