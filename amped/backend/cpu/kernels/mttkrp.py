"""The MTTKRP kernels of a CPU: how each orders nonzeros, what memory it takes, and how threads share it out."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import replace
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from partitioner.sort import DIGIT_BITS, stable_argsort

from ...base import NOTHING, Array
from ...mttkrp import Bytes, Kernel, Share
from ..device import CpuDevice
from ..layout import (
    FETCHED,
    NARROW,
    NUMBER,
    WIDE,
    Column,
    Parts,
    Pieces,
    block_rows,
    blocked,
    cut,
    cut_fibres,
    equal_parts,
    index_type,
    longest,
    most_pieces,
)
from ..segmented import segmented
from ..shard import HostShard
from ..vectors import ADD, LANE, LINE, PAST, STORE

OWN_CACHE = 1 << 20  # bytes
FAIR_CACHE = 4 << 20  # bytes: of the last one, if all cores use it
LAST_CACHE = 16 << 20  # bytes: a share of it, as processors have many cores to one
CACHED = 8 << 20  # bytes of an output that the caches may still hold when it is read
PANEL = 128  # bytes of a row that are computed at once where rows are too wide for the caches
MOST_LANES = 8  # 256 bytes of a row: half of the registers, on a processor with AVX2
NEAR, FAR, FETCHED_BYTES = 12, 24, 8 << 10  # prefetch distance in nonzeros, and in bytes of rows
TURNS = 8  # parts of a shard for each thread: a thread that is ahead takes more of them
SMALLEST = 4096  # nonzeros a thread; below this a second thread costs more than it saves
START_SECONDS = 25e-6  # of a thread: Python starts one after the other
WORK_SECONDS = 1e-11  # of a byte of a factor row in the caches, by one thread
LEAST_TUNED = 1 << 19  # nonzeros: below this all kernels take milliseconds, and compiling another one takes seconds
LEAST_FIBRE = 1.5  # nonzeros for each pair of an output row and a row of the first input mode: on average, if any
LEAST_PANEL = 8  # nonzeros for each row that is copied into panels
LEAST_BLOCK = 2  # nonzeros for each output row and block


class Segmented:
    """Sums pieces of output rows in vector registers, one after the other; suits all nonzeros. See `Kernel`."""

    name = code = "segmented"
    most_nonzeros = (1 << 32) - 1
    repeatable, reads_narrow = True, False
    derive: Callable[[HostShard, Share], HostShard] | None = None

    def __init__(self, device: CpuDevice) -> None:
        self._threads = device.threads

    def suits(self, share: Share) -> bool:
        return True

    def gains(self, share: Share) -> bool:
        return True

    def keeps_columns(self, share: Share) -> bool:
        """See `Kernel`: where they are streamed, or modes are long; indices of other modes are copied to 16 bits."""
        return share.streamed or index_type(share) == WIDE

    def prepare(self, share: Share) -> None:
        """See `Kernel`: Numba compiles in one thread, when code is first called."""

    def bytes(self, share: Share, nnz: int) -> Bytes:
        wide, inputs = self.keeps_columns(share), len(share.lengths)
        indices = WIDE.itemsize * (inputs + 1) if wide else NARROW.itemsize * inputs
        pieces = 8 * most_pieces(nnz, share.rows.stop - share.rows.start)
        copied = 0 if wide else WIDE.itemsize * (inputs + 1)
        carries = self._threads.count * TURNS * 2 * share.stride * 8
        return Bytes(nnz * (indices + share.dtype.itemsize) + pieces, nnz * copied, carries if nnz else 0)

    def make(self, columns: Sequence[Array], values: Array, share: Share, continues: bool) -> HostShard:
        rows, indices, values = self._held(columns, values, share)
        pieces = cut(rows)
        parts = equal_parts(pieces, parts_of(values.size, self._threads.count, TURNS), continues)
        return self._shard(rows, indices, values, pieces, parts, share)

    def _held(self, columns: Sequence[Array], values: Array, share: Share) -> tuple[Column, list[Column], Array]:
        """Return the output indices, those of the input modes, and the values, as a shard holds them."""
        kind = WIDE if self.keeps_columns(share) else NARROW
        indices = [np.ascontiguousarray(column, kind) for column in columns[1:]]
        return np.ascontiguousarray(columns[0], WIDE), indices, np.ascontiguousarray(values)

    def _shard(
        self, rows: Column, indices: list[Column], values: Array, pieces: Pieces, parts: Parts, share: Share
    ) -> HostShard:
        kept = rows if self.keeps_columns(share) else None
        types = index_type(share), share.dtype
        return HostShard(self, indices, values, kept, pieces, parts, share.rows.start, types)

    def run(
        self,
        shard: HostShard,
        factors: Sequence[Array],
        out: Array,
        new: slice = NOTHING,
        scratch: Array = None,
        double: bool = False,
    ) -> None:
        """See `Kernel`.

        Threads take parts of the shard in turn (the inter-shard partitions of AMPED, section 3.1.2). A row that begins
        in an earlier part is carried: its sum is added to the output when all are done, so that no two threads write
        one row. Of blocks, where each part may have all rows, each has an output of its own, and these are added up.
        """
        if not shard.nnz:
            out[new] = 0
            return
        room, shared = _Room(scratch), shard.parts.shared
        way = _way(shard, out)
        if way == ADD:
            out[new] = 0
        carries = room.take((len(shared), out.shape[1]), out.dtype)
        carries.fill(0)
        output, column = _Output(out, way, new, carries, double), 0
        for matrices in self._panels(factors, room) if shard.panels else [factors]:
            self._sums(shard, matrices, output, column, room)
            column += matrices[0].shape[1]
        if (carried := np.flatnonzero(shared >= 0)).size:
            np.add.at(out, shared[carried] - shard.row_begin, carries[carried])

    def _sums(
        self, shard: HostShard, factors: Sequence[NDArray[np.floating]], output: _Output, column: int, room: _Room
    ) -> None:
        """Compute the columns of the output from `column` on that `factors` have."""
        out, way, new, carries, double = output
        bounds, shared = shard.parts
        columns, inputs = [*map(_constant, shard.indices)], [*map(_constant, factors)]
        lanes, fibres = lanes_of(factors[0], double), None
        if shard.fibres:
            fibres = *shard.fibres, columns.pop(0), inputs.pop(0)
        nonzeros = *shard.pieces, tuple(columns), _constant(shard.values)
        layout = shard.permutation, fibres, tuple(shard.blocks), shard.ahead
        matrices, origin = tuple(inputs), (shard.row_begin, column)
        empty = np.append(shard.pieces.rows[bounds[:-1] - 1] + np.int64(1 - shard.row_begin), 0)
        empty[0] = shard.pieces.rows[0] - shard.row_begin
        if new.stop > new.start:
            empty[0], empty[-1] = new.start, new.stop

        apart = shard.blocks.lows.size > 0  # rows recur in all parts
        copies = room.take((len(shared) - 1, *out.shape), out.dtype) if apart else ()
        turn = np.zeros(1, np.int64)

        def work(t: int) -> None:
            sums, parts = out, (turn, bounds, shared, carries, empty)
            if apart:
                span, one = slice(t, t + 2), slice(t, t + 1)
                if t:
                    sums = copies[t - 1]
                    sums.fill(0)
                parts = np.zeros(1, np.int64), bounds[span], shared[one], carries[one], empty[span]
            segmented(nonzeros, matrices, sums, origin, way, parts, *layout, *lanes)

        self._threads.each(len(shared) if apart else min(self._worth(shard, factors[0]), len(shared)), work)
        for copy in copies:
            out += copy

    def _worth(self, shard: HostShard, factor: NDArray[np.floating]) -> int:
        """Return how many threads to use: as many as make their starts and the work of one take least together."""
        work = WORK_SECONDS * shard.nnz * len(shard.indices) * factor.nbytes / max(1, len(factor))
        return max(1, min(self._threads.count, round(math.sqrt(work / START_SECONDS))))

    def _panels(self, factors: Sequence[NDArray[np.floating]], room: _Room) -> Sequence[Sequence[NDArray[np.floating]]]:
        """Return, for each panel of columns, matrices of these alone: a cache holds more of their rows."""
        kind, pieces = factors[0].dtype, [factor.view((np.void, PANEL)) for factor in factors]
        ends = np.cumsum([len(piece) for piece in pieces])
        panels = room.take((pieces[0].shape[1], int(ends[-1])), np.dtype((np.void, PANEL)))

        def copy(p: int) -> None:
            np.concatenate([piece[:, p] for piece in pieces], out=panels[p])

        self._threads.each(len(panels), copy)
        return [np.split(panel.view(kind).reshape(-1, PANEL // kind.itemsize), ends[:-1]) for panel in panels]


class Prefetched(Segmented):
    """Also fetches the factor rows of nonzeros to come: for matrices past a core's own cache."""

    name = "prefetched"

    def gains(self, share: Share) -> bool:
        return share.nnz > LEAST_TUNED and sum(share.lengths) * share.row_bytes > OWN_CACHE

    def make(self, columns: Sequence[Array], values: Array, share: Share, continues: bool) -> HostShard:
        return replace(super().make(columns, values, share, continues), ahead=_ahead(share, share.row_bytes))


class Panelled(Segmented):
    """Computes a part of the columns at a time, from copies of the matrices that hold these alone."""

    name, code = "panelled", "panelled"

    def gains(self, share: Share) -> bool:
        read = sum(share.lengths)
        worth = share.nnz > LEAST_TUNED and share.nnz >= LEAST_PANEL * read
        return worth and read * share.row_bytes > FAIR_CACHE and _has_panels(share)

    def bytes(self, share: Share, nnz: int) -> Bytes:
        usual = super().bytes(share, nnz)
        panels = sum(share.lengths) * share.row_bytes if nnz and _has_panels(share) else 0
        return usual._replace(running=usual.running + panels)

    def make(self, columns: Sequence[Array], values: Array, share: Share, continues: bool) -> HostShard:
        shard = super().make(columns, values, share, continues)
        return replace(shard, ahead=_ahead(share, PANEL), panels=True) if _has_panels(share) else shard


class Fibre(Segmented):
    """Multiplies by the first input mode's row once for each fibre: for nonzeros that share two indices."""

    name, code = "fibre", "fibre"

    def suits(self, share: Share) -> bool:
        return len(share.lengths) > 1

    def gains(self, share: Share) -> bool:
        rows = share.rows.stop - share.rows.start
        return share.nnz > LEAST_TUNED and share.nnz >= LEAST_FIBRE * rows * share.lengths[0]

    def make(self, columns: Sequence[Array], values: Array, share: Share, continues: bool) -> HostShard:
        shard = super().make(columns, values, share, continues)
        return replace(shard, fibres=cut_fibres(shard.indices[0], shard.pieces))


class Blocked(Segmented):
    """Takes blocks of the longest input matrix in turn, each small enough for the caches."""

    name = "blocked"

    def gains(self, share: Share) -> bool:
        rows, length = share.rows.stop - share.rows.start, share.lengths[longest(share.lengths)]
        blocks = -(-length // block_rows(share.row_bytes))
        return (
            share.nnz > LEAST_TUNED
            and length * share.row_bytes > LAST_CACHE
            and length >= rows * self._threads.count
            and share.nnz >= max(length // FETCHED, LEAST_BLOCK * blocks * rows)
        )

    def bytes(self, share: Share, nnz: int) -> Bytes:
        """See `Kernel`: making takes the keys of blocks, and an order; each thread but one has a copy of the output."""
        usual = super().bytes(share, nnz)
        copies = (self._threads.count - 1) * (share.rows.stop - share.rows.start) * share.stride * 8 if nnz else 0
        making = nnz * (16 + 4 * len(share.lengths) + share.dtype.itemsize)
        return usual._replace(making=usual.making + making, running=usual.running + copies)

    def make(self, columns: Sequence[Array], values: Array, share: Share, continues: bool) -> HostShard:
        if not len(values):
            return super().make(columns, values, share, continues)
        rows, indices, values = self._held(columns, values, share)
        inputs, values, pieces, blocks = blocked([rows, *indices], values, share.lengths, block_rows(share.row_bytes))
        parts = equal_parts(pieces, parts_of(values.size, self._threads.count), False)
        return replace(self._shard(rows, inputs, values, pieces, parts, share), blocks=blocks)


class Permuted(Segmented):
    """GenTen's MTTKRP-C (Phipps and Kolda, SIAM J. Sci. Comput. 41(3), 2019), the kernel of least memory.

    There is mode 0's copy of the nonzeros alone, and a permutation for each other mode.
    """

    name, code = "permuted", "permuted"

    def gains(self, share: Share) -> bool:
        """See `Kernel`: it is for those who ask for it."""
        return False

    def keeps_columns(self, share: Share) -> bool:
        """See `Kernel`: they serve several modes."""
        return True

    def bytes(self, share: Share, nnz: int) -> Bytes:
        """See `Kernel`: a mode but the first has a permutation alone, made by a sort of one or more passes."""
        usual = super().bytes(share, nnz)
        if not share.column:
            return usual
        pieces = 8 * most_pieces(nnz, share.rows.stop - share.rows.start)
        return Bytes(4 * nnz + pieces, 4 * nnz * (share.rows.stop > 1 << DIGIT_BITS), usual.running)

    def derive(self, shard: HostShard, share: Share) -> HostShard:
        assert shard.rows is not None
        inputs = [shard.rows, *shard.indices]
        rows = inputs.pop(share.column)
        order = stable_argsort([rows], [share.rows.stop - share.rows.start], NUMBER)
        pieces = cut(rows, order)
        parts = equal_parts(pieces, parts_of(shard.nnz, self._threads.count, TURNS), False)
        return replace(self._shard(rows, inputs, shard.values, pieces, parts, share), permutation=order)


def providers(device: CpuDevice) -> Sequence[Kernel]:
    """Return the kernels of the family; the first suits all nonzeros."""
    return [kind(device) for kind in (Segmented, Prefetched, Panelled, Fibre, Blocked, Permuted)]


class _Output(NamedTuple):
    """Where sums go: to rows of `out`, in a `way` of `vectors` (`new` rows have none so far), or to `carries`."""

    out: NDArray[np.floating]
    way: int
    new: slice
    carries: NDArray[np.float64]
    double: bool  # the precision of products and short sums


class _Room:
    """Arrays in scratch memory, one after the other; new pages would take longer than what is computed."""

    def __init__(self, scratch: NDArray[np.uint8] | None) -> None:
        self._memory, self._at = scratch, 0

    def take(self, shape: tuple[int, ...], dtype: np.dtype[Any]) -> NDArray[Any]:
        """Return an array of unset contents."""
        if self._memory is None:
            return np.empty(shape, dtype)
        begin, size = self._at, math.prod(shape) * dtype.itemsize
        self._at = begin + -(-size // LINE) * LINE
        return self._memory[begin : begin + size].view(dtype).reshape(shape)


def _ahead(share: Share, row_bytes: int) -> int:
    """Return the prefetch distance in nonzeros: longer where rows come out of memory, as much as fits the L1 cache."""
    if sum(share.lengths) * row_bytes <= LAST_CACHE:
        return NEAR
    return min(FAR, max(NEAR // 2, FETCHED_BYTES // (len(share.lengths) * row_bytes)))


def _has_panels(share: Share) -> bool:
    """Return whether rows are several whole panels."""
    return share.row_bytes > PANEL and share.row_bytes % PANEL == 0


def parts_of(nnz: int, threads: int, each: int = 1) -> int:
    """Return how many parts of so many nonzeros are worth it, at most so many for each thread."""
    return max(1, min(threads * each, nnz // SMALLEST))


def _constant(array: NDArray[Any]) -> NDArray[Any]:
    """Return an array as one that cannot be written to, as those of mapped files are: kernels are compiled once."""
    view = array.view()
    view.flags.writeable = False
    return view


def _way(shard: HostShard, out: NDArray[np.floating]) -> int:
    """Return how the first sum of a row is brought into the output."""
    if shard.permutation is not None or shard.blocks.lows.size:
        return ADD
    lines = out.ctypes.data % LINE == 0 and out.strides[0] % LINE == 0
    return PAST if lines and out.nbytes > CACHED and not shard.panels else STORE


def lanes_of(factor: NDArray[np.floating], double: bool = False) -> tuple[tuple[float, ...], tuple[float, ...] | None]:
    """Return what of a row is computed together, and what is left, as `segmented` takes them; see `vectors`."""
    lanes, widens = factor.shape[1] * factor.itemsize // LANE, double and factor.itemsize < 8
    # Powers of two: LLVM makes of other vectors code that takes twice as long.
    most = MOST_LANES if lanes % MOST_LANES in (0, 1, 2, 4) and not widens else MOST_LANES // 2
    most = min(most, 1 << lanes.bit_length() - 1)
    kind = 0.0 if widens else 0
    return (kind,) * most, (kind,) * (lanes % most) or None
