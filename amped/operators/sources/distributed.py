"""Files that all ranks read together: each keeps some of the nonzeros, and each mode is redistributed."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterable, Iterator, Sequence
from itertools import chain
from typing import Any

import numpy as np
from numpy.typing import NDArray

from partitioner.array_types import FloatDType, Floats, HostArray
from partitioner.distributed_reading import NonzeroCounts as ReadFacts
from partitioner.distributed_reading import Reading
from partitioner.host.threads import usable_cores
from partitioner.readers import PLAIN, ReadOptions, is_divisible
from partitioner.shards.partition import CountedRows, Cut, DistributedRows, cut_mode, mode_order
from partitioner.shards.sorted_runs import MergedSlice, Runs
from partitioner.sorting.sort import sort_bytes, sort_nonzeros
from partitioner.sorting.tables import Nonzeros
from partitioner.tensors.digest import digest
from partitioner.tensors.labels import Labels
from partitioner.tensors.sparse import SparseTensor
from partitioner.tensors.used_indices import all_distinct, distinct, is_long
from partitioner.tensors.value_range import ValueRange, norm, squares

from ...backend.plain.splits import tree_rows
from ...errors import InputError
from ...parallel.mpi import Comm
from ..placement import Loading, nonzero_bytes
from .described import COUNTED, DescribedSparse
from .device_tensor import DeviceTensor, Holding, SortedTraits, TensorTraits, equal_parts, hold_together
from .protocols import DeviceMemory, Offsets

EVERYTHING = 1 << 62  # nonzeros that are sorted together: all
READER_BYTES = 5 << 20  # compiled readers and sorts, and the blocks that they read

Progress = Callable[[int, int | None], None]


class DistributedFile(Holding, DescribedSparse):
    """A file read by all ranks together, each of which keeps an equal share of nonzeros. See `SparseSource`."""

    stored = False

    def __init__(
        self,
        path: str | os.PathLike[str],
        comm: Comm,
        progress: Progress | None = None,
        form: ReadOptions = PLAIN,
        memory: DeviceMemory | None = None,
    ) -> None:
        """Read the file; store its nonzeros on the devices if they fit into `memory`, otherwise sort them."""
        self.path, self._comm, reading = path, comm, Reading(path, comm, progress, form)
        self.value_dtype, self._threads = reading.dtype, reading.threads
        self._in_parts, self._keep_zeros = is_divisible(path, form), form.keep_zeros
        nothing = np.empty((reading.order, 0), np.int32), np.empty(0, reading.dtype)
        self._read: Nonzeros | None = next(((c, v) for c, v, _ in reading.chunks(EVERYTHING)), nothing)
        self._share: Nonzeros | None = None  # this rank's equal share of the nonzeros in order, computed on demand
        self.shape = reading.shape()
        self.labels: Labels | None = reading.labels
        self._device_tensor: DeviceTensor | None = None
        on_devices = None if form.compact else self._hold(memory)
        if on_devices is not None:
            self._device_tensor, traits = on_devices
            reading.warn(traits.duplicates, lambda: traits.values)
        else:
            traits = self._traits(reading)
            if self._renumber(reading):
                on_devices = hold_together(self._ordered(), self._kind(traits.nonzeros), memory)
                self._device_tensor = on_devices[0] if on_devices else None
        self.nnz, self.norm, self.value_range, self.duplicates, self.zeros = traits

    def _kind(self, nonzeros: int) -> TensorTraits:
        return TensorTraits(self.shape, nonzeros, self.value_dtype, self._keep_zeros)

    def _hold(self, memory: DeviceMemory | None) -> tuple[DeviceTensor, SortedTraits] | None:
        """Sort the nonzeros on the devices if they fit. Collective."""
        assert self._read is not None
        whole = sum(self._comm.allgather(int(self._read[1].size)))
        try:
            return hold_together(self._read, self._kind(whole), memory, merge=True)
        except InputError as error:
            raise InputError(error.cause, path=self.path) from None

    def _traits(self, reading: Reading) -> SortedTraits:
        """Sort the nonzeros on the host; return their properties. Collective."""
        runs = self._ordering()
        mine = ReadFacts(0, runs.duplicates, runs.zeros)
        values = self._ordered()[1]
        mine.add(values)
        result = reading.join_counts(self._comm.allgather(mine))
        sums = chain.from_iterable(self._comm.allgather(squares(values, result.ends)))
        bounds = ValueRange(*result.ends, result.grain)
        return SortedTraits(result.nnz, norm(result.ends, list(sums)), bounds, result.duplicates, result.zeros)

    def _renumber(self, reading: Reading) -> bool:
        """Renumber used indices if requested; return whether it was. Collective."""
        if not reading.form.compact:
            return False
        columns = self._ordered()[0]
        renumbering = reading.renumbering([distinct(column, n) for column, n in zip(columns, self.shape, strict=True)])
        assert renumbering is not None
        self.shape, self.labels = renumbering.shape, renumbering.labels
        renumbering.apply(columns)
        return True

    def _ordering(self) -> Runs:
        """Redistribute the nonzeros so that each rank has an equal share in sorted order. Collective."""
        runs = self._runs(range(len(self.shape)), len(self.shape), self.value_dtype)
        assert self._read is not None
        (columns, values), self._read = self._read, None
        if values.size:
            runs.add(columns, values)
        del columns, values
        self._share = self._only(runs.pieces(runs.shares(), merge=True), self.value_dtype)
        return runs

    def _ordered(self) -> Nonzeros:
        """Return this rank's share of the sorted nonzeros, which are sorted on first use. Collective."""
        if self._share is None:
            self._ordering()
        assert self._share is not None
        return self._share

    def _runs(self, modes: Sequence[int], order: int, dtype: FloatDType) -> Runs:
        return Runs(modes, order, dtype, EVERYTHING, self._comm, self._threads, keep_zeros=self._keep_zeros)

    def _only(self, pieces: Iterable[Nonzeros], dtype: FloatDType) -> Nonzeros:
        """Return the only piece of this rank, or empty arrays."""
        empty = np.empty((len(self.shape), 0), np.int32), np.empty(0, dtype)
        return next(iter([*pieces, empty]))

    def used(self, mode: int) -> int:
        if self._device_tensor is not None:
            return self._device_tensor.used(mode)
        return int(all_distinct(self._ordered()[0][mode], self.shape[mode], self._comm).size)

    def used_indices(self, mode: int) -> NDArray[np.int32]:
        if self._device_tensor is not None:
            return self._device_tensor.used_indices(mode)
        return all_distinct(self._ordered()[0][mode], self.shape[mode], self._comm)

    def cut(self, mode: int, parts: int, targets: Offsets | None = None) -> Cut:
        if self._device_tensor is not None:
            return self._device_tensor.cut(mode, parts, targets)
        column, length = self._ordered()[0][mode], self.shape[mode]
        if is_long(length, self.nnz):
            return cut_mode(DistributedRows(column, length, self._comm), length, parts, targets)
        counts = np.bincount(column, minlength=length)
        self._comm.all_reduce(counts, "sum")
        return cut_mode(CountedRows(counts), length, parts, targets)

    def load(self, mode: int, cut: Cut, dtype: FloatDType, keep: int | None = None) -> Iterator[Any]:
        if self._device_tensor is not None:
            yield from self._device_tensor.share(mode, cut, self._comm.rank, dtype)
            return
        columns, values = self._ordered()
        runs, mine = self._runs([mode], len(self.shape), dtype), (columns, values.astype(dtype, copy=False))
        if mode:
            mine = sort_nonzeros(*mine, [mode], self.shape, threads=self._threads)[:2]
        runs.add(*mine, in_order=True)
        del mine
        shares = runs.shares_at(cut.nonzeros, _keys_at(cut), as_is=mode == 0)
        columns, values = self._only(runs.pieces(shares), dtype)
        del runs
        for m in mode_order(len(self.shape), mode):
            yield columns[m]
        yield values

    def by_fibre(self, mode: int, dtype: FloatDType) -> list[Any]:
        if self._device_tensor is not None:
            return self._device_tensor.by_fibre(mode, dtype, self._comm.rank, self._comm.size)
        columns, values = self._ordered()
        return deal_fibres(columns, values.astype(dtype, copy=False), mode, self._comm, self._threads)

    def tensor(self) -> SparseTensor | None:
        runs = self._runs(range(len(self.shape)), len(self.shape), self.value_dtype)
        mine = self._ordered()
        runs.add(*mine, in_order=True)
        everything = MergedSlice(
            np.zeros(self._comm.size, np.int64), np.array(self._comm.allgather(mine[1].size)), True
        )
        columns, values = self._only(
            runs.pieces([[everything], *([] for _ in range(self._comm.size - 1))]), self.value_dtype
        )
        if self._comm.rank:
            return None
        tensor = SparseTensor.from_columns(columns, values, self.shape, keep_zeros=self._keep_zeros)
        tensor.labels = self.labels
        return tensor

    def tree_rows(self) -> int | None:
        """See `DescribedSparse`: the sum over the ranks' shares."""
        if self.nnz > COUNTED or self._device_tensor is not None:
            return None
        return sum(self._comm.allgather(tree_rows(list(self._ordered()[0]), self.shape)))

    def digest(self) -> int:
        columns, values = self._ordered()
        return sum(self._comm.allgather(digest(list(columns), values))) % (1 << 64)

    def loading(self, ranks: int, dtype: FloatDType, on_host: bool) -> Loading:
        loading = distributed_loading(self._kind(self.nnz), dtype, ranks, self._in_parts)
        if self._device_tensor is None:
            return loading
        mine = loading._replace(dealing=0, sorting=0, streamed=0, device=self._device_tensor.passing(ranks))
        return mine._replace(others=mine._replace(reading=(loading.others or loading).reading))


def deal_fibres(
    columns: NDArray[np.int32], values: Floats, mode: int, comm: Comm, threads: int | None = None
) -> list[Any]:
    """Return the result of `SparseSource.by_fibre` from sorted nonzeros on ranks 0, 1, ... Collective."""
    order = len(columns)
    others = [m for m in range(order) if m != mode]
    if mode < order - 1:
        lengths = [int(column.max(initial=0)) + 1 for column in columns]
        run = sort_nonzeros(columns, values, others, lengths, threads=threads)[:2] if values.size else (columns, values)
        runs = Runs(others, order, values.dtype, EVERYTHING, comm, threads or usable_cores())
        runs.add(*run, in_order=True)
        del run
        empty = np.empty((order, 0), np.int32), np.empty(0, values.dtype)
        columns, values = next(iter([*runs.pieces(runs.shares()), empty]))
    return evened([*(columns[m] for m in (*others, mode)), values], comm)


def evened(arrays: list[HostArray], comm: Comm) -> list[HostArray]:
    """Return equal shares of arrays whose consecutive parts are on ranks 0, 1, ... Collective."""
    ends = np.cumsum([0, *comm.allgather(int(arrays[0].size))])
    wanted = equal_parts(int(ends[-1]), comm.size)
    if comm.size == 1 or np.array_equal(ends, wanted):
        return arrays

    def overlap(holder: int, owner: int) -> tuple[int, int]:
        return max(int(ends[holder]), int(wanted[owner])), min(int(ends[holder + 1]), int(wanted[owner + 1]))

    result = []
    for array in arrays:
        mine = np.empty(int(wanted[comm.rank + 1] - wanted[comm.rank]), array.dtype)
        for shift in range(comm.size):
            to, source = (comm.rank + shift) % comm.size, (comm.rank - shift) % comm.size
            begin, end = overlap(comm.rank, to)
            part = array[begin - ends[comm.rank] : max(begin, end) - ends[comm.rank]]
            begin, end = overlap(source, comm.rank)
            comm.swap(part, to, mine[begin - wanted[comm.rank] : max(begin, end) - wanted[comm.rank]], source)
        result.append(mine)
    return result


def _keys_at(cut: Cut) -> NDArray[np.int32]:
    """Return the row, (1, parts - 1), in which each part but the first begins, or an empty row before it."""
    keys = np.where(cut.heads >= 0, cut.heads, cut.rows[:-1])
    for p in reversed(range(keys.size - 1)):  # a part without nonzeros begins where the next one does
        if cut.nonzeros[p] == cut.nonzeros[p + 1]:
            keys[p] = keys[p + 1]
    return keys[None, 1:].astype(np.int32)


def distributed_loading(kind: TensorTraits, dtype: FloatDType, ranks: int, in_parts: bool) -> Loading:
    """Return the memory for loading a file together: `in_parts`, or read by rank 0."""
    order, share = len(kind.shape), -(-kind.nonzeros // ranks)
    stored, each = nonzero_bytes(order, kind.dtype), nonzero_bytes(order, dtype)
    threads = max(1, usable_cores() // ranks)  # on one node

    def of(read: int) -> Loading:
        # A run is sorted, and then kept while a slice is received and sorted.
        run, merged = (sort_bytes(n, stored, threads=threads) for n in (read, share))
        sorting = read * stored + max(run, share * stored + merged)
        dealing = share * each, sort_bytes(share, each, threads=threads)
        return Loading(sorting, READER_BYTES + share * stored, *dealing, streamed=each)

    root = of(share if in_parts else kind.nonzeros)
    return root._replace(others=of(share if in_parts else 0))
