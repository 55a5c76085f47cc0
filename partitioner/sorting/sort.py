"""Radix sorts of nonzeros by their indices.

`sort_nonzeros` moves the nonzeros: first to buckets that fit a core's cache, then within each bucket. `stable_argsort`
returns a permutation and moves nothing.
"""

from __future__ import annotations

from collections.abc import Sequence
from itertools import pairwise
from pathlib import Path
from typing import NamedTuple, Protocol, TypedDict, Unpack

import numpy as np
from numpy.typing import NDArray

from ..array_types import FloatDType, IntDType, Integers
from ..host.jit import jit
from ..host.threads import parallel_map, usable_cores
from ..host.worth import Compilable
from . import plain
from .buckets import DIGIT, copy_buckets, count_bins, merge_buckets, move, sort_buckets
from .tables import Indices, Nonzeros, Values, mapped

DIGIT_BITS = 16
INT64 = np.dtype(np.int64)

BIN_BITS = 16  # leading index bits that form a nonzero's bin
BLOCK = 4096  # nonzeros whose destinations are computed at a time
BUCKET = 1 << 15  # nonzeros, unless one bin has more; a column and its keys fit a core's cache
TASKS = 8  # per thread, for load balance
FOLDER = Path(__file__).parent
ARGSORT, COMPARISON, SORT = (
    Compilable(name, seconds, [FOLDER]) for name, seconds in (("argsort", 0.3), ("comparison", 0.15), ("sort", 2.0))
)
ORDERED, MOVED, COMPARED = 1e-7, 1e-8, 2e-9  # seconds NumPy takes to sort a nonzero, to move or compare an index
KEY_BYTES = 24  # per nonzero of a bucket being sorted: two uint64 keys and two uint32 positions

Leading = tuple[NDArray[np.int64], ...]
"""How a nonzero's bin is formed: modes, and the right and left shifts of their indices."""


@jit
def _counting_pass(keys, shift, ends, order, sorted_order):  # type: ignore[no-untyped-def]
    """Sort by one digit. `ends`, (digits + 1,), must be zeros at the start."""
    mask = ends.size - 2
    for key in keys:
        ends[((key >> shift) & mask) + 1] += 1
    for b in range(mask + 1):
        ends[b + 1] += ends[b]
    for q in range(keys.size):
        p = np.int64(order[q]) if order.size else q
        digit = (keys[p] >> shift) & mask
        sorted_order[ends[digit]] = p
        ends[digit] += 1


@jit
def _strictly_increasing(columns):  # type: ignore[no-untyped-def]
    order, nonzeros = columns.shape
    for p in range(1, nonzeros):
        m = 0
        while m < order and columns[m, p] == columns[m, p - 1]:
            m += 1
        if m == order or columns[m, p] < columns[m, p - 1]:
            return False
    return True


def stable_argsort(columns: Sequence[Indices], lengths: Sequence[int], dtype: IntDType = INT64) -> Integers:
    """Sort nonzeros by several indices, the most significant first.

    Column ``k`` holds indices from 0 to below ``lengths[k]``. Returns the permutation: position ``p`` of the sorted
    order holds nonzero ``result[p]``. The integer type `dtype` must be able to hold the number of nonzeros.

    This is a least-significant-digit radix sort with one counting pass per digit of at most 16 bits. From the second
    pass on it holds two permutations in memory.
    """
    nonzeros = columns[0].size
    if not ARGSORT.compiles(ORDERED * nonzeros, str(dtype)):
        return plain.order_of(columns, lengths).astype(dtype)
    order = spare = np.empty(0, dtype)  # empty: the identity
    for column, length in zip(reversed(columns), reversed(lengths), strict=True):
        bits = max(1, (length - 1).bit_length())
        passes = -(-bits // DIGIT_BITS)
        width = -(-bits // passes)
        for k in range(passes):
            after = spare if spare.size else np.empty(nonzeros, dtype)
            _counting_pass(column, k * width, np.zeros((1 << width) + 1, INT64), order, after)
            order, spare = after, order
    return order


def strictly_increasing(columns: Indices) -> bool:
    """Return whether nonzeros, (order, nnz) columns, are in lexicographic order without duplicates."""
    if not COMPARISON.compiles(COMPARED * columns.size):
        return plain.increases(columns)
    return bool(_strictly_increasing(columns))


class Sorted(NamedTuple):
    """Sorted nonzeros."""

    columns: Indices
    values: Values
    scratch: int  # bytes of memory that the sort used in addition to its input and result
    duplicates: int = 0  # nonzeros merged with an earlier one of equal indices
    zeros: int = 0  # sums of zero, which are dropped


class SortOptions(TypedDict, total=False):
    """Optional arguments of `sort_nonzeros`."""

    dtype: FloatDType | None
    merge: bool
    keep_zeros: bool
    overwrite: bool
    threads: int | None


class Sort(Protocol):
    """The interface of `sort_nonzeros`, on any device."""

    def __call__(
        self,
        columns: Indices,
        values: Values,
        modes: Sequence[int],
        lengths: Sequence[int],
        **options: Unpack[SortOptions],
    ) -> Sorted:
        """See `sort_nonzeros`."""


def sort_nonzeros(  # nine parameters; the last five are `SortOptions`
    columns: Indices,
    values: Values,
    modes: Sequence[int],
    lengths: Sequence[int],
    *,
    dtype: FloatDType | None = None,
    merge: bool = False,
    keep_zeros: bool = False,
    overwrite: bool = False,
    threads: int | None = None,
) -> Sorted:
    """Sort nonzeros stably by their indices of `modes`, the most significant first.

    Parameters
    ----------
    columns : (order, nnz) int32 array
        Indices; column ``m`` holds indices from 0 to below ``lengths[m]``.
    values : (nnz,) array
        Values.
    modes : sequence of int
        Modes to sort by.
    lengths : sequence of int
        Mode lengths.
    dtype : dtype, optional
        Type of the sorted values; by default that of `values`.
    merge : bool
        Sum nonzeros with equal indices in double precision, and drop zero sums; `modes` must be all modes.
    keep_zeros : bool
        Do not drop zero sums.
    overwrite : bool
        Store the result in the memory of `columns` and `values`.
    threads : int, optional
        By default one per usable core.
    """
    threads, nonzeros = threads or usable_cores(), values.size
    if not SORT.compiles(nonzeros * (ORDERED + MOVED * len(columns)), f"{values.dtype} {dtype or values.dtype}"):
        return _sort_plain(columns, values, modes, lengths, dtype or values.dtype, merge, keep_zeros, overwrite)
    moved = mapped(columns.size, columns.dtype).reshape(columns.shape), mapped(nonzeros, dtype or values.dtype)
    bounds = _into_buckets((columns, values), _leading(modes, lengths), threads, moved)
    tasks, keys = _tasks(bounds, threads), key_bytes(nonzeros, int(np.diff(bounds).max()), threads)
    words = moved[1].view(np.uint32).reshape(nonzeros, moved[1].itemsize // 4)
    key_modes = np.array(modes, np.int64)
    remaining, distinct = np.zeros((2, bounds.size - 1), np.int64)

    def sort(task: Task) -> None:
        two = 2, int(np.diff(bounds[task[0] : task[1] + 1]).max())
        scratch = np.empty(two, np.uint64), np.empty(two, np.uint32), np.empty(1 << DIGIT, np.uint32)
        sort_buckets(moved[0], words, key_modes, bounds, *task, *scratch)
        if merge:
            merge_buckets(*moved, bounds, *task, keep_zeros, remaining, distinct)

    parallel_map(sort, tasks, threads)
    if not (merge or overwrite):
        return Sorted(*moved, keys)
    offsets = np.concatenate([np.zeros(1, np.int64), np.cumsum(remaining)]) if merge else bounds
    result = result_arrays(columns, values, int(offsets[-1]), moved[1].dtype, overwrite)
    parallel_map(lambda task: copy_buckets(*moved, bounds, *task, offsets, *result), tasks, threads)
    scratch = moved[0].nbytes + moved[1].nbytes + keys
    if not merge:
        return Sorted(*result, scratch)
    return Sorted(*result, scratch, nonzeros - int(distinct.sum()), int(distinct.sum() - remaining.sum()))


def _sort_plain(
    columns: Indices,
    values: Values,
    modes: Sequence[int],
    lengths: Sequence[int],
    dtype: FloatDType,
    merge: bool,
    keep_zeros: bool,
    overwrite: bool,
) -> Sorted:
    """Sort nonzeros with NumPy; see `sort_nonzeros`."""
    found = plain.sorted_by(columns, values, modes, lengths, dtype)
    scratch, distinct = found[0].nbytes + found[1].nbytes + 2 * INT64.itemsize * values.size, values.size
    if merge:
        found, distinct = plain.merged(*found, keep_zeros)
    if overwrite:
        result = result_arrays(columns, values, found[1].size, dtype, overwrite)
        for target, source in zip(result, found, strict=True):
            target[...] = source
        found = result
    return Sorted(*found, scratch, values.size - distinct, distinct - found[1].size)


def key_bytes(nonzeros: int, largest: int = BUCKET, threads: int | None = None) -> int:
    """Return the bytes of keys and positions in `sort_nonzeros`: one bucket per thread.

    The `largest` bucket has `BUCKET` nonzeros, or all nonzeros that share the leading `BIN_BITS` bits of their indices.
    """
    return KEY_BYTES * min(nonzeros, (threads or usable_cores()) * largest)


def sort_bytes(nonzeros: int, each: int, threads: int | None = None) -> int:
    """Return the scratch bytes of `sort_nonzeros` with merge or overwrite: keys, and `each` bytes per nonzero."""
    return nonzeros * each + key_bytes(nonzeros, threads=threads)


Task = tuple[int, int]
"""A range of buckets: the first, and one past the last."""


def _leading(modes: Sequence[int], lengths: Sequence[int]) -> Leading:
    """Return which index bits form a nonzero's bin."""
    parts, free_bits = [], BIN_BITS
    for mode in modes:
        bits = (lengths[mode] - 1).bit_length()
        width = min(bits, free_bits)
        if width:
            free_bits -= width
            parts.append((mode, bits - width, free_bits))
    table = np.array(parts, np.int64).reshape(-1, 3).T
    return tuple(np.ascontiguousarray(row) for row in table)


def _into_buckets(nonzeros: Nonzeros, leading: Leading, threads: int, moved: Nonzeros) -> NDArray[np.int64]:
    """Move the nonzeros to buckets, an equal part per thread; return the bounds of the buckets."""
    runs = list(pairwise(nonzeros[1].size * t // threads for t in range(threads + 1)))
    counts = np.zeros((threads, 1 << BIN_BITS), np.int64)
    scratch = [(np.empty(BLOCK, np.uint32), np.empty(BLOCK, np.uint64)) for _ in runs]
    parallel_map(
        lambda t: count_bins(nonzeros[0], *leading, *runs[t], scratch[t][0], counts[t]), range(threads), threads
    )
    bounds, bucket_of, places = _buckets(counts)

    def move_run(t: int) -> None:
        move(*nonzeros, *leading, *runs[t], *scratch[t], bucket_of, places[t], *moved)

    parallel_map(move_run, range(threads), threads)
    return bounds


def _buckets(counts: NDArray[np.int64]) -> tuple[NDArray[np.int64], NDArray[np.uint32], NDArray[np.uint64]]:
    """Join neighbouring bins into buckets of about `BUCKET` nonzeros.

    `counts` (runs, bins) is the number of nonzeros of each run (a thread's part of the input) in each bin. Returns the
    bounds of the buckets (buckets + 1,); each bin's bucket; and where each run's nonzeros begin in each bucket (runs,
    buckets): the runs follow one another within a bucket.
    """
    ends, first = counts.sum(axis=0).cumsum(), [0]
    while (bin := first[-1]) < ends.size:
        start = ends[bin - 1] if bin else 0
        first.append(max(bin + 1, int(np.searchsorted(ends, start + BUCKET, "right"))))
    bounds = np.concatenate([[0], ends[np.array(first[1:]) - 1]])
    bucket_of = np.repeat(np.arange(len(first) - 1, dtype=np.uint32), np.diff(first))
    before = np.add.reduceat(counts, first[:-1], axis=1)[:-1]
    return bounds, bucket_of, np.vstack([bounds[:-1], before]).cumsum(axis=0).astype(np.uint64)


def _tasks(bounds: NDArray[np.int64], threads: int) -> list[Task]:
    """Split the buckets into tasks with about equal numbers of nonzeros, `TASKS` per thread."""
    parts = TASKS * threads
    targets = bounds[-1] * np.arange(1, parts) // parts
    cuts = np.unique([0, *np.searchsorted(bounds[:-1], targets), bounds.size - 1])
    return list(pairwise(cuts.tolist()))


def result_arrays(columns: Indices, values: Values, nonzeros: int, dtype: FloatDType, overwrite: bool) -> Nonzeros:
    """Return arrays for sorted nonzeros: new ones, or with `overwrite` the memory of `columns` and `values`."""
    order = len(columns)
    if not overwrite:
        return np.empty((order, nonzeros), np.int32), np.empty(nonzeros, dtype)
    return columns.reshape(-1)[: order * nonzeros].reshape(order, nonzeros), values[:nonzeros]
