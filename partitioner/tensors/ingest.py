"""Checks of a caller's nonzeros, and their copy in one pass on all cores."""

from __future__ import annotations

import sys
from collections.abc import Sequence
from operator import index
from typing import NamedTuple, cast

import numpy as np
from numpy.typing import NDArray

from ..array_types import Element, HostArray
from ..errors import InputError
from ..host.threads import parallel_map, usable_cores
from ..sorting.tables import mapped
from ..wording import parameter

MIN_ORDER = 2
MAX_ORDER = 8
MAX_MODE_LENGTH = 2**31 - 1
LEAST, MOST = 1 << 16, 1 << 20  # nonzeros per block
BLOCKS = 4  # per thread, for load balance


def room_for(array: HostArray, dtype: np.dtype[Element], owned: bool) -> NDArray[Element]:
    """Return `array` if it can be used as it is, else uninitialised memory of type `dtype` for a copy."""
    if owned and array.dtype == dtype and array.flags.c_contiguous:
        return cast("NDArray[Element]", array)
    return mapped(array.size, dtype).reshape(array.shape)


class IngestCounts(NamedTuple):
    """Bounds of indices and values."""

    low: NDArray[np.object_]  # (order,) lowest indices
    high: NDArray[np.object_]  # (order,) highest indices
    finite: bool  # whether all values are finite


def take(source: tuple[HostArray, HostArray], target: tuple[HostArray, HostArray]) -> IngestCounts:
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


def with_zeros(columns: HostArray, values: HostArray, order: int) -> tuple[HostArray, HostArray]:
    """Return nonzeros, or one explicit zero if there are none: a tensor of zeros stores at least one element."""
    if values.size:
        return columns, values
    return np.zeros((order, 1), np.int32), np.zeros(1, values.dtype if values.dtype.kind in "biuf" else np.float64)


def check_kinds(columns: HostArray, values: HostArray) -> None:
    """Raise `InputError` for indices or values of an unsupported type or shape."""
    order, nonzeros = columns.shape
    check_order(order)
    if not np.issubdtype(columns.dtype, np.integer):
        raise InputError(f"indices are {columns.dtype}, expected integers")
    if values.ndim != 1 or values.size != nonzeros:
        raise InputError(f"{nonzeros} coordinates but values of shape {values.shape}")
    if values.dtype.kind not in "biuf":
        raise InputError(f"values are {values.dtype}, expected real numbers")
    if not nonzeros:
        raise InputError("no nonzeros")


def checked_shape(counts: IngestCounts, shape: Sequence[int] | None) -> tuple[int, ...]:
    """Return a caller's shape, or the smallest one; raise `InputError` if an index is outside it."""
    lengths = tuple(h + 1 for h in counts.high) if shape is None else whole_lengths(shape)
    if len(lengths) != counts.high.size:
        raise InputError(f"shape has {len(lengths)} modes, the indices have {counts.high.size}")
    for mode, (low, high, length) in enumerate(zip(counts.low, counts.high, lengths, strict=True)):
        if low < 0:
            raise InputError(f"negative index {low} in mode {mode}")
        if not 1 <= length <= MAX_MODE_LENGTH:
            raise InputError(f"length {length} of mode {mode} is outside 1..{MAX_MODE_LENGTH}")
        if high >= length:
            raise InputError(f"index {high} of mode {mode} is outside its length {length}")
    return lengths


def check_lengths(needed: Sequence[int], lengths: Sequence[int]) -> None:
    """Raise `InputError` unless `lengths` are at least the `needed` mode lengths."""
    if len(lengths) != len(needed):
        raise InputError(f"{parameter('shape')} has {len(lengths)} modes, the tensor {len(needed)}")
    for mode, (length, least) in enumerate(zip(lengths, needed, strict=True)):
        if not least <= length <= MAX_MODE_LENGTH:
            most = MAX_MODE_LENGTH if length > MAX_MODE_LENGTH else ""
            cause = f"mode {mode} has {least} indices, {length} is outside {least}..{most}"
            raise InputError(f"{parameter('shape')}: {cause}")


def whole_lengths(shape: Sequence[int]) -> tuple[int, ...]:
    """Return a shape as Python integers; a length of 9.9 is an error, not 9."""
    try:
        return tuple(index(length) for length in shape)
    except TypeError:
        raise InputError(f"shape {shape!r}: expected an integer for each mode") from None


def is_masked(array: object) -> bool:
    """Return whether an array has masked entries."""
    # NumPy imports the module on first use, which takes 7 MB; another thread may be importing it.
    masked = getattr(sys.modules.get("numpy.ma"), "is_masked", None)
    return masked is not None and bool(masked(array))


def refuse_masked(array: object, name: str) -> None:
    """Raise `InputError` for an array with masked entries, whose values must not be used."""
    if is_masked(array):
        raise InputError(f"{name} has masked entries: masked arrays are not supported; fill the masked entries")


def check_order(order: int) -> None:
    """Raise `InputError` for an order that the kernels do not support."""
    if not MIN_ORDER <= order <= MAX_ORDER:
        raise InputError(f"order {order} tensor: amped decomposes orders {MIN_ORDER} to {MAX_ORDER}")
