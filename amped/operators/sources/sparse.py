"""Where a run's nonzeros come from: a tensor in rank 0's memory, or a file or store that every rank reads."""

from __future__ import annotations

import os
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from partitioner.array_types import FloatDType
from partitioner.readers import PLAIN, ReadOptions, is_divisible, open_store, read_sparse
from partitioner.shards.partition import Cut, SortedTensor, counted_rows, cut_mode
from partitioner.sorting.sort import key_bytes, sort_nonzeros
from partitioner.store.format import Store
from partitioner.store.shared_fs import check_same
from partitioner.tensors.digest import digest
from partitioner.tensors.sparse import SparseTensor
from partitioner.tensors.used_indices import count_runs, distinct, distinct_runs, joined

from ...backend.plain.splits import tree_rows
from ...errors import InputError
from ...parallel.mpi import Comm, on_root, share, together
from ..placement import INDEX_BYTES, Loading, nonzero_bytes
from .described import COUNTED, DescribedSparse
from .device_tensor import Holding, SortedTraits, TensorTraits, equal_parts, hold
from .distributed import READER_BYTES, DistributedFile, Progress, deal_fibres, distributed_loading
from .protocols import DeviceMemory, Offsets, SparseSource


class TensorSource(Holding, DescribedSparse):
    """A tensor in rank 0's memory; other ranks' arguments are ignored. See `SparseSource`."""

    stored = False

    def __init__(
        self,
        tensor: SparseTensor | None,
        comm: Comm,
        path: str | os.PathLike[str] | None = None,
        memory: DeviceMemory | None = None,
    ) -> None:
        """Take a tensor, which may have been read from `path`; store it on the devices if it fits into `memory`."""
        self._tensor, self._comm, self.path = tensor, comm, path
        root = self._root
        known = comm.bcast(None if root is None else (_kind(root), root.labels))
        if known is None:
            raise InputError("no tensor on rank 0")
        kind, self.labels = known
        self.shape, self.value_dtype = kind.shape, kind.dtype
        try:
            on_devices = hold(root, kind, memory)
        except InputError as error:
            raise InputError(error.cause, path=path) from None
        self._device_tensor = on_devices[0] if on_devices else None
        traits = (
            on_devices[1] if on_devices else comm.bcast(on_root(comm, lambda: None if root is None else _traits(root)))
        )
        assert traits is not None
        self.nnz, self.norm, self.value_range, self.duplicates, self.zeros = traits

    def used(self, mode: int) -> int:
        if self._device_tensor is not None:
            return self._device_tensor.used(mode)
        root = self._root
        return self._comm.bcast(0 if root is None else distinct(root.columns[mode], self.shape[mode]).size)

    def used_indices(self, mode: int) -> NDArray[np.int32]:
        if self._device_tensor is not None:
            return self._device_tensor.used_indices(mode)
        root = self._root
        return share(self._comm, None if root is None else distinct(root.columns[mode], self.shape[mode]))

    def cut(self, mode: int, parts: int, targets: Offsets | None = None) -> Cut:
        if self._device_tensor is not None:
            return self._device_tensor.cut(mode, parts, targets)
        mine, length = None, self.shape[mode]
        if self._root is not None:
            mine = cut_mode(counted_rows(self._root.columns[mode], length), length, parts, targets)
        cut = self._comm.bcast(mine)
        assert cut is not None
        return cut

    def load(self, mode: int, cut: Cut, dtype: FloatDType, keep: int | None = None) -> Iterator[Any]:
        if self._device_tensor is not None:
            yield from self._device_tensor.share(mode, cut, self._comm.rank, dtype)
            return
        copy = None if self._root is None else SortedTensor(self._root, mode, dtype)
        index = np.dtype(np.int32)
        for k in range(len(self.shape)):
            # No name for the whole column: it must be gone before the next one is gathered.
            yield self._comm.scatter(copy.column(k) if copy else None, cut.nonzeros, index)
        yield self._comm.scatter(copy.values if copy else None, cut.nonzeros, dtype)

    def by_fibre(self, mode: int, dtype: FloatDType) -> list[Any]:
        comm, order = self._comm, len(self.shape)
        if self._device_tensor is not None:
            return self._device_tensor.by_fibre(mode, dtype, comm.rank, comm.size)
        others, root = [m for m in range(order) if m != mode], self._root
        arrays: Any = (None,) * (order + 1)
        if root is not None:
            arrays = *root.columns, root.values
            if mode < order - 1:  # or they are in order already
                done = sort_nonzeros(root.columns, root.values, others, self.shape, dtype=dtype)
                arrays = *done.columns, done.values
        parts, kinds = equal_parts(self.nnz, comm.size), [np.dtype(np.int32)] * order + [dtype]
        wanted = (*others, mode, order)
        return [comm.scatter(arrays[m], parts, kind) for m, kind in zip(wanted, kinds, strict=True)]

    @property
    def _root(self) -> SparseTensor | None:
        return self._tensor if self._comm.rank == 0 else None

    def tensor(self) -> SparseTensor | None:
        return self._root

    def tree_rows(self) -> int | None:
        """See `DescribedSparse`: rank 0 counts if its tensor is small."""
        if self.nnz > COUNTED or self._device_tensor is not None:
            return None
        root = self._root
        return self._comm.bcast(None if root is None else tree_rows(list(root.columns), self.shape))

    def digest(self) -> int:
        return self._comm.bcast(0 if self._root is None else digest(list(self._root.columns), self._root.values))

    def loading(self, ranks: int, dtype: FloatDType, on_host: bool) -> Loading:
        """See `SparseSource`. Dealing a mode takes what sorting does, and the sorted copy where that is not kept."""
        root = self._root
        each = nonzero_bytes(len(self.shape), dtype)
        if self._device_tensor is not None:
            passing = self._device_tensor.passing(ranks)
            mine = Loading(device=passing)
            return mine if root is None else mine._replace(reading=root.build_bytes, tensor=root.nbytes, others=mine)
        if root is None:
            return Loading(streamed=each)
        if ranks > 1 and self.path is not None:  # they would read it together
            return distributed_loading(
                TensorTraits(self.shape, self.nnz, self.value_dtype), dtype, ranks, is_divisible(self.path)
            )
        same, single = self.value_dtype == dtype, ranks == 1 and on_host
        dealing = 0 if single else self.nnz * each
        shareable = (root.columns.nbytes + (root.values.nbytes if same else 0)) if single else 0
        reading, tensor = root.build_bytes + READER_BYTES, root.nbytes + READER_BYTES
        return Loading(reading, tensor, dealing, key_bytes(self.nnz), shareable, each)


def _kind(tensor: SparseTensor) -> TensorTraits:
    values = tensor.raw[0][1]
    return TensorTraits(tensor.shape, values.size, values.dtype, tensor.keeps_zeros)


def _traits(tensor: SparseTensor) -> SortedTraits:
    return SortedTraits(tensor.nnz, tensor.norm(), tensor.value_range(), tensor.duplicates, tensor.zeros)


class StoreSource(DescribedSparse):
    """A store on a disk that all ranks see; each reads and checks its own share. See `SparseSource`."""

    stored = True

    def __init__(self, store: Store, comm: Comm) -> None:
        self.path, self._store, self._comm = store.path, store, comm
        self.shape, self.nnz, self.norm = store.shape, store.nnz, store.norm
        self.value_range, self.value_dtype = store.value_range, store.value_dtype
        self.duplicates, self.zeros = store.duplicates, store.zeros
        self.labels = together(comm, store.labels)

    def used(self, mode: int) -> int:
        return self._comm.bcast(on_root(self._comm, lambda: count_runs(self._store.mode(mode).column(0))) or 0)

    def used_indices(self, mode: int) -> NDArray[np.int32]:
        parts, rank = equal_parts(self.nnz, self._comm.size), self._comm.rank
        mine = self._store.mode(mode).column(0).part(int(parts[rank]), int(parts[rank + 1]))
        return joined(together(self._comm, lambda: distinct_runs(mine)), self._comm)

    def cut(self, mode: int, parts: int, targets: Offsets | None = None) -> Cut:
        rows = self._store.mode(mode).column(0)
        return together(self._comm, lambda: cut_mode(rows, self.shape[mode], parts, targets))

    def load(self, mode: int, cut: Cut, dtype: FloatDType, keep: int | None = None) -> Iterator[Any]:
        rank, copy = self._comm.rank, self._store.mode(mode)
        start, stop = (int(cut.nonzeros[rank + k]) for k in (0, 1))
        begin, end = int(cut.rows[rank]), int(cut.rows[rank + 1])
        if (head := int(cut.heads[rank])) >= 0:  # a row of an earlier rank's
            begin, end = head, max(head + 1, end)
        count = stop - start if keep is None else keep
        yield from together(self._comm, lambda: copy.share(start, stop, range(begin, end), count, dtype))

    def by_fibre(self, mode: int, dtype: FloatDType) -> list[Any]:
        comm, copy = self._comm, self._store.mode(0)
        start, stop = (int(n) for n in equal_parts(self.nnz, comm.size)[comm.rank : comm.rank + 2])
        rows = range(self.shape[0])
        *columns, values = together(comm, lambda: copy.share(start, stop, rows, stop - start, dtype))
        return deal_fibres(np.stack(columns), values, mode, comm)

    def tensor(self) -> SparseTensor | None:
        return on_root(self._comm, self._store.tensor)

    def digest(self) -> int:
        """See `SparseSource`. Each rank reads an equal share."""
        copy, parts = self._store.mode(0), self._comm.size
        share = (self.nnz * self._comm.rank // parts, self.nnz * (self._comm.rank + 1) // parts)
        columns = [copy.column(k).part(*share) for k in range(len(self.shape))]
        mine = together(self._comm, lambda: digest(columns, copy.values.part(*share)))
        return sum(self._comm.allgather(mine)) % (1 << 64)

    def loading(self, ranks: int, dtype: FloatDType, on_host: bool) -> Loading:
        """See `SparseSource`. A mode's share is read into memory, or stays in its files if the host streams it."""
        order = len(self.shape)
        device = Loading(streamed=nonzero_bytes(order, self._store.value_dtype))
        mine = Loading(columns=INDEX_BYTES * order) if on_host else device
        return mine._replace(others=mine)

    def stay_on_device(self) -> None:
        """See `SparseSource`: it is never there as a whole."""

    placed = leave_device = stay_on_device


def open_source(
    path: str | os.PathLike[str],
    comm: Comm,
    progress: Progress | None = None,
    verify: bool = True,
    form: ReadOptions = PLAIN,
    memory: DeviceMemory | None = None,
) -> SparseSource:
    """Open the sparse tensor at `path`, a store or any file that `partitioner.readers.read_sparse` takes.

    Tensors read from a file are stored and sorted on the devices if they fit into `memory`. A store is checked
    against its checksums if `verify`. Every rank raises `InputError` if the file is at fault.
    """
    check_same(comm, path)
    if Path(path).is_dir():
        return StoreSource(together(comm, lambda: open_store(path, form, verify)), comm)
    if comm.size > 1:
        return DistributedFile(path, comm, progress, form, memory)
    return TensorSource(read_sparse(path, form, progress=progress), comm, path, memory)
