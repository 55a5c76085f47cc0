"""A whole tensor in the device memory of every rank, where it is sorted for each mode while it is loaded."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from itertools import accumulate
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from partitioner.array_types import FloatDType, Integers
from partitioner.host.stages import STAGES
from partitioner.shards.partition import CountedRows, Cut, cut_mode, mode_order
from partitioner.sorting.tables import Nonzeros
from partitioner.tensors.sparse import SparseTensor, check_merged
from partitioner.tensors.used_indices import is_long
from partitioner.tensors.value_range import ValueRange, norm

from ...backend.device import Array
from ...backend.ops.sort import SORT, DeviceSorter
from ...parallel.mpi import on_root
from ..memory import Passing
from ..placement import nonzero_bytes
from .protocols import DeviceMemory

SMALL = 64  # a tensor may stay on a device if the memory is at least this many times as large
LEAST = 1 << 16  # nonzeros below which the host sorts faster than a GPU loads its code
PICKED = 16  # bytes per nonzero of the tensor while those of a rank are selected: masks and positions


class TensorTraits(NamedTuple):
    """Properties of a tensor from which memory for its nonzeros is allocated."""

    shape: tuple[int, ...]
    nonzeros: int
    dtype: FloatDType  # of the values
    keep_zeros: bool = False  # whether explicit zeros are kept when duplicates are merged

    @property
    def nbytes(self) -> int:
        """Bytes of the nonzeros."""
        return self.nonzeros * nonzero_bytes(len(self.shape), self.dtype)


class SortedTraits(NamedTuple):
    """Properties of a tensor that are known once it is sorted."""

    nonzeros: int
    norm: float
    values: ValueRange
    duplicates: int
    zeros: int


class Holding:
    """Base class of sources whose tensor may be in device memory while it is loaded, or until it is placed again."""

    _device_tensor: DeviceTensor | None = None
    _stays = False

    def stay_on_device(self) -> None:
        """See `SparseSource`."""
        self._stays = self._device_tensor is not None and self._device_tensor.small

    def placed(self) -> None:
        """See `SparseSource`."""
        if not self._stays:
            self.leave_device()

    def leave_device(self) -> None:
        """See `SparseSource`."""
        self._device_tensor = None


class DeviceTensor:
    """Nonzeros in device memory, in any order until `merge`. Methods are only collective if stated."""

    def __init__(self, kind: TensorTraits, memory: DeviceMemory, sort: DeviceSorter) -> None:
        self._machine, self._sort, self._shape = memory.machine, sort, kind.shape
        self.small = kind.nbytes * SMALL <= memory.nbytes
        empty, order = memory.machine.device.empty, len(kind.shape)
        self._columns: Array = empty((order, kind.nonzeros), np.dtype(np.int32))
        self._values: Array = empty((kind.nonzeros,), kind.dtype)
        self._nbytes, self._keep_zeros = kind.nbytes, kind.keep_zeros

    @property
    def kind(self) -> TensorTraits:
        """See `TensorTraits`."""
        return TensorTraits(self._shape, int(self._values.size), self._values.dtype, self._keep_zeros)

    def fill(self, begin: int, nonzeros: Nonzeros) -> None:
        """Copy nonzeros from host memory to positions from `begin` on."""
        part = slice(begin, begin + nonzeros[1].size)
        with STAGES.of("copy"):
            self._machine.device.fill([*self._columns[:, part], self._values[part]], [*nonzeros[0], nonzeros[1]])

    def gather(self, offsets: Sequence[int]) -> None:
        """All-gather the nonzeros; rank ``r`` contributes those from ``offsets[r]`` on. Collective."""
        begin, end = (np.array(x, np.int64) for x in (offsets[:-1], offsets[1:]))
        for array in (*self._columns, self._values):
            numbers = array if array.dtype == np.float64 else array.view(np.float32)  # types that the exchange supports
            self._machine.exchange.gather_rows(numbers.reshape(-1, 1), begin, end)
        self._machine.exchange.wait_comm()

    def merge(self) -> tuple[int, int]:
        """Sort lexicographically, sum duplicates and drop zeros unless kept; return the numbers of both.

        Raises
        ------
        InputError
            If no nonzero remains, or a sum of duplicates overflows.
        """
        sort, original = self._sort, int(self._values.size)
        places = sort.places(self._columns, range(len(self._shape)), self._shape)
        places, distinct = sort.merge(self._columns, self._values, places, self._keep_zeros)
        kept = int(places.size)
        if kept:
            for array in (*self._columns, self._values):  # one after the other, as memory does not fit two copies
                array[:kept] = sort.take(array, places)
        self._columns, self._values = self._columns[:, :kept], self._values[:kept]
        check_merged(kept, not kept or bool(np.isfinite(self.value_range().largest)))
        return original - distinct, distinct - kept

    def value_range(self) -> ValueRange:
        """Return bounds on the values."""
        return self._sort.value_range(self._values)

    def traits(self, repaired: tuple[int, int]) -> SortedTraits:
        """Return the properties of the sorted tensor; `repaired` are the numbers of duplicates and zeros."""
        values = self.value_range()
        result = norm(values[:2], self._sort.squares(self._values, values.largest or 1.0))
        return SortedTraits(int(self._values.size), result, values, *repaired)

    def counts(self, mode: int) -> tuple[NDArray[np.int64], Integers | None]:
        """Return the number of nonzeros of each row of a mode; for long modes of nonempty rows only, and those rows."""
        sort, host, column = self._sort, self._machine.device.to_host, self._columns[mode]
        if not is_long(self._shape[mode], column.size):
            return host(sort.counts(column, self._shape[mode])), None
        ascending = sort.take(column, sort.places([column], [0], [self._shape[mode]])) if mode else column
        starts = sort.starts([ascending], int(ascending.size))
        counts: NDArray[np.int64] = np.diff(host(starts).view(np.int32)).astype(np.int64)
        return counts, host(sort.take(ascending, starts[:-1]))

    def used(self, mode: int) -> int:
        """Return the number of used indices of a mode."""
        return int(np.count_nonzero(self.counts(mode)[0]))

    def used_indices(self, mode: int) -> NDArray[np.int32]:
        """Return the used indices of a mode, ascending."""
        counts, rows = self.counts(mode)
        return (np.flatnonzero(counts) if rows is None else rows).astype(np.int32)

    def cut(self, mode: int, parts: int, targets: NDArray[np.int64] | None) -> Cut:
        """See `SparseSource`."""
        rows = CountedRows(*self.counts(mode)) if parts > 1 else CountedRows(np.array([self._values.size]))
        return cut_mode(rows, self._shape[mode], parts, targets)

    def share(self, mode: int, cut: Cut, part: int, dtype: FloatDType) -> Iterator[Array]:
        """Yield the columns and values of part number `part` of a mode; see `SparseSource.load`."""
        begin, end = int(cut.nonzeros[part]), int(cut.nonzeros[part + 1])
        if mode == 0:  # in order already
            yield from self._columns[:, begin:end]
            yield self._sort.cast(self._values[begin:end], dtype)
            return
        places = self._places(mode, begin, end, self._rows(cut, part) if cut.heads.size > 1 else None)
        for m in mode_order(len(self._shape), mode):
            yield self._sort.take(self._columns[m], places)
        yield self._sort.cast(self._sort.take(self._values, places), dtype)

    def by_fibre(self, mode: int, dtype: FloatDType, part: int, parts: int) -> list[Array]:
        """Return part number `part` of the nonzeros in fibre order of a mode; see `SparseSource.by_fibre`."""
        order, offsets = len(self._shape), equal_parts(int(self._values.size), parts)
        others, mine = [m for m in range(order) if m != mode], slice(int(offsets[part]), int(offsets[part + 1]))
        if mode == order - 1:  # in order already
            share = [column[mine] for column in (*self._columns, self._values)]
            return [*share[:-1], self._sort.cast(share[-1], dtype)]
        lengths = [self._shape[m] for m in others]
        places = self._sort.places([self._columns[m] for m in others], range(len(others)), lengths)[mine]
        share = [self._sort.take(array, places) for array in (*self._columns, self._values)]
        return [*(share[m] for m in (*others, mode)), self._sort.cast(share[-1], dtype)]

    def _rows(self, cut: Cut, part: int) -> tuple[int, int]:
        """Return the first row of a part's nonzeros, and an upper bound of the last one."""
        first, head = int(cut.rows[part]), int(cut.heads[part])
        return (first if head < 0 else head), int(cut.rows[part + 1]) - 1

    def _places(self, mode: int, begin: int, end: int, rows: tuple[int, int] | None) -> Array:
        """Return the positions of nonzeros `begin` to `end` of a mode's order, all of which are in `rows`."""
        sort, column, length = self._sort, self._columns[mode], self._shape[mode]
        if begin == end:
            return self._machine.device.empty((0,), np.dtype(np.uint32))
        if rows is None:
            return sort.places([column], [0], [length])
        before = int(sort.between(column, 0, rows[0]).size)
        picked = sort.between(column, rows[0], rows[1] + 1)
        places = sort.places([sort.take(column, picked)], [0], [length])[begin - before : end - before]
        return sort.take(picked, places)

    def passing(self, ranks: int) -> Passing:
        """Return the device memory that loading for `ranks` ranks needs in addition to its result."""
        nonzeros = int(self._values.size)
        picking = PICKED * nonzeros if ranks > 1 else 0
        each = nonzero_bytes(len(self._shape), self._values.dtype)
        return Passing(self._nbytes, each, self._sort.scratch, picking)

    def to_host(self) -> Nonzeros:
        """Return the nonzeros in host memory."""
        kind, device = self.kind, self._machine.device
        columns, values = np.empty((len(kind.shape), kind.nonzeros), np.int32), np.empty(kind.nonzeros, kind.dtype)
        for target, source in zip((*columns, values), (*self._columns, self._values), strict=True):
            target[:] = device.to_host(source)
        return columns, values


def equal_parts(nonzeros: int, parts: int) -> NDArray[np.int64]:
    """Return the offsets, (parts + 1,), of parts of equal numbers of nonzeros."""
    return np.array([nonzeros * part // parts for part in range(parts + 1)], np.int64)


def hold(
    tensor: SparseTensor | None, kind: TensorTraits, memory: DeviceMemory | None
) -> tuple[DeviceTensor, SortedTraits] | None:
    """Store rank 0's `tensor` on the devices of all ranks; return None if it should stay on the host. Collective."""
    sort = _sorter(kind, memory)
    if sort is None or memory is None:
        return None
    comm = memory.machine.comm

    def first() -> tuple[DeviceTensor, SortedTraits]:
        assert tensor is not None
        nonzeros, ordered = tensor.raw
        device_tensor = DeviceTensor(kind, memory, sort)
        device_tensor.fill(0, nonzeros)
        with STAGES.of("sort"):
            traits = device_tensor.traits((tensor.duplicates, tensor.zeros) if ordered else device_tensor.merge())
        tensor.merged(traits.duplicates, lambda: traits.values)
        return device_tensor, traits

    first_result = on_root(comm, first)
    traits = comm.bcast(None if first_result is None else first_result[1])
    assert traits is not None
    device_tensor = (
        DeviceTensor(kind._replace(nonzeros=traits.nonzeros), memory, sort) if first_result is None else first_result[0]
    )
    if comm.size > 1:
        device_tensor.gather([0] + [traits.nonzeros] * comm.size)
    return device_tensor, traits


def hold_together(
    nonzeros: Nonzeros, kind: TensorTraits, memory: DeviceMemory | None, merge: bool = False
) -> tuple[DeviceTensor, SortedTraits] | None:
    """Store a tensor, of which each rank has some nonzeros, on the devices of all ranks; see `hold`. Collective.

    The concatenated nonzeros of ranks 0, 1, ... are sorted, or `merge` sorts them.
    """
    sort = _sorter(kind, memory)
    if sort is None or memory is None:
        return None
    comm = memory.machine.comm
    offsets = [0, *accumulate(comm.allgather(int(nonzeros[1].size)))]
    device_tensor = DeviceTensor(kind, memory, sort)
    device_tensor.fill(offsets[comm.rank], nonzeros)
    device_tensor.gather(offsets)
    return device_tensor, comm.bcast(device_tensor.traits(device_tensor.merge() if merge else (0, 0)))


def _sorter(kind: TensorTraits, memory: DeviceMemory | None) -> DeviceSorter | None:
    """Return the device sorter for a tensor; None if any rank's device has none or too little memory. Collective."""
    if memory is None or kind.nonzeros < LEAST:
        return None
    sort = SORT.first(memory.machine.device)
    fits = (
        sort is not None and kind.nonzeros <= sort.most and kind.nbytes + sort.scratch * kind.nonzeros <= memory.nbytes
    )
    return sort if all(memory.machine.comm.allgather(fits)) else None
