"""The host's cores as a device."""

from __future__ import annotations

import time
from collections import defaultdict
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import contextmanager
from dataclasses import replace
from typing import Any

import numpy as np
import psutil
import threadpoolctl
from numpy.typing import NDArray

from partitioner.sort import DIGIT_BITS, stable_argsort
from partitioner.threads import fair_threads

from ...parallel.mpi import Comm
from .. import rows as dense
from ..base import NOTHING, PERMUTED, Array, Clock, GatherName, Share
from .layout import (
    FETCHED,
    NARROW,
    NUMBER,
    WIDE,
    block_rows,
    blocked,
    cut,
    cut_fibres,
    equal_parts,
    index_type,
    longest,
    most_pieces,
)
from .threads import (
    BLOCKED,
    FIBRE,
    KERNELS,
    PANEL,
    PANELLED,
    PREFETCHED,
    SEGMENTED,
    HostShard,
    Threads,
    aligned,
    parts_of,
)
from .vectors import LANE, LINE

OWN_CACHE = 1 << 20  # bytes
FAIR_CACHE = 4 << 20  # bytes: of the last one, if all cores use it
LAST_CACHE = 16 << 20  # bytes: a share of it, as processors have many cores to one
NEAR, FAR, FETCHED_BYTES = 12, 24, 8 << 10  # nonzeros, and bytes of rows, from one to that whose rows are fetched
KERNEL_BYTES = 7 << 20  # that a compiled kernel takes
COMPILED = {PREFETCHED: SEGMENTED, BLOCKED: SEGMENTED}
"""The kernels that are another one's code."""
TURNS = 8  # of a thread: parts that it computes if no other is ahead of it and takes some of them
LEAST_TUNED = 1 << 19  # nonzeros: below this all kernels take milliseconds, and to compile another one takes seconds
LEAST_FIBRE = 1.5  # nonzeros for each pair of an output row and a row of the first input mode: on average, if any
LEAST_PANEL = 8  # nonzeros for each row that is copied into panels
LEAST_BLOCK = 2  # nonzeros for each output row and block


class CpuBackend:
    """See `Backend`. Streaming here copies shards from a memory-mapped store while others are computed."""

    name = "cpu"
    xp = np
    runtime_bytes = 0
    most_nonzeros = (1 << 32) - 1
    repeatable: tuple[str, ...] = KERNELS
    steady = False
    keeps_scratch = True
    roundings: Mapping[GatherName, Callable[[Array, Array], object]] = {}

    def __init__(self, comm: Comm, threads: int | None = None) -> None:
        self.threads = threads or fair_threads(comm)
        self.description = f"CPU, {self.threads} thread{'s' * (self.threads > 1)}"
        self._threads = Threads(self.threads)
        threadpoolctl.threadpool_limits(self.threads)  # BLAS beside our own threads would fight them for the cores

    def kernels(self, order: int) -> Sequence[str]:
        """See `Backend`."""
        return tuple(name for name in KERNELS if order > 2 or name != FIBRE)

    def stride(self, rank: int, itemsize: int) -> int:
        """See `Backend`: a single lane, or whole lines of the caches."""
        unit = (LANE if rank * itemsize <= LANE else LINE) // itemsize
        return -(-rank // unit) * unit

    def candidates(self, share: Share) -> tuple[str, ...]:
        """See `Backend`: other kernels pay where matrices exceed caches, or where nonzeros share rows, if at all."""
        if share.nnz <= LEAST_TUNED:
            return (SEGMENTED,)
        rows, which = share.rows.stop - share.rows.start, longest(share.lengths)
        length = share.lengths[which]
        blocks = -(-length // block_rows(share.row_bytes))
        read = sum(share.lengths)  # rows of the input factor matrices
        tried = {
            SEGMENTED: True,
            PREFETCHED: read * share.row_bytes > OWN_CACHE,
            PANELLED: read * share.row_bytes > FAIR_CACHE and _has_panels(share) and share.nnz >= LEAST_PANEL * read,
            FIBRE: len(share.lengths) > 1 and share.nnz >= LEAST_FIBRE * rows * share.lengths[0],
            BLOCKED: length * share.row_bytes > LAST_CACHE
            and length >= rows * self.threads
            and share.nnz >= max(length // FETCHED, LEAST_BLOCK * blocks * rows),
        }
        return tuple(name for name, worthwhile in tried.items() if worthwhile)

    def host_runtime_bytes(self, kernels: Collection[str]) -> int:
        """See `Backend`: each is compiled once."""
        return KERNEL_BYTES * len({COMPILED.get(name, name) for name in kernels})

    def memory(self, local_ranks: int) -> int:
        """See `Backend`: an equal share of what is free on this node."""
        free: int = psutil.virtual_memory().available
        return free * 9 // 10 // local_ranks

    def rest(self) -> None:
        """See `Backend`: nothing is kept."""

    def peak_bytes(self) -> None:
        """See `Backend`: there is no memory but the host's."""

    def empty(self, shape: tuple[int, ...], dtype: Any) -> Array:
        """See `Backend`."""
        array: Array = aligned(shape, np.dtype(dtype))
        return array

    def zeros(self, shape: tuple[int, ...], dtype: Any) -> Array:
        """See `Backend`."""
        array = self.empty(shape, dtype)
        array.fill(0)
        return array

    def to_device(self, array: NDArray[Any]) -> Array:
        """See `Backend`."""
        return array

    def to_host(self, array: Array) -> NDArray[Any]:
        """See `Backend`."""
        return np.asarray(array)

    def shard(self, columns: Sequence[Array], values: Array, share: Share, kernel: str, continues: bool) -> HostShard:
        """See `Backend`: the columns themselves, also those of a file, of what is streamed or serves several modes."""
        wide = self.keeps_columns(replace(share, kernels=(kernel,)))
        kind, first = WIDE if wide else NARROW, share.rows.start
        rows, values = np.ascontiguousarray(columns[0], WIDE), np.ascontiguousarray(values)
        indices = [np.ascontiguousarray(column, kind) for column in columns[1:]]
        if kernel == BLOCKED and values.size:
            order = blocked([rows, *indices], values, share.lengths, block_rows(share.row_bytes))
            inputs, values, pieces, blocks = order
            parts = equal_parts(pieces, parts_of(values.size, self.threads), False)
            return HostShard(inputs, values, rows if wide else None, pieces, parts, first, blocks=blocks)
        pieces = cut(rows)
        parts = equal_parts(pieces, parts_of(values.size, self.threads, TURNS), continues)
        fibres = cut_fibres(indices[0], pieces) if kernel == FIBRE else None
        panels = kernel == PANELLED and _has_panels(share)
        ahead = _ahead(share, PANEL if panels else share.row_bytes) if panels or kernel == PREFETCHED else 0
        return HostShard(indices, values, rows if wide else None, pieces, parts, first, ahead, panels, fibres)

    def permuted(self, shard: HostShard, share: Share) -> HostShard:
        """See `Backend`."""
        assert shard.rows is not None
        inputs = [shard.rows, *shard.indices]
        rows = inputs.pop(share.column)
        length = share.rows.stop - share.rows.start
        order = stable_argsort([rows], [length], NUMBER)
        pieces = cut(rows, order)
        parts = equal_parts(pieces, parts_of(shard.nnz, self.threads, TURNS), False)
        return HostShard(inputs, shard.values, rows, pieces, parts, share.rows.start, permutation=order)

    def unload(self, shard: HostShard) -> HostShard:
        """See `Backend`."""
        return shard

    def shard_bytes(self, share: Share, nnz: int) -> int:
        """See `Backend`."""
        pieces = 8 * most_pieces(nnz, share.rows.stop - share.rows.start)
        if share.column:
            return 4 * nnz + pieces
        wide, inputs = self.keeps_columns(share), len(share.lengths)
        indices = WIDE.itemsize * (inputs + 1) if wide else NARROW.itemsize * inputs
        return nnz * (indices + share.dtype.itemsize) + pieces

    def keeps_columns(self, share: Share) -> bool:
        """See `Backend`: of what is streamed or serves several modes, and of long modes; others fit 16 bits."""
        return share.streamed or PERMUTED in share.kernels or index_type(share) == WIDE

    def packing_bytes(self, share: Share, nnz: int) -> int:
        """See `Backend`: columns that are copied; a permutation between two passes of a sort; for blocks, also keys."""
        inputs = len(share.lengths)
        columns = 0 if self.keeps_columns(share) else WIDE.itemsize * (inputs + 1)
        if BLOCKED in share.kernels:
            return nnz * (columns + 16 + 4 * inputs + share.dtype.itemsize)
        return nnz * (columns + 4 * (share.column > 0 and share.rows.stop > 1 << DIGIT_BITS))

    def scratch_bytes(self, share: Share, nnz: int) -> int:
        """See `Backend`."""
        carries = self.threads * TURNS * 2 * share.stride * 8
        copies = (self.threads - 1) * (share.rows.stop - share.rows.start) if BLOCKED in share.kernels else 0
        panels = sum(share.lengths) if PANELLED in share.kernels and _has_panels(share) else 0
        return carries + max(copies * share.stride * 8, panels * share.row_bytes) if nnz else 0

    def slot(self, shares: Sequence[Share], capacity: int, clock: Clock) -> HostSlot:
        """See `Backend`."""
        return HostSlot(shares, capacity, clock)

    def clock(self) -> HostClock:
        """See `Backend`."""
        return HostClock()

    def mttkrp(self, shard: HostShard, factors: Sequence[Array], out: Array, new: slice = NOTHING) -> None:
        """See `Backend`."""
        if shard.nnz:
            self._threads.mttkrp(shard, factors, out, new)
        else:
            out[new] = 0

    def dense_blocks(self, rank: int) -> int:
        """See `Backend`."""
        return 2

    def solve(
        self, source: Array, inverse: Array, target: Array, gram: Array, largest: Array, dots: Array | None = None
    ) -> None:
        """See `Backend`."""
        dense.solve(np, source, inverse, target, gram, largest, dots)

    def synchronize(self) -> None:
        """See `Backend`."""


def _ahead(share: Share, row_bytes: int) -> int:
    """Return how many nonzeros before its own a row is fetched: sooner out of memory, but within the first cache."""
    if sum(share.lengths) * row_bytes <= LAST_CACHE:
        return NEAR
    return min(FAR, max(NEAR // 2, FETCHED_BYTES // (len(share.lengths) * row_bytes)))


def _has_panels(share: Share) -> bool:
    """Return whether rows are several whole panels."""
    return share.row_bytes > PANEL and share.row_bytes % PANEL == 0


class HostSlot:
    """See `Slot`. A thread of its own copies, so that copying and computing overlap as they do on a GPU."""

    def __init__(self, shares: Sequence[Share], capacity: int, clock: Clock) -> None:
        self._kinds = [index_type(share) for share in shares]
        self._indices = [np.empty(capacity, WIDE) for _ in shares[0].lengths]
        self._values = np.empty(capacity, shares[0].dtype)
        self._copier = ThreadPoolExecutor(1, "amped-copy")
        self._clock = clock
        self._filled: Future[HostShard]

    def fill(self, shard: HostShard, mode: int) -> None:
        """See `Slot`."""
        self._filled = self._copier.submit(self._copy, shard, mode)

    def _copy(self, shard: HostShard, mode: int) -> HostShard:
        nnz = shard.nnz
        indices = [column.view(self._kinds[mode])[:nnz] for column in self._indices]
        with self._clock.span("copy", mode):
            for source, target in zip(shard.indices, indices, strict=True):
                np.copyto(target, source, casting="unsafe")
            np.copyto(self._values[:nnz], shard.values, casting="same_kind")
        return replace(shard, indices=indices, values=self._values[:nnz])

    def shard(self) -> HostShard:
        """See `Slot`."""
        return self._filled.result()

    def release(self) -> None:
        """See `Slot`. Work on the host is done when it returns, so there is nothing to note."""


class HostClock:
    """See `Clock`."""

    def __init__(self) -> None:
        self._seconds: dict[tuple[str, int], float] = defaultdict(float)

    @contextmanager
    def span(self, kind: str, mode: int) -> Iterator[None]:
        """See `Clock`."""
        start = time.perf_counter()
        try:
            yield
        finally:
            self._seconds[kind, mode] += time.perf_counter() - start

    def collect(self) -> dict[tuple[str, int], float]:
        """See `Clock`."""
        seconds, self._seconds = dict(self._seconds), defaultdict(float)
        return seconds
