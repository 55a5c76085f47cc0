"""Check and copy a caller's nonzeros in one pass, on all cores."""

from __future__ import annotations

from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from ..host.threads import parallel_map, usable_cores
from ..sorting.tables import mapped

LEAST, MOST = 1 << 16, 1 << 20  # nonzeros per block
BLOCKS = 4  # per thread, for load balance


def room_for(array: NDArray[Any], dtype: np.dtype[Any], owned: bool) -> NDArray[Any]:
    """Return `array` if it can be used as it is, else uninitialised memory of type `dtype` for a copy."""
    if owned and array.dtype == dtype and array.flags.c_contiguous:
        return array
    return mapped(array.size, dtype).reshape(array.shape)


class IngestCounts(NamedTuple):
    """Bounds of indices and values."""

    low: NDArray[Any]  # (order,) lowest indices
    high: NDArray[Any]  # (order,) highest indices
    finite: bool  # whether all values are finite


def take(source: tuple[NDArray[Any], NDArray[Any]], target: tuple[NDArray[Any], NDArray[Any]]) -> IngestCounts:
    """Check all nonzeros and copy them from `source` to `target`, in blocks; the two may share arrays.

    Blocks are large, as threads wait for the GIL in each step of a block; on many cores that takes much longer than
    reading a block from memory twice.
    """
    nonzeros, threads = source[1].size, usable_cores()
    block = min(MOST, max(LEAST, nonzeros // (BLOCKS * threads)))
    fits = np.can_cast(source[0].dtype, np.int32)

    def ingest(begin: int) -> IngestCounts:
        part, ends = slice(begin, begin + block), list[tuple[int, int]]()
        for column_in, column_out in zip(source[0], target[0], strict=True):
            if target[0] is not source[0]:
                np.copyto(column_out[part], column_in[part], casting="unsafe")  # overflow is detected by the bounds
            column = (column_out if fits else column_in)[part]
            ends.append((int(column.min()), int(column.max())))
        values = target[1][part]
        if target[1] is not source[1]:
            values_in = source[1][part]
            with np.errstate(over="ignore"):  # overflow gives infinity, which is detected
                np.copyto(values, values_in, casting="same_kind" if values_in.dtype.kind == "f" else "unsafe")
        low, high = np.array(ends, object).T
        finite = bool(np.isfinite(values.min()) and np.isfinite(values.max()))  # NaN propagates to both
        return IngestCounts(low, high, finite)

    begins = range(0, nonzeros, block)
    low, high, finite = zip(*parallel_map(ingest, begins, min(threads, len(begins))), strict=True)
    return IngestCounts(np.min(low, axis=0), np.max(high, axis=0), all(finite))
