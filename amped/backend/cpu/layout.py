"""Layouts of nonzeros on a CPU: pieces of output rows, fibres, and blocks of a factor matrix."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from partitioner.array_types import Floats, IntDType, Integers
from partitioner.host.jit import jit
from partitioner.sorting.sort import stable_argsort

from ..ops.mttkrp import Share

PIECE = 32  # nonzeros: longest sum in the factors' precision
BLOCK_BYTES = 2 << 20  # bytes of a block of a factor matrix: a core's share of the caches
FETCHED = 4  # a block is prefetched if it has at least one nonzero per this many rows

NUMBER = np.dtype(np.uint32)  # type of positions of nonzeros, pieces and fibres
NARROW, WIDE = np.dtype(np.uint16), np.dtype(np.int32)
NO_NUMBERS = np.zeros(0, NUMBER)

Column = Integers  # indices: `WIDE`, or `NARROW` for input modes
Numbers = NDArray[np.uint32]


class Pieces(NamedTuple):
    """Pieces, runs of at most `PIECE` nonzeros of one output row: their starts and the end, and their rows."""

    starts: Numbers
    rows: Column


class FibreRuns(NamedTuple):
    """Fibres, runs of a piece's nonzeros with equal first input index: each piece's first fibre; the fibres' starts."""

    of_piece: Numbers
    starts: Numbers


class Blocks(NamedTuple):
    """Blocks of pieces whose nonzeros read neighbouring rows of input factor matrix `which`.

    Before the first piece of block ``b``, ``first_pieces[b]``, rows ``lows[b]`` to ``highs[b]`` are read into the
    caches.
    """

    first_pieces: NDArray[np.int64]
    lows: NDArray[np.int64]
    highs: NDArray[np.int64]
    which: int


class ThreadParts(NamedTuple):
    """The work of threads: parts, each with the same number of units, which are computed one after the other.

    `bounds` are the first piece of each unit, part by part, and the end. `shared`, (parts,), is the output index that a
    part shares with an earlier part or shard, or -1. `firsts`, (parts + 1,), is the first output index after all
    earlier parts.
    """

    bounds: NDArray[np.int64]
    shared: NDArray[np.int64]
    firsts: NDArray[np.int64]


NO_BLOCKS = Blocks(np.zeros(0, np.int64), np.zeros(0, np.int64), np.zeros(0, np.int64), 0)


@jit
def _cut(rows, order, bounds, starts, of_piece):  # type: ignore[no-untyped-def]
    """Count the pieces of sorted rows between bounds; store them unless `starts` is empty."""
    count = start = last = 0
    for b in range(bounds.size - 1):
        for p in range(bounds[b], bounds[b + 1]):
            row = rows[order[p]] if order.size else rows[p]
            if p == bounds[b] or row != last or p - start == PIECE:
                start = p
                if starts.size:
                    starts[count], of_piece[count] = p, row
                count += 1
            last = row
    return count


@jit
def _cut_fibres(leading, pieces, of_piece, starts):  # type: ignore[no-untyped-def]
    """Count the fibres of pieces; store them unless `starts` is empty."""
    count = 0
    for c in range(pieces.size - 1):
        if starts.size:
            of_piece[c] = count
        for p in range(pieces[c], pieces[c + 1]):
            if p == pieces[c] or leading[p] != leading[p - 1]:
                if starts.size:
                    starts[count] = p
                count += 1
    return count


def index_type(share: Share) -> IntDType:
    """Return the type of input indices; one type for all modes of a tensor, so that fewer kernels are compiled."""
    return NARROW if max(*share.lengths, share.rows.stop) <= 1 << 16 else WIDE


def tile_heights(lengths: Sequence[int], row_bytes: int, room: int) -> list[int]:
    """Return the rows per block for each input mode, such that one block of each fits into `room` bytes.

    Each matrix gets an equal share; what smaller matrices do not need is divided among the others.
    """
    heights, remaining = [0] * len(lengths), room // row_bytes
    for position, m in enumerate(sorted(range(len(lengths)), key=lengths.__getitem__)):
        most = max(1, remaining // (len(lengths) - position))
        heights[m] = -(-lengths[m] // -(-lengths[m] // most))  # blocks of equal size
        remaining -= heights[m]
    return heights


def count_tiles(lengths: Sequence[int], heights: Sequence[int]) -> int:
    """Return the number of tiles, the combinations of one block of each input mode."""
    return math.prod(-(-length // height) for length, height in zip(lengths, heights, strict=True))


class TiledNonzeros(NamedTuple):
    """Nonzeros divided into parts of equal size, and sorted by tile within a part; a unit is a tile of a part."""

    indices: list[Column]
    values: Floats
    pieces: Pieces
    parts: ThreadParts


def tiled(
    columns: Sequence[Column],
    values: Floats,
    lengths: Sequence[int],
    heights: Sequence[int],
    count: int,
    continues: bool,
) -> TiledNonzeros:
    """Sort nonzeros by part and tile; see `blocked` for `columns` and `equal_parts` for `continues`."""
    rows, nnz, tiles = columns[0], values.size, count_tiles(lengths, heights)
    ends = nnz * np.arange(count + 1) // count
    keys = np.repeat(np.arange(count, dtype=np.int32), np.diff(ends))
    for column, length, height in zip(columns[1:], lengths, heights, strict=True):
        keys = keys * np.int32(-(-length // height)) + column // column.dtype.type(height)
    order = stable_argsort([keys], [count * tiles], NUMBER)
    bounds = np.concatenate([[0], np.cumsum(np.bincount(keys, minlength=count * tiles))])
    pieces = cut(rows, order, bounds)
    begins = rows[ends[:-1]].astype(np.int64)
    before = np.concatenate([[begins[0] if continues else -1], rows[ends[1:-1] - 1]])
    firsts = np.concatenate([[begins[0]], rows[ends[1:] - 1].astype(np.int64) + 1])
    shared = np.where(begins == before, begins, -1)
    units = np.searchsorted(pieces.starts, bounds.astype(NUMBER))
    return TiledNonzeros(
        [c.take(order) for c in columns[1:]], values.take(order), pieces, ThreadParts(units, shared, firsts)
    )


def cut(rows: Column, order: Integers = NO_NUMBERS, bounds: NDArray[np.int64] | None = None) -> Pieces:
    """Cut nonzeros, sorted by output index or by the permutation `order`, into pieces that do not cross `bounds`."""
    ends = np.array([0, rows.size]) if bounds is None else bounds
    count = _cut(rows, order, ends, NO_NUMBERS, np.zeros(0, np.int32))
    pieces = Pieces(np.empty(count + 1, NUMBER), np.empty(count, np.int32))
    _cut(rows, order, ends, *pieces)
    pieces.starts[count] = rows.size
    return pieces


def equal_parts(pieces: Pieces, count: int, continues: bool) -> ThreadParts:
    """Cut pieces into parts with equal numbers of nonzeros; `continues`: the first row already has a sum."""
    starts, rows = pieces
    nnz = int(starts[-1])
    bounds = np.unique(np.searchsorted(starts, (nnz * np.arange(count + 1) // count).astype(NUMBER)))
    begin = bounds[:-1]
    shared = np.where(rows[begin] == rows[begin - 1], rows[begin], -1).astype(np.int64)
    if shared.size:
        shared[0] = rows[0] if continues else -1
    firsts = rows[bounds - 1].astype(np.int64) + 1
    firsts[0] = rows[0]
    return ThreadParts(bounds, shared, firsts)


def cut_fibres(leading: Column, pieces: Pieces) -> FibreRuns:
    """Cut pieces into fibres; `leading` are the indices of the first input mode."""
    count = _cut_fibres(leading, pieces.starts, NO_NUMBERS, NO_NUMBERS)
    fibres = FibreRuns(np.empty(pieces.starts.size, NUMBER), np.empty(count + 1, NUMBER))
    _cut_fibres(leading, pieces.starts, *fibres)
    fibres.of_piece[-1], fibres.starts[-1] = count, leading.size
    return fibres


def most_pieces(nnz: int, rows: int) -> int:
    """Return the maximum number of pieces of `nnz` nonzeros in `rows` output rows."""
    return min(nnz, rows + nnz // PIECE)


class BlockedNonzeros(NamedTuple):
    """Nonzeros sorted by block and, within a block, by output row; `indices` are those of the input modes."""

    indices: list[Column]
    values: Floats
    pieces: Pieces
    blocks: Blocks


def longest(lengths: Sequence[int]) -> int:
    """Return the longest input mode; it is the one cut into blocks."""
    return int(np.argmax(lengths))


def block_rows(row_bytes: int) -> int:
    """Return the number of rows of a block."""
    return max(1, BLOCK_BYTES // row_bytes)


def blocked(columns: Sequence[Column], values: Floats, lengths: Sequence[int], rows: int) -> BlockedNonzeros:
    """Sort nonzeros by blocks of `rows` rows of the longest input mode.

    `columns` are the output indices, ascending, then the indices of the input modes, whose lengths are `lengths`.
    """
    which = longest(lengths)
    count, keys = -(-lengths[which] // rows), columns[which + 1] // np.int32(rows)
    order = stable_argsort([keys], [count], NUMBER)
    bounds = np.concatenate([[0], np.cumsum(np.bincount(keys, minlength=count))])
    pieces = cut(columns[0], order, bounds)
    first_pieces, lows = np.searchsorted(pieces.starts, bounds.astype(NUMBER)), np.arange(count) * rows
    highs = np.where(np.diff(bounds) * FETCHED >= rows, np.minimum(lows + rows, lengths[which]), lows)
    indices = [column.take(order) for column in columns[1:]]
    return BlockedNonzeros(indices, values.take(order), pieces, Blocks(first_pieces, lows, highs, which))
