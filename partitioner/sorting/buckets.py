"""Compiled loops of the nonzero sort: distribute nonzeros to buckets, then sort each bucket within the caches.

Each loop handles one column at a time. It writes to few memory locations at once and is compiled once for all orders.
To limit compile time, arrays are copied by loops (a slice assignment takes seconds to compile) and the caller allocates
the scratch memory.
"""

# Numba infers the types of the compiled functions.
# mypy: disable-error-code="no-untyped-def"

from __future__ import annotations

import numpy as np

from ..host.jit import inner, jit

DIGIT = 8  # bits per pass within a bucket
KEY = 64  # bits of a sort key
_ONE = np.uint64(1)


@inner
def _bins(columns, modes, right, left, begin, end, bins):
    """Write the bin of each nonzero: the leading bits of its indices of the modes that are the sort key."""
    for p in range(end - begin):
        bins[p] = 0
    for k in range(modes.size):
        column, down, up = columns[modes[k]], right[k], left[k]
        for p in range(end - begin):
            bins[p] |= np.uint32(column[begin + p] >> down) << np.uint32(up)


@jit
def count_bins(columns, modes, right, left, begin, end, bins, counts):
    """Count the nonzeros in each bin, processing `bins.size` nonzeros at a time."""
    for start in range(begin, end, bins.size):
        stop = min(end, start + bins.size)
        _bins(columns, modes, right, left, start, stop, bins)
        for p in range(stop - start):
            counts[bins[p]] += 1


@jit
def move(columns, values, modes, right, left, begin, end, bins, to, bucket_of, places, moved_columns, moved_values):
    """Move nonzeros to their buckets, stably, `bins.size` at a time."""
    for start in range(begin, end, bins.size):
        stop = min(end, start + bins.size)
        _bins(columns, modes, right, left, start, stop, bins)
        for p in range(stop - start):
            bucket = bucket_of[bins[p]]
            to[p] = places[bucket]
            places[bucket] += _ONE
        for m in range(columns.shape[0]):
            source, target = columns[m], moved_columns[m]
            for p in range(stop - start):
                target[to[p]] = source[start + p]
        for p in range(stop - start):
            moved_values[to[p]] = values[start + p]


@inner
def _width(column):
    """Return the lowest index in part of a column, and the number of bits of the largest difference to it."""
    low = high = np.int64(column[0])
    for index in column:
        low, high = min(low, np.int64(index)), max(high, np.int64(index))
    spread, bits = high - low, 0
    while spread >> bits:
        bits += 1
    return low, bits


@inner
def _key(columns, modes, last, order, keys):
    """Pack the indices of `modes[last]`, `modes[last - 1]`, ... into keys while they fit.

    Returns the next `last` (-1 when all modes are packed) and the number of bits used.
    """
    bits = 0
    while last >= 0:
        column = columns[modes[last]]
        low, width = _width(column)
        if bits + width > KEY:
            break
        if width and not bits:
            for p in range(column.size):
                keys[p] = np.uint64(column[order[p]] - low)
        elif width:
            for p in range(column.size):
                keys[p] |= np.uint64(column[order[p]] - low) << np.uint64(bits)
        bits += width
        last -= 1
    return last, bits


@inner
def _pass(keys, order, shift, bits, ends, sorted_keys, sorted_order):
    """Sort stably by `bits` bits of the keys, starting at bit `shift`. `ends` is scratch, one number per digit."""
    mask = np.uint64((1 << bits) - 1)
    for d in range(1 << bits):
        ends[d] = 0
    for key in keys:
        ends[(key >> shift) & mask] += np.uint32(1)
    total = np.uint32(0)
    for d in range(1 << bits):
        total, ends[d] = total + ends[d], total
    for p in range(keys.size):
        digit = (keys[p] >> shift) & mask
        at = ends[digit]
        ends[digit] = at + np.uint32(1)
        sorted_keys[at] = keys[p]
        sorted_order[at] = order[p]


@inner
def _arrange(array, order, scratch):
    """Permute an array in place, using `scratch` memory."""
    for p in range(array.size):
        scratch[p] = array[order[p]]
    for p in range(array.size):
        array[p] = scratch[p]


@jit
def sort_buckets(columns, words, modes, bounds, first, last, key_scratch, orders, ends):
    """Sort the nonzeros of buckets `first` up to `last` by several modes, in place.

    `words` are the bits of the values, (nnz, 1 or 2) uint32, so that one compiled variant serves all precisions.
    Scratch memory, sized for the largest bucket: `key_scratch` (2, nonzeros) uint64, `orders` (2, nonzeros) uint32,
    `ends` (digits,) uint32.
    """
    for b in range(first, last):
        begin, end = bounds[b], bounds[b + 1]
        size = end - begin
        bucket, current, next_order = columns[:, begin:end], orders[0, :size], orders[1, :size]
        keys, sorted_keys = key_scratch[0, :size], key_scratch[1, :size]
        for p in range(size):
            current[p] = p
        remaining = modes.size - 1
        while remaining >= 0 and size > 1:
            remaining, width = _key(bucket, modes, remaining, current, keys)
            passes = -(-width // DIGIT)
            for q in range(passes):
                low, high = width * q // passes, width * (q + 1) // passes
                _pass(keys, current, np.uint64(low), high - low, ends, sorted_keys, next_order)
                keys, sorted_keys = sorted_keys, keys
                current, next_order = next_order, current
        for m in range(columns.shape[0]):
            _arrange(bucket[m], current, next_order)
        for word in range(words.shape[1]):
            _arrange(words[begin:end, word], current, next_order)


@jit
def merge_buckets(columns, values, bounds, first, last, keep_zeros, remaining, distinct):
    """In sorted buckets, sum nonzeros with equal indices, drop zero sums unless kept, and close the gaps."""
    for b in range(first, last):
        p, end = bounds[b], bounds[b + 1]
        at = p
        while p < end:
            total = np.float64(values[p])
            q = p + 1
            while q < end and _equal(columns, p, q):
                total += values[q]
                q += 1
            distinct[b] += 1
            if total != 0 or keep_zeros:
                for m in range(columns.shape[0]):
                    columns[m, at] = columns[m, p]
                values[at] = total
                at += 1
            p = q
        remaining[b] = at - bounds[b]


@inner
def _equal(columns, p, q):
    m = 0
    while m < columns.shape[0] and columns[m, p] == columns[m, q]:
        m += 1
    return m == columns.shape[0]


@jit
def copy_buckets(columns, values, bounds, first, last, offsets, to_columns, to_values):
    """Copy the nonzeros that remain in each bucket after `merge_buckets` to their `offsets` in the result."""
    for b in range(first, last):
        begin, at, size = bounds[b], offsets[b], offsets[b + 1] - offsets[b]
        for m in range(columns.shape[0]):
            source, target = columns[m, begin:], to_columns[m, at:]
            for p in range(size):
                target[p] = source[p]
        source_values, target_values = values[begin:], to_values[at:]
        for p in range(size):
            target_values[p] = source_values[p]
