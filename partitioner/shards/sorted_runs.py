"""External merge sort over all ranks: sorted runs of nonzeros, in memory or spilled to files.

A run is a sorted piece of the input. Runs are numbered in input order, by rank, so a stable merge gives the same result
for any number of runs and ranks. To merge, all ranks cut all runs at the same keys into slices of bounded size. Each
rank gets an equal, contiguous share of the slices and sorts them one by one.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from itertools import chain, zip_longest
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from ..array_types import FloatDType
from ..host.jit import jit
from ..host.ranks import Ranks
from ..sorting.sort import Sort, Sorted, SortOptions, sort_nonzeros
from ..sorting.tables import DiskTable, Indices, MemoryTable, Nonzeros, Table, Values, mapped

SAMPLES = 4096  # keys sampled per run
MIN_SLICES = 16  # per rank, to balance the ranks' shares


class MergedSlice(NamedTuple):
    """A slice of the merged order: entries `begin` to `end` of every run of all ranks.

    `as_is`: the concatenated parts of the runs are already sorted, for example because all keys are equal. `more`: the
    next slice continues the same key.
    """

    begin: NDArray[np.int64]
    end: NDArray[np.int64]
    as_is: bool = False
    more: bool = False

    @property
    def size(self) -> int:
        """The number of nonzeros."""
        return int((self.end - self.begin).sum())


class SortedRun(NamedTuple):
    """Sorted nonzeros: table, position in it, number, and every `step`-th sort key."""

    table: Table
    begin: int
    size: int
    step: int
    samples: Indices


@dataclass
class Runs:
    """Sorted runs and their merge. All methods except `add` are collective."""

    modes: Sequence[int]  # sort key, the most significant first
    order: int
    dtype: FloatDType  # of the values
    limit: int  # maximum number of nonzeros that a rank merges at once
    ranks: Ranks
    threads: int
    files: DiskTable | None = None  # for spilled runs
    sort: Sort = sort_nonzeros
    keep_zeros: bool = False
    duplicates: int = 0  # nonzeros that this rank has merged
    zeros: int = 0  # zero sums that this rank has dropped
    _runs: list[SortedRun] = field(default_factory=list)

    @property
    def count(self) -> int:
        """The number of runs of this rank."""
        return len(self._runs)

    def add(self, columns: Indices, values: Values, *, spill: bool = False, in_order: bool = False) -> None:
        """Sort nonzeros and append them as a run; takes ownership of the arrays."""
        if not in_order:
            columns, values, *_ = self._sorted(columns, values, merge=False)
        table: Table = MemoryTable(columns, values)
        begin = 0
        if spill and self.files is not None:
            table, begin = self.files, sum(run.size for run in self._runs)
            table.write(begin, columns, values)
        step = max(1, values.size // SAMPLES)
        self._runs.append(SortedRun(table, begin, values.size, step, columns[list(self.modes), ::step]))

    def remove(self) -> None:
        """Discard the runs and delete their files."""
        self._runs.clear()
        if self.files is not None:
            self.files.remove()

    def _sorted(self, columns: Indices, values: Values, merge: bool) -> Sorted:
        lengths = [int(column.max()) + 1 for column in columns]
        options = SortOptions(merge=merge, keep_zeros=self.keep_zeros, overwrite=True, threads=self.threads)
        return self.sort(columns, values, self.modes, lengths, **options)

    def shares(self) -> list[list[MergedSlice]]:
        """Cut the merged order into slices. Return the slices of each rank, with about equal numbers of nonzeros."""
        keys, total = self._splitters()
        begin, end = self.spans(keys)
        sizes = list(chain.from_iterable(self.ranks.allgather([run.size for run in self._runs])))
        # Intervals: below the first key, equal to it, between the first and second, equal to the second, ...
        bounds = np.empty((len(sizes), 2 * begin.shape[1] + 2), np.int64)
        bounds[:, 0], bounds[:, 1:-1:2], bounds[:, 2:-1:2], bounds[:, -1] = 0, begin, end, sizes
        atoms = np.diff(bounds).sum(axis=0)
        middle = np.cumsum(atoms) - atoms / 2
        owners = np.minimum(middle * self.ranks.size // max(1, total), self.ranks.size - 1).astype(int)
        shares: list[list[MergedSlice]] = [[] for _ in range(self.ranks.size)]
        for rank, share in enumerate(shares):
            mine = np.flatnonzero(owners == rank)
            for first, last in _grouped(mine, atoms, self.limit):
                part = MergedSlice(bounds[:, first], bounds[:, last + 1], as_is=first == last and first % 2 == 1)
                share.extend(_cut(part, self.limit) if part.as_is else [part])
        return shares

    def shares_at(self, offsets: NDArray[np.int64], keys: Indices, as_is: bool = False) -> list[list[MergedSlice]]:
        """Cut the merged order at `offsets`, ascending from 0 to the number of nonzeros: one slice per rank.

        `keys` (modes, ranks - 1): each inner offset lies within, or directly before, the nonzeros with its key.
        """
        begin, end = self.spans(keys)
        sizes = list(chain.from_iterable(self.ranks.allgather([run.size for run in self._runs])))
        # Nonzeros of equal key are ordered by run.
        before = np.cumsum(end - begin, axis=0) - (end - begin)
        cuts = begin + np.clip(offsets[1:-1] - begin.sum(axis=0) - before, 0, end - begin)
        bounds = np.column_stack([np.zeros(len(sizes), np.int64), cuts, sizes])
        return [[MergedSlice(bounds[:, r], bounds[:, r + 1], as_is)] for r in range(self.ranks.size)]

    def _splitters(self) -> tuple[Indices, int]:
        """Return keys that divide all nonzeros into small parts, (modes, n), and the total number of nonzeros."""
        mine = [(run.size, run.step, run.samples) for run in self._runs]
        everyone = list(chain.from_iterable(self.ranks.allgather(mine)))
        total = sum(size for size, _, _ in everyone)
        if not total:
            return np.empty((len(self.modes), 0), np.int32), 0
        samples = np.concatenate([samples for _, _, samples in everyone], axis=1)
        weights = np.concatenate([np.full(samples.shape[1], step) for _, step, samples in everyone])
        order = np.lexsort(samples[::-1])
        parts = max(MIN_SLICES * self.ranks.size, 4 * -(-total // self.limit))
        at = np.searchsorted(np.cumsum(weights[order]), total * np.arange(1, parts) // parts)
        keys: Indices = np.unique(samples[:, order[np.minimum(at, order.size - 1)]], axis=1)
        return keys, total

    def spans(self, keys: Indices) -> tuple[NDArray[np.int64], NDArray[np.int64]]:
        """Return where nonzeros with each key (modes, n) begin and end in every run of all ranks, (runs, n) each."""
        mine = [[self._span(run, key) for key in keys.T] for run in self._runs]
        everyone = list(chain.from_iterable(self.ranks.allgather(mine)))
        bounds = np.array(everyone, np.int64).reshape(len(everyone), keys.shape[1], 2)
        return bounds[:, :, 0], bounds[:, :, 1]

    def _span(self, run: SortedRun, key: Indices) -> tuple[int, int]:
        # The samples narrow the search: each bound lies between two of them.
        ranges = [(max(0, s - 1) * run.step, min(s * run.step, run.size)) for s in _span(run.samples, key)]
        spans = []
        for low, high in dict.fromkeys(ranges):
            parts = [run.table.read_column(m, run.begin + low, run.begin + high) for m in self.modes]
            spans.append([low + end for end in _span(parts, key)])
        return spans[0][0], spans[-1][1]

    def _new_arrays(self, nonzeros: int) -> Nonzeros:
        columns = mapped(self.order * nonzeros, np.dtype(np.int32))
        return columns.reshape(self.order, nonzeros), mapped(nonzeros, self.dtype)

    def pieces(self, shares: Sequence[Sequence[MergedSlice]], merge: bool = False) -> Iterator[Nonzeros]:
        """Merge this rank's slices one by one; all ranks proceed in step.

        With `merge`, sum nonzeros with equal indices, and drop zero sums unless they are kept.
        """
        total = 0.0
        for slices in zip_longest(*shares):
            columns, values = self._exchanged(slices)
            mine = slices[self.ranks.rank]
            if mine is None or not mine.size:
                continue
            if not mine.as_is:
                columns, values, _, duplicates, zeros = self._sorted(columns, values, merge)
                self.duplicates, self.zeros = self.duplicates + duplicates, self.zeros + zeros
            elif merge:
                total = add_up(total, values)
                self.duplicates += values.size - (not mine.more)
                if mine.more:
                    continue
                stays = int(total != 0 or self.keep_zeros)
                self.zeros += 1 - stays
                columns, values = columns[:, :stays], np.full(stays, total, self.dtype)
                total = 0.0
            yield columns, values
            del columns, values  # free them before the next slice

    def _exchanged(self, slices: Sequence[MergedSlice | None]) -> Nonzeros:
        """Exchange one slice per rank. Return this rank's nonzeros in the order of the runs."""
        ranks, mine = self.ranks, slices[self.ranks.rank]
        firsts = np.concatenate([[0], np.cumsum(ranks.allgather(len(self._runs)))])
        sizes = np.zeros(firsts[-1], np.int64) if mine is None else mine.end - mine.begin
        starts = np.concatenate([[0], np.cumsum(sizes)])[firsts]
        columns, values = self._new_arrays(int(starts[-1]))
        local = slice(firsts[ranks.rank], firsts[ranks.rank + 1])
        for shift in range(ranks.size):
            to, source = (ranks.rank + shift) % ranks.size, (ranks.rank - shift) % ranks.size
            target = slice(starts[source], starts[source + 1])
            part = slices[to]
            spans = [] if part is None else list(zip(part.begin[local], part.end[local], strict=True))
            if not shift:
                self._read(spans, columns[:, target], values[target])
                continue
            outgoing = self._new_arrays(int(sum(end - begin for begin, end in spans)))
            self._read(spans, *outgoing)
            for k in range(self.order):
                ranks.swap(outgoing[0][k], to, columns[k, target], source)
            ranks.swap(outgoing[1], to, values[target], source)
        return columns, values

    def _read(self, spans: Sequence[tuple[int, int]], columns: Indices, values: Values) -> None:
        at = 0
        for run, (begin, end) in zip(self._runs, spans, strict=False):
            stop = at + int(end - begin)
            run.table.read(run.begin + int(begin), columns[:, at:stop], values[at:stop])
            at = stop


def _span(columns: Sequence[Indices] | Indices, key: Indices) -> tuple[int, int]:
    """Return the begin and end of a key in sorted columns."""
    low, high = 0, columns[0].size
    for column, index in zip(columns, key, strict=True):
        part = column[low:high]
        low, high = low + int(np.searchsorted(part, index, "left")), low + int(np.searchsorted(part, index, "right"))
    return low, high


def _grouped(atoms: NDArray[np.int64], sizes: NDArray[np.int64], limit: int) -> Iterator[tuple[int, int]]:
    """Group consecutive atoms of up to `limit` nonzeros; yield the first and last atom of each group."""
    first = last = -1
    total = 0
    for atom in atoms.tolist():
        if first >= 0 and total + sizes[atom] > limit:
            yield first, last
            first = -1
        if first < 0:
            first, total = atom, 0
        last, total = atom, total + int(sizes[atom])
    if first >= 0:
        yield first, last


def _cut(part: MergedSlice, limit: int) -> Iterator[MergedSlice]:
    """Cut a slice of equal keys into slices of at most `limit` nonzeros, in run order."""
    ends = np.cumsum(part.end - part.begin)
    total = int(ends[-1])
    for start in range(0, total, limit):
        stop = min(start + limit, total)
        begin, end = (np.clip(part.end - (ends - at), part.begin, part.end) for at in (start, stop))
        yield MergedSlice(begin, end, as_is=True, more=stop < total)


@jit
def add_up(total, values):  # type: ignore[no-untyped-def]
    """Add values to a sum one by one."""
    for value in values:
        total += np.float64(value)
    return total
