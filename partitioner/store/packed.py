"""Nonzeros whose indices fit one 64-bit key each: sorted once and written as a store in little memory.

The index of mode 0 is in the leading bits of a key, so ascending keys are in lexicographic order. A hundred million
counted events take 0.8 GB and are sorted in place. Summed values are sorted together with the two halves of their keys,
like nonzeros of two modes. The copy for another mode is written range of rows by range of rows: each range scans all
keys and picks its own, which are in the right order already.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from concurrent.futures import Executor, Future, ThreadPoolExecutor
from contextlib import ExitStack
from functools import partial
from itertools import pairwise
from pathlib import Path
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from ..array_types import FloatDType, Floats
from ..host import checksums
from ..host.jit import jit
from ..host.threads import parallel_map
from ..shards.partition import mode_order
from ..sorting.sort import SortOptions, sort_bytes, sort_nonzeros
from ..tensors.labels import Labels
from ..tensors.sparse import check_merged
from ..tensors.value_range import ValueRange, ends, grain, norm, squares
from . import format as store

BITS = 63
HALF = 31  # bits of the lower half of a key, and maximum bits of the upper half
LOWER = (1 << HALF) - 1
RANGE = 1 << 22  # maximum number of nonzeros per range of rows and thread
RANGES = 16  # minimum number per mode, unless ranges have fewer than `PART // 16` nonzeros
PART = 1 << 22  # keys that a thread scans at a time
EXACT = 1 << 24  # counts up to here are exact in single precision

Keys = NDArray[np.int64]
Piece = tuple[Keys, Floats]


class KeyLayout(NamedTuple):
    """Position of each mode's index in a key: the lowest bit, and a mask."""

    shifts: NDArray[np.int64]
    masks: NDArray[np.int64]


def layout_of(shape: Sequence[int]) -> KeyLayout | None:
    """Return the layout of keys for a shape, or None if the indices do not fit."""
    bits = np.array([(length - 1).bit_length() for length in shape], np.int64)
    if bits.sum() > BITS:
        return None
    shifts = np.concatenate([np.cumsum(bits[::-1])[-2::-1], np.zeros(1, np.int64)])
    return KeyLayout(shifts, (1 << bits) - 1)


def bits_of(shape: Sequence[int]) -> int:
    """Return the number of bits of a key."""
    return sum((length - 1).bit_length() for length in shape)


def packed_bytes(shape: Sequence[int], nonzeros: int, threads: int, valued: bool = False) -> int:
    """Return the maximum memory in bytes to build a store, of counts or (if `valued`) of summed values."""
    ranges = threads * range_of(nonzeros) * (12 + 4 * (len(shape) + valued))
    tensor = nonzeros * 16 + sort_bytes(nonzeros, 16, threads) if valued else nonzeros * 12
    return tensor + ranges + (threads + 2) * 8 * max(shape)


def range_of(nonzeros: int) -> int:
    """Return the maximum number of nonzeros in a range of rows."""
    return min(RANGE, max(nonzeros // RANGES, PART // RANGES))


def sort_keys(keys: Keys, threads: int) -> None:
    """Sort keys in place."""
    bounds = [keys.size * t // threads for t in range(threads + 1)]
    if threads > 1 and keys.size > PART:
        keys.partition(bounds[1:-1])
        parallel_map(lambda t: keys[bounds[t] : bounds[t + 1]].sort(), range(threads), threads)
    else:
        keys.sort()


def count_equal(keys: Keys) -> tuple[Keys, Floats]:
    """Return the distinct keys among sorted keys, stored in place, and the multiplicity of each."""
    distinct, most = _distinct(keys)
    counts = np.empty(distinct, np.float32 if most <= EXACT else np.float64)
    _count(keys, counts)
    return keys[:distinct], counts


@jit
def _distinct(keys):  # type: ignore[no-untyped-def]
    """Return the number of distinct sorted keys, and the highest multiplicity."""
    distinct = most = begin = 0
    for p in range(keys.size):
        if not p or keys[p] != keys[p - 1]:
            distinct += 1
            begin = p
        most = max(most, p - begin + 1)
    return distinct, most


@jit
def _count(keys, counts):  # type: ignore[no-untyped-def]
    """Compact distinct keys in place, and store the multiplicity of each."""
    at = -1
    times = 0
    for p in range(keys.size):
        if at < 0 or keys[p] != keys[at]:
            if at >= 0:
                counts[at] = times
            at += 1
            times = 0
            keys[at] = keys[p]
        times += 1
    if at >= 0:
        counts[at] = times


@jit
def _join(upper, lower, keys, begin, end):  # type: ignore[no-untyped-def]
    for p in range(begin, end):
        keys[p] = (np.int64(upper[p]) << HALF) | np.int64(lower[p])


@jit
def _count_rows(keys, shift, mask, counts):  # type: ignore[no-untyped-def]
    for p in range(keys.size):
        counts[(keys[p] >> shift) & mask] += 1


@jit
def _unpack(keys, shift, mask, column):  # type: ignore[no-untyped-def]
    for p in range(keys.size):
        column[p] = (keys[p] >> shift) & mask


@jit
def _pick(keys, values, shift, mask, first, places, picked, picked_values):  # type: ignore[no-untyped-def]
    """Copy the keys and values of rows `first` to `first + places.size` to their `places`, which are advanced."""
    rows = places.size
    for p in range(keys.size):
        row = ((keys[p] >> shift) & mask) - first
        if 0 <= row < rows:
            at = places[row]
            places[row] = at + 1
            picked[at] = keys[p]
            picked_values[at] = values[p]


class PackedTensor:
    """A sparse tensor in little memory, in lexicographic order.

    Parameters
    ----------
    keys : (n,) int64 array, or (2, n) int32 array
        The key of each event, in any order; with `values` its upper and lower half. Overwritten.
    shape : tuple of int
        Mode lengths.
    labels : Labels or None
        Labels of the indices.
    threads : int
        Number of threads.
    values : (n,) float64 array, optional
        Values that are summed for equal keys; overwritten. By default events are counted.
    keep_zeros : bool
        Do not drop zero sums.

    Raises
    ------
    InputError
        If all sums are zero, or a sum overflows.
    """

    def __init__(
        self,
        keys: NDArray[np.signedinteger],
        shape: tuple[int, ...],
        labels: Labels | None,
        threads: int,
        values: NDArray[np.float64] | None = None,
        keep_zeros: bool = False,
    ) -> None:
        layout = layout_of(shape)
        assert layout is not None
        self.shape, self.labels, self._layout, self._threads = shape, labels, layout, threads
        self.zeros, self.grain = 0, 1.0
        if values is None:
            sort_keys(keys, threads)
            self.keys, self.values = count_equal(keys)
            self.duplicates = keys.size - self.keys.size
        else:
            self._sum(keys, values, keep_zeros)
        self._range_size = range_of(self.keys.size)

    def _sum(self, halves: NDArray[np.int32], values: NDArray[np.float64], keep_zeros: bool) -> None:
        """Sort keys and values; sum the values of equal keys."""
        lengths = 1 << max(0, bits_of(self.shape) - HALF), 1 << HALF
        options = SortOptions(merge=True, keep_zeros=keep_zeros, overwrite=True, threads=self._threads)
        merged = sort_nonzeros(halves, values, (0, 1), lengths, **options)
        check_merged(merged.values.size, bool(np.all(np.isfinite(merged.values))))
        self.keys, self.values = np.empty(merged.values.size, np.int64), merged.values
        parts = list(pairwise(self.keys.size * t // self._threads for t in range(self._threads + 1)))
        parallel_map(lambda part: _join(*merged.columns, self.keys, *part), parts, self._threads)
        self.duplicates, self.zeros, self.grain = merged.duplicates, merged.zeros, grain(self.values)

    @property
    def store_bytes(self) -> int:
        """Approximate size of its store in bytes."""
        order = len(self.shape)
        return order * self.keys.size * (4 * order + self.values.itemsize)

    def write(self, folder: Path, budget: int | None = None) -> None:
        """Write all files of its store. If it exceeds `budget` bytes, drop it from the page cache as it is written."""
        entries, order = dict[str, checksums.Entry](), len(self.shape)
        dtype = store.exact_dtype(self.values)
        with ThreadPoolExecutor(1) as disk:  # syncs a mode's files while the next mode is computed
            behind = disk if budget is not None and self.store_bytes > budget else None
            synced = list[Future[None]]()
            for mode in range(order):
                names = store.file_names(order, mode)
                written, pending = self._write_mode(folder, names, mode, dtype, behind)
                entries |= written
                synced += pending
                synced.append(disk.submit(checksums.sync_files, [folder / name for name in names]))
            for each in synced:
                each.result()
        files, kinds = store.write_labels(folder, self.labels)
        bounds = ends(self.values)
        facts: dict[str, object] = {"nnz": self.keys.size, "norm": norm(bounds, squares(self.values, bounds))}
        facts |= {"value_range": ValueRange(*bounds, self.grain)}
        facts |= {"duplicates": self.duplicates, "zeros": self.zeros}
        store.write_manifest(folder, {**entries, **files}, dtype, shape=self.shape, labels=kinds, **facts)

    def _write_mode(
        self, folder: Path, names: Sequence[str], mode: int, dtype: FloatDType, behind: Executor | None
    ) -> tuple[dict[str, checksums.Entry], list[Future[None]]]:
        """Write a mode copy; return the manifest entries of its files, and pending syncs to disk."""
        types = [*(np.dtype(np.int32) for _ in self.shape), dtype]
        modes = mode_order(len(self.shape), mode)
        with ExitStack() as files:
            writers = [
                files.enter_context(checksums.ChecksumWriter(folder / name, kind, self.keys.size, behind))
                for name, kind in zip(names, types, strict=True)
            ]

            def write(k: int, pieces: Sequence[Piece]) -> None:
                for keys, values in pieces:
                    if k == len(modes):
                        writers[k].write(values.astype(dtype, copy=False))
                        continue
                    column = np.empty(keys.size, np.int32)
                    _unpack(keys, self._layout.shifts[modes[k]], self._layout.masks[modes[k]], column)
                    writers[k].write(column)

            for pieces in self._copy(mode):
                parallel_map(partial(write, pieces=pieces), range(len(names)), self._threads)
            written = {name: writer.finish() for name, writer in zip(names, writers, strict=True)}
            return written, [each for writer in writers for each in writer.pending]

    def _copy(self, mode: int) -> Iterator[list[Piece]]:
        """Yield the nonzeros in the order of a mode copy, several pieces at a time."""
        step = self._range_size * self._threads
        if mode == 0:
            for begin in range(0, self.keys.size, step):
                yield [(self.keys[begin : begin + step], self.values[begin : begin + step])]
            return
        offsets = np.concatenate([np.zeros(1, np.int64), np.cumsum(self._rows(mode))])
        ranges = _ranges(offsets, self._range_size)
        for at in range(0, len(ranges), self._threads):
            group = ranges[at : at + self._threads]
            if any(offsets[last] - offsets[first] > self._range_size for first, last in group):
                for rows in group:
                    yield from ([piece] for piece in self._range(mode, *rows, offsets))
            else:
                yield parallel_map(lambda rows: next(self._range(mode, *rows, offsets)), group, self._threads)

    def _rows(self, mode: int) -> NDArray[np.int64]:
        """Count the nonzeros of each row of a mode."""
        parts = list(pairwise(self.keys.size * t // self._threads for t in range(self._threads + 1)))
        counts = np.zeros((self._threads, self.shape[mode]), np.int64)
        layout = self._layout.shifts[mode], self._layout.masks[mode]
        parallel_map(
            lambda t: _count_rows(self.keys[slice(*parts[t])], *layout, counts[t]), range(self._threads), self._threads
        )
        total: NDArray[np.int64] = counts.sum(axis=0)
        return total

    def _range(self, mode: int, first: int, last: int, offsets: NDArray[np.int64]) -> Iterator[Piece]:
        """Yield the nonzeros of a range of rows; in several pieces if it is one long row."""
        size = int(offsets[last] - offsets[first])
        layout = self._layout.shifts[mode], self._layout.masks[mode], first
        if size <= self._range_size:
            picked, values = np.empty(size, np.int64), np.empty(size, self.values.dtype)
            _pick(self.keys, self.values, *layout, offsets[first:last] - offsets[first], picked, values)
            yield picked, values
            return
        for begin in range(0, self.keys.size, PART):
            keys, values = self.keys[begin : begin + PART], self.values[begin : begin + PART]
            picked, chosen, place = (
                np.empty(keys.size, np.int64),
                np.empty(keys.size, values.dtype),
                np.zeros(1, np.int64),
            )
            _pick(keys, values, *layout, place, picked, chosen)
            if place[0]:
                yield picked[: place[0]], chosen[: place[0]]


def _ranges(offsets: NDArray[np.int64], size: int) -> list[tuple[int, int]]:
    """Return ranges of rows with at most `size` nonzeros each, or one row that has more."""
    ranges, first = list[tuple[int, int]](), 0
    rows = offsets.size - 1
    while first < rows:
        last = int(np.searchsorted(offsets, offsets[first] + size, "right")) - 1
        last = min(max(last, first + 1), rows)
        ranges.append((first, last))
        first = last
    return ranges
