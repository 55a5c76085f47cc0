"""Sort nonzeros on a GPU: `CudaSorter` sorts nonzeros in host memory, the functions those in device memory."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from functools import cache
from typing import Unpack

import cupy
import numpy as np

from ..array_types import FloatDType
from ..errors import InputError
from ..sorting.sort import Sorted, SortOptions, result_arrays, sort_nonzeros
from ..sorting.tables import Indices, Values
from ..tensors.value_range import BLOCK, FINEST_GRAIN, ValueRange
from ..wording import setting
from .code import load
from .copies import Array, copies
from .cubins import CudaFunction, CudaSource
from .sort_keys import KERNELS, MOST, OPTIONS, passes, place_bits, text

SORTING = 44  # scratch bytes per nonzero: words, radix sort and positions, or positions and gathered nonzeros
FREE_SHARE = 0.9  # of the device's free memory
THREADS = 256  # per block
SELECTED = 16 * THREADS  # elements of a block that selects
BLOCKS = 1024  # of threads, for reductions


class CudaSorter:
    """The `Sorter` of one GPU. Nonzeros that do not fit its memory are sorted on the CPU.

    Parameters
    ----------
    local_rank : int
        This rank's number on its node. The GPU is `local_rank` modulo the number of GPUs.
    threads : int
        Number of threads for copies.

    Attributes
    ----------
    identity : str
        PCI bus ID, unique on the node.
    """

    def __init__(self, local_rank: int, threads: int) -> None:
        self._device = cupy.cuda.Device(local_rank % cupy.cuda.runtime.getDeviceCount())
        self.identity = str(self._device.pci_bus_id)
        with _memory_errors(), self._device:
            self._stream = cupy.cuda.Stream(non_blocking=True)
            self._copies = copies(self._device.id, threads)
        # The first sort compiles and loads the kernels, so that free memory is measured afterwards.
        self._free_bytes = self._copies.nbytes
        self.sort(np.array([[0, 1, 1]], np.int32), np.array([0.0, 1.0, 1.0]), [0], [2], merge=True)

    def share_memory(self, ranks: int) -> None:
        """Limit this rank to an equal share of the GPU's free memory among `ranks` ranks."""
        with self._device:
            free: int = cupy.cuda.runtime.memGetInfo()[0]
        self._free_bytes = int(FREE_SHARE * free) // ranks

    def most(self, order: int, dtype: FloatDType) -> int:
        """See `Sorter`."""
        return min(MOST, self._free_bytes // (4 * order + dtype.itemsize + SORTING))

    def sort(
        self,
        columns: Indices,
        values: Values,
        modes: Sequence[int],
        lengths: Sequence[int],
        **options: Unpack[SortOptions],
    ) -> Sorted:
        """See `sort_nonzeros`."""
        order, nonzeros = columns.shape
        dtype = options.get("dtype") or values.dtype
        if not 0 < nonzeros <= self.most(order, dtype):
            return sort_nonzeros(columns, values, modes, lengths, **options)
        with _memory_errors(), self._device, self._stream:
            table, numbers = cupy.empty(columns.shape, np.int32), cupy.empty(nonzeros, dtype)
            needed = [*reversed(modes), *(m for m in range(order) if m not in modes)]
            sent = {m: self._copies.send(columns[m], table[m]) for m in needed}
            sent_values = self._copies.send(values, numbers)
            places = sorted_places(table, modes, lengths, lambda mode: self._copies.wait(sent[mode]))
            self._copies.wait([*(piece for each in sent.values() for piece in each), *sent_values])
            distinct = nonzeros
            if options.get("merge"):
                places, distinct = merge(table, numbers, places, options.get("keep_zeros", False))
            result = result_arrays(columns, values, places.size, dtype, options.get("overwrite", False))
            gathered = [take(array, places) for array in (*table, numbers)]
            self._copies.fetch(gathered, [*result[0], result[1]])
        return Sorted(*result, self._copies.nbytes, nonzeros - distinct, distinct - places.size)


def sorted_places(
    columns: Sequence[Array], modes: Sequence[int], lengths: Sequence[int], wait: Callable[[int], None] | None = None
) -> Array:
    """Return the permutation that sorts nonzeros stably by their indices of `modes`, the most significant first.

    `wait` is called with each mode before its column is read.
    """
    nonzeros = columns[0].size
    places, mask = None, np.uint64((1 << place_bits(nonzeros)) - 1)
    for fields in passes(modes, lengths, nonzeros):
        words = cupy.empty(nonzeros, np.uint64)
        _launch("number", nonzeros, words)
        for mode, down, bits, up in fields:
            if wait is not None:
                wait(mode)
            low = np.uint64((1 << bits) - 1)
            _launch("join", nonzeros, columns[mode], _pointer(places), np.int32(down), low, np.int32(up), words)
        words.sort()  # CuPy sorts integers by radix
        positions = cupy.empty(nonzeros, np.uint32)
        _launch("split", nonzeros, words, mask, _pointer(places), positions)
        places = positions
        del words
    return places


def merge(table: Array, numbers: Array, places: Array, keep_zeros: bool = False) -> tuple[Array, int]:
    """Sum nonzeros with equal indices into the first of them.

    Parameters
    ----------
    table : (order, nonzeros) int32 array
        Indices.
    numbers : (nonzeros,) array
        Values; overwritten.
    places : (nonzeros,) uint32 array
        Permutation that sorts the nonzeros.
    keep_zeros : bool
        Whether zero sums remain.

    Returns
    -------
    places : array
        The permutation without merged nonzeros and, unless kept, zero sums.
    distinct : int
        Number of distinct indices.
    """
    order, nonzeros = table.shape
    marks = cupy.empty(nonzeros, np.bool_)
    _launch("mark", nonzeros, table, np.int32(order), places, marks)
    starts = _selected(marks)
    distinct: int = starts.size - 1
    nonzero = marks[:distinct]
    _launch(f"add_up_{8 * numbers.itemsize}", distinct, numbers, places, starts, nonzero)
    if distinct < nonzeros:
        places = take(places, starts[:-1])
    del starts
    kept = None if keep_zeros else _selected(nonzero)[:-1]
    return (places if kept is None or kept.size == distinct else take(places, kept)), distinct


def starts(columns: Sequence[Array], elements: int) -> Array:
    """Return the positions at which any of the columns (int32) changes, the first position, and the end.

    Without columns nothing changes. The result is a uint32 array.
    """
    if not elements:
        return cupy.zeros(1, np.uint32)
    marks = cupy.empty(elements, np.bool_)
    for number, column in enumerate(columns or [np.uint64(0)]):
        _launch("mark_changes", elements, column, np.int32(number == 0), marks)
    return _selected(marks)


def between(column: Array, low: int, high: int) -> Array:
    """Return the positions of indices from `low` to below `high`, uint32."""
    marks = cupy.empty(column.size, np.bool_)
    if column.size:
        _launch("mark_between", column.size, column, np.int32(low), np.int32(high), marks)
    return _selected(marks)[:-1]


def counts(column: Array, length: int) -> Array:
    """Return how often each index below `length` occurs in a column (int32), as an int64 array."""
    result = cupy.zeros(length, np.int64)
    if column.size:
        _launch("count_indices", column.size, column, result)
    return result


def _selected(marks: Array) -> Array:
    """Return the positions of marked elements, then the number of elements, as a uint32 array."""
    blocks = -(-marks.size // SELECTED)
    if not blocks:
        return cupy.zeros(1, np.uint32)
    functions, before = _functions(marks.device.id), cupy.empty(blocks + 1, np.int64)
    size = np.int64(marks.size)
    functions["count_marks"]((blocks,), (THREADS,), (marks, before, size))
    functions["sum_before"]((1,), (1024,), (before, np.int64(blocks)))
    result = cupy.empty(int(before[-1]) + 1, np.uint32)
    functions["select_marked"]((blocks,), (THREADS,), (marks, before, result, size))
    return result


def take(array: Array, places: Array) -> Array:
    """Return the elements of a 1-d array at `places`."""
    result = cupy.empty(places.size, array.dtype)
    if places.size:
        _launch(f"gather_{8 * array.itemsize}", places.size, array, places, result)
    return result


def cast(values: Array, dtype: FloatDType) -> Array:
    """Return values as another floating-point type, without a copy if they have it already."""
    if values.dtype == dtype:
        return values
    result = cupy.empty(values.size, dtype)
    if values.size:
        _launch(f"to_{8 * dtype.itemsize}", values.size, values, result)
    return result


def value_range(values: Array) -> ValueRange:
    """Return the same as `SparseTensor.value_range`."""
    bounds = cupy.empty((BLOCKS, 3), np.float64)
    _functions(values.device.id)[f"bounds_{8 * values.itemsize}"](
        (BLOCKS,), (THREADS,), (values, np.int32(FINEST_GRAIN + 1), bounds, np.int64(values.size))
    )
    low, high, digits = bounds.get().T
    exponent = int(digits.max())
    return ValueRange(float(low.min()), float(high.max()), 0.0 if exponent > FINEST_GRAIN else 2.0**-exponent)


def squares(values: Array, largest: float) -> list[float]:
    """Like `partitioner.tensors.value_range.squares`, but with another order of additions within a block."""
    blocks = -(-values.size // BLOCK)
    partial = cupy.empty(blocks, np.float64)
    _functions(values.device.id)[f"squares_{8 * values.itemsize}"](
        (blocks,), (THREADS,), (values, np.float64(largest), np.int64(BLOCK), partial, np.int64(values.size))
    )
    sums: list[float] = partial.get().tolist()
    return sums


def _launch(name: str, threads: int, *arguments: object) -> None:
    """Launch a kernel on the current stream. The number of threads is its last argument."""
    function = _functions(cupy.cuda.runtime.getDevice())[name]
    function((-(-threads // THREADS),), (THREADS,), (*arguments, np.int64(threads)))


def _pointer(array: Array | None) -> Array:
    return np.uint64(0) if array is None else array


@cache
def _functions(device: int) -> dict[str, CudaFunction]:
    module = load(CudaSource("cuda_sort", text(), OPTIONS))
    return {name: module.get_function(name) for name in KERNELS}


@contextmanager
def _memory_errors() -> Iterator[None]:
    try:
        yield
    except cupy.cuda.memory.OutOfMemoryError as error:
        raise InputError(f"{setting('device', 'cuda')}: {error}") from None
