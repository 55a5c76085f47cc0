"""Take a caller's nonzeros: look at all of them and copy them, in one pass, on all cores."""

from __future__ import annotations

from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from ..host.threads import side_by_side, usable_cores
from ..sorting.tables import mapped

LEAST, MOST = 1 << 16, 1 << 20  # nonzeros looked at and copied together, by one thread
BLOCKS = 4  # for each thread: so that none waits for others for long


def room_for(array: NDArray[Any], dtype: np.dtype[Any], owned: bool) -> NDArray[Any]:
    """Return the array if it can be kept as it is, or memory of this type for a copy."""
    if owned and array.dtype == dtype and array.flags.c_contiguous:
        return array
    return mapped(array.size, dtype).reshape(array.shape)


class IngestCounts(NamedTuple):
    """What is to be checked of some nonzeros."""

    low: NDArray[Any]  # (order,) least index
    high: NDArray[Any]
    finite: bool  # all values


def take(given: tuple[NDArray[Any], NDArray[Any]], kept: tuple[NDArray[Any], NDArray[Any]]) -> IngestCounts:
    """Look at all nonzeros and copy them to where they are `kept`, in blocks.

    Blocks are as large as they may be: threads wait for each other (for Python's lock) in each step of a block, and on
    many cores that takes far longer than reading a block once more from memory.
    """
    nonzeros, threads = given[1].size, usable_cores()
    block = min(MOST, max(LEAST, nonzeros // (BLOCKS * threads)))
    fits = np.can_cast(given[0].dtype, np.int32)

    def of(begin: int) -> IngestCounts:
        part, ends = slice(begin, begin + block), list[tuple[int, int]]()
        for source, target in zip(given[0], kept[0], strict=True):
            if kept[0] is not given[0]:
                np.copyto(target[part], source[part], casting="unsafe")  # what does not fit is refused by its ends
            column = (target if fits else source)[part]
            ends.append((int(column.min()), int(column.max())))
        values = kept[1][part]
        if kept[1] is not given[1]:
            source = given[1][part]
            with np.errstate(over="ignore"):  # what a double does not hold is not finite then
                np.copyto(values, source, casting="same_kind" if source.dtype.kind == "f" else "unsafe")
        low, high = np.array(ends, object).T
        return IngestCounts(low, high, bool(np.isfinite(values.min()) and np.isfinite(values.max())))  # NaN is either

    begins = range(0, nonzeros, block)
    low, high, finite = zip(*side_by_side(of, begins, min(threads, len(begins))), strict=True)
    return IngestCounts(np.min(low, axis=0), np.max(high, axis=0), all(finite))
