"""Synthetic sparse tensors with the shapes of the FROSTT collection; each rank draws its own share on its device.

The same seed gives the same tensor on any number of ranks. Coordinates drawn twice stay two nonzeros, also in the norm;
MTTKRPs equal those of the sum.
"""

from __future__ import annotations

import copy
import math
import time
from collections.abc import Iterator
from contextlib import contextmanager
from types import ModuleType
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from amped.backend.device import Array
from amped.operators.placement import Loading, nonzero_bytes
from amped.operators.sources.described import DescribedSparse
from amped.parallel.mpi import Comm
from partitioner.array_types import FloatDType, Floats
from partitioner.shards.partition import CountedRows, Cut, cut_mode, mode_order
from partitioner.tensors.sparse import SparseTensor
from partitioner.tensors.value_range import ValueRange

from .counter_rng import WHOLE, Recipe
from .stored import tensor

SHAPES: dict[str, tuple[tuple[int, ...], int]] = {
    "nell2": ((12092, 9184, 28818), 76_879_419),
    "enron": ((6066, 5699, 244268, 1176), 54_202_099),
    "uber": ((183, 24, 1140, 1717), 3_309_490),
    "lbnl": ((1605, 4198, 1631, 4209, 868131), 1_698_825),
    "chicago": ((6186, 24, 77, 32), 5_330_673),
    "nips": ((2482, 2862, 14036, 17), 3_101_609),
    "delicious": ((532924, 17262471, 2480308, 1443), 140_126_181),
    "amazon": ((4821207, 1774269, 1805187), 1_741_809_018),
    "patents": ((46, 239172, 239172), 3_596_640_708),
    "reddit": ((8211298, 176962, 8116559), 4_687_474_081),
    "twitch": ((15524309, 6161666, 783865, 6103, 6103), 500_000_000),
    "amazon4": ((4821207, 1774269, 1805187), 435_452_254),
    "patents4": ((46, 239172, 239172), 899_160_177),
    "reddit4": ((8211298, 176962, 8116559), 1_171_868_520),
    "twitch4": ((15524309, 6161666, 783865, 6103, 6103), 125_000_000),
    "brainq": ((60, 70365, 9), 11_000_000),
    "nell1": ((2902330, 2143368, 25495389), 143_599_552),
    "flickr": ((319686, 28153045, 1607191, 731), 112_890_310),
    "uber393k": ((183, 24, 874, 1247), 353_486),
    "deli": ((532924, 17262471, 2480308), 140_126_181),
    "genten": ((30000, 40000, 50000), 10_000_000),
    "one-row": ((1, 50000, 60000), 50_000_000),
    "heavy-row": ((100_000, 50_000, 60_000), 50_000_000),
}
HEAVY = {"heavy-row": 0.6}  # share of the nonzeros in one row
BLOCKS = {"numpy": 1 << 20, "cupy": 1 << 25}  # nonzeros drawn together
BUCKET = 1 << 27  # nonzeros sorted together
BINS = 4096  # bins in which a row longer than a bucket is cut
BLOCK_BYTES, BUCKET_BYTES = 100, 56  # scratch bytes per nonzero of a block and of a bucket


def recipe(name: str, nonzeros: int | None = None, skew: float = 0.6, integers: bool = False, seed: int = 1) -> Recipe:
    """Return the recipe of a named shape."""
    lengths, own = SHAPES[name]
    return Recipe(lengths, nonzeros or own, skew, HEAVY.get(name, 0.0), integers, seed)


class Buckets(NamedTuple):
    """Buckets in which a rank's nonzeros of a mode are sorted."""

    keys: NDArray[np.int64]  # the least of each bucket; see `SyntheticSource._keys`
    offsets: NDArray[np.int64]  # where each bucket begins among the rank's nonzeros, and the end


class SyntheticSource(DescribedSparse):
    """A tensor drawn from a recipe in a backend's memory. See `amped.operators.sources.protocols.SparseSource`.

    Of a row that several ranks share, each takes a contiguous range of the row's nonzeros, ordered by number. `xp` is
    NumPy or CuPy; `block` nonzeros are drawn together, and `bucket` sorted together.
    """

    duplicates = zeros = 0
    path = labels = None
    stored = False
    value_dtype = np.dtype(np.float32)  # holds all of them exactly

    def __init__(
        self, recipe: Recipe, comm: Comm, xp: ModuleType, block: int | None = None, bucket: int = BUCKET
    ) -> None:
        self.recipe, self.shape, self.nnz = recipe, recipe.lengths, recipe.nonzeros
        self.value_range = ValueRange(1, WHOLE, 1) if recipe.integers else ValueRange(2.0**-24, 1, 0)
        self._comm, self.xp = comm, xp
        self._rng = recipe.rng(xp)
        self._block, self._bucket = block or BLOCKS[xp.__name__], bucket
        self._rows: dict[int, CountedRows] = {}
        self.counting: dict[int, float] = {}  # seconds of counting each mode's rows, for all groups of ranks
        self.seconds = {"count": 0.0, "draw": 0.0, "sort": 0.0}  # so far, of each step
        self.norm = math.sqrt(sum(self._squares(part) for part in self._parts()))

    def on(self, comm: Comm) -> SyntheticSource:
        """Return the same tensor for another group of ranks."""
        other = copy.copy(self)
        other._comm, other.seconds = comm, dict.fromkeys(self.seconds, 0.0)
        return other

    def used(self, mode: int) -> int:
        """See `SparseSource`."""
        return int(np.count_nonzero(np.diff(self.rows(mode).offsets)))

    def cut(self, mode: int, parts: int, targets: Array | None = None) -> Cut:
        """See `SparseSource`."""
        return cut_mode(self.rows(mode), self.shape[mode], parts, targets)

    def load(self, mode: int, cut: Cut, dtype: FloatDType, keep: int | None = None) -> Iterator[Array]:
        """See `SparseSource`: arrays of the backend, sorted by row and by the first input mode."""
        begin, end = (int(cut.nonzeros[self._comm.rank + k]) for k in (0, 1))
        with self._timed("draw"):
            buckets = self._buckets(mode, begin, end)
            columns = self._drawn(mode, begin, end, buckets, dtype)
        with self._timed("sort"):
            for a, b in zip(buckets.offsets[:-1], buckets.offsets[1:], strict=True):
                order = self.xp.argsort(self._keys(mode, columns[0][a:b], columns[1][a:b]), kind="stable")
                for column in columns:
                    column[a:b] = column[a:b][order]
                del order
        self._release()
        yield from columns

    def tensor(self) -> SparseTensor | None:
        """See `SparseSource`: for small tensors, with duplicates summed."""
        if self._comm.rank:
            return None
        return tensor(self.recipe)

    def loading(self, ranks: int, dtype: FloatDType, on_host: bool) -> Loading:
        """See `SparseSource`."""
        return Loading(streamed=nonzero_bytes(len(self.shape), dtype) if on_host else 0)

    def stay_on_device(self) -> None:
        """See `SparseSource`: nothing is kept there."""

    placed = leave_device = stay_on_device

    def loading_bytes(self, nonzeros: int, dtype: FloatDType) -> int:
        """Return the bytes of scratch memory on the device that loading `nonzeros` nonzeros of a mode takes."""
        columns = nonzeros * nonzero_bytes(len(self.shape), dtype)
        working = BLOCK_BYTES * min(self._block, self.nnz), BUCKET_BYTES * min(self._bucket, nonzeros)
        return columns + max(working)

    def rows(self, mode: int) -> CountedRows:
        """Count how many nonzeros each row of a mode has."""
        if mode not in self._rows:
            before = self.seconds["count"]
            with self._timed("count"):
                total = np.zeros(self.shape[mode], np.int64)
                for part in self._parts():
                    total += self._rng.counts(mode, part)
                self._rows[mode] = CountedRows(total)
            self.counting[mode] = self.seconds["count"] - before
        return self._rows[mode]

    def _parts(self) -> Iterator[range]:
        return (range(p, min(p + self._block, self.nnz)) for p in range(0, self.nnz, self._block))

    def _squares(self, part: range) -> float:
        wide = self._rng.values(part, np.dtype(np.float64))
        return float(self.xp.square(wide).sum())

    def _keys(self, mode: int, rows: Array, first: Array) -> Array:
        """Return sort keys: by row, then by the first input mode's index."""
        return rows.astype(np.int64) * self.shape[mode_order(len(self.shape), mode)[1]] + first

    def _buckets(self, mode: int, begin: int, end: int) -> Buckets:
        """Cut this rank's nonzeros between rows, and rows that are too long between first input indices."""
        rows, width = self.rows(mode), self.shape[mode_order(len(self.shape), mode)[1]]
        keys, starts, at = [], [], begin
        while at < end:
            row = rows.row(at)
            stop = end if end <= at + self._bucket else rows.span(at + self._bucket)[0]
            inner = [(0, 0)]
            if stop <= at:
                stop = min(end, rows.span(at)[1])
                inner = self._inner_cuts(mode, begin, end, row)
            keys += [row * width + first for first, _ in inner]
            starts += [at - begin + before for _, before in inner]
            at = stop
        return Buckets(np.array(keys, np.int64), np.array([*starts, end - begin], np.int64))

    def _inner_cuts(self, mode: int, begin: int, end: int, row: int) -> list[tuple[int, int]]:
        """Cut this rank's part of a row; return each piece's first input index and the nonzeros before it."""
        inner = mode_order(len(self.shape), mode)[1]
        width = -(-self.shape[inner] // BINS)
        counts = np.zeros(-(-self.shape[inner] // width), np.int64)
        for numbers, rows in self._mine(mode, begin, end):
            index = self._rng.indices(inner, numbers[rows == row])
            counts += self._host(self.xp.bincount(index // width, minlength=counts.size))
        cuts, ends = [(0, 0)], np.cumsum(counts)
        for b in range(1, counts.size):
            if ends[b] - cuts[-1][1] > self._bucket:
                cuts.append((b * width, int(ends[b - 1])))
        return cuts

    def _mine(self, mode: int, begin: int, end: int) -> Iterator[tuple[Array, Array]]:
        """Yield the numbers and rows of this rank's nonzeros of a mode, in the order of their numbers."""
        if begin == end:
            return
        xp, counted = self.xp, self.rows(mode)
        seen = {counted.row(at): 0 for at in (begin, end - 1)}
        first, last = min(seen), max(seen)
        for part in self._parts():
            rows = self._rng.indices(mode, part)
            numbers = xp.flatnonzero((rows >= first) & (rows <= last))
            rows = rows[numbers]
            for row in seen:
                of_row = xp.flatnonzero(rows == row)
                # Of a shared row, earlier ranks take the first nonzeros and later ranks the last.
                low, high = (max(0, bound - int(counted.offsets[row]) - seen[row]) for bound in (begin, end))
                seen[row] += of_row.size
                if low or high < of_row.size:
                    keep = xp.ones(rows.size, bool)
                    keep[xp.concatenate((of_row[:low], of_row[high:]))] = False
                    numbers, rows = numbers[keep], rows[keep]
            if rows.size:
                yield numbers + part.start, rows

    def _drawn(self, mode: int, begin: int, end: int, buckets: Buckets, dtype: FloatDType) -> list[Array]:
        """Return this rank's columns and values, ordered by bucket."""
        xp, modes = self.xp, mode_order(len(self.shape), mode)
        columns = [xp.empty(end - begin, kind) for kind in (*(np.int32 for _ in modes), dtype)]
        filled = buckets.offsets[:-1].copy()
        for numbers, rows in self._mine(mode, begin, end):
            drawn = [rows, *(self._rng.indices(m, numbers) for m in modes[1:]), self._rng.values(numbers, dtype)]
            counts = np.array([rows.size])
            if filled.size > 1:
                keys = self._keys(mode, *drawn[:2])
                bucket = (xp.searchsorted(xp.asarray(buckets.keys), keys, "right") - 1).astype(np.uint16)
                del keys
                order = xp.argsort(bucket, kind="stable")
                counts = self._host(xp.bincount(bucket, minlength=filled.size))
                drawn = [column[order] for column in drawn]
            ends = np.cumsum(counts)
            for b in np.flatnonzero(counts):
                for target, column in zip(columns, drawn, strict=True):
                    target[filled[b] : filled[b] + counts[b]] = column[ends[b] - counts[b] : ends[b]]
            filled += counts
        return columns

    def _host(self, array: Array) -> Floats:
        return np.asarray(array if self.xp is np else array.get())

    def _release(self) -> None:
        """Free pooled memory blocks, whose sizes will not recur."""
        if self.xp is not np:
            self.xp.get_default_memory_pool().free_all_blocks()

    @contextmanager
    def _timed(self, step: str) -> Iterator[None]:
        start = time.perf_counter()
        yield
        if self.xp is not np:
            self.xp.cuda.get_current_stream().synchronize()
        self.seconds[step] += time.perf_counter() - start
