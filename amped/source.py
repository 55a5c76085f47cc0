"""Where a run's nonzeros come from: a tensor in rank 0's memory, or a store that every rank reads."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any, Protocol

import numpy as np
from numpy.typing import NDArray

from partitioner.coo import SparseTensor, ValueRange
from partitioner.digest import digest
from partitioner.readers import read
from partitioner.shards import CountedRows, Cut, SortedTensor, cut_mode
from partitioner.sort import sort_bytes
from partitioner.store import Store

from .errors import InputError
from .mpi import Comm, on_root, together
from .placement import Loading, nonzero_bytes

READER_BYTES = 5 << 20  # compiled readers and sorts, and the blocks that they read

Progress = Callable[[int, int | None], None]


class Source(Protocol):
    """A tensor that is dealt to the ranks, one mode copy at a time. All methods are collective.

    Attributes
    ----------
    shape : tuple of int
    nnz : int
    norm : float
    value_range : ValueRange
    duplicates, zeros : int
        What was merged and dropped on reading.
    """

    shape: tuple[int, ...]
    nnz: int
    norm: float
    value_range: ValueRange
    duplicates: int
    zeros: int

    def cut(self, mode: int, parts: int) -> Cut:
        """Return how the nonzeros of `mode` are dealt to `parts` ranks."""

    def load(self, mode: int, cut: Cut, dtype: np.dtype[Any]) -> Iterator[NDArray[Any]]:
        """Yield this rank's share of the mode copy: its `order` index columns, then its values."""

    def tensor(self) -> SparseTensor | None:
        """Return the whole tensor on rank 0, None elsewhere."""

    def digest(self) -> int:
        """Return a number that tells the tensor from others, on whatever ranks; see `partitioner.digest`."""

    def loading(self, ranks: int, dtype: np.dtype[Any], on_host: bool) -> Loading:
        """Return what rank 0 needs to load the tensor for so many ranks, whose shards stay on the host or do not."""


class TensorSource:
    """A tensor in rank 0's memory; what the other ranks pass is not looked at. See `Source`."""

    def __init__(self, tensor: SparseTensor | None, comm: Comm) -> None:
        self._tensor, self._comm = tensor, comm
        facts = None
        if comm.rank == 0 and tensor is not None:
            repaired = tensor.duplicates, tensor.zeros
            facts = tensor.shape, tensor.nnz, tensor.norm(), tensor.value_range(), *repaired
        known = comm.bcast(facts)
        if known is None:
            raise InputError("no tensor on rank 0")
        self.shape, self.nnz, self.norm, self.value_range, self.duplicates, self.zeros = known

    def cut(self, mode: int, parts: int) -> Cut:
        """See `Source`."""
        mine, length = None, self.shape[mode]
        if self._root is not None:
            mine = cut_mode(CountedRows(np.bincount(self._root.columns[mode], minlength=length)), length, parts)
        cut = self._comm.bcast(mine)
        assert cut is not None
        return cut

    def load(self, mode: int, cut: Cut, dtype: np.dtype[Any]) -> Iterator[NDArray[Any]]:
        """See `Source`."""
        copy = None if self._root is None else SortedTensor(self._root, mode, dtype)
        index = np.dtype(np.int32)
        for k in range(len(self.shape)):
            # No name for the whole column: it must be gone before the next one is gathered.
            yield self._comm.scatter(copy.column(k) if copy else None, cut.nonzeros, index)
        yield self._comm.scatter(copy.values if copy else None, cut.nonzeros, dtype)

    @property
    def _root(self) -> SparseTensor | None:
        return self._tensor if self._comm.rank == 0 else None

    def tensor(self) -> SparseTensor | None:
        """See `Source`."""
        return self._root

    def digest(self) -> int:
        """See `Source`."""
        return self._comm.bcast(0 if self._root is None else digest(list(self._root.columns), self._root.values))

    def loading(self, ranks: int, dtype: np.dtype[Any], on_host: bool) -> Loading:
        """See `Source`. Dealing a mode takes what sorting does, and the sorted copy where that is not kept."""
        root = self._root
        each = nonzero_bytes(len(self.shape), dtype)
        if root is None:
            return Loading(streamed=each)
        same, alone = root.values.dtype == dtype, ranks == 1 and on_host
        dealing = sort_bytes(self.nnz, each) + (0 if alone else self.nnz * each)
        shareable = (root.columns.nbytes + (root.values.nbytes if same else 0)) if alone else 0
        reading, tensor = root.build_bytes + READER_BYTES, root.nbytes + READER_BYTES
        return Loading(reading, tensor, dealing, shareable, each)


class StoreSource:
    """A store on a disk that all ranks see; each reads and checks its own share. See `Source`."""

    def __init__(self, store: Store, comm: Comm) -> None:
        self._store, self._comm = store, comm
        self.shape, self.nnz, self.norm = store.shape, store.nnz, store.norm
        self.value_range = store.value_range
        self.duplicates, self.zeros = store.duplicates, store.zeros

    def cut(self, mode: int, parts: int) -> Cut:
        """See `Source`."""
        return cut_mode(self._store.mode(mode).column(0), self.shape[mode], parts)

    def load(self, mode: int, cut: Cut, dtype: np.dtype[Any]) -> Iterator[NDArray[Any]]:
        """See `Source`."""
        start, stop = (int(cut.nonzeros[self._comm.rank + k]) for k in (0, 1))
        copy = self._store.mode(mode)
        together(self._comm, lambda: copy.verify(start, stop))
        for k in range(len(self.shape)):
            yield copy.column(k)[start:stop]
        yield copy.values[start:stop]

    def tensor(self) -> SparseTensor | None:
        """See `Source`."""
        return on_root(self._comm, self._store.tensor)

    def digest(self) -> int:
        """See `Source`. Each rank reads an equal share."""
        copy, parts = self._store.mode(0), self._comm.size
        share = slice(self.nnz * self._comm.rank // parts, self.nnz * (self._comm.rank + 1) // parts)
        columns = [copy.column(k)[share] for k in range(len(self.shape))]
        return sum(self._comm.allgather(digest(columns, copy.values[share]))) % (1 << 64)

    def loading(self, ranks: int, dtype: np.dtype[Any], on_host: bool) -> Loading:
        """See `Source`: files are mapped, not read into memory."""
        return Loading(streamed=nonzero_bytes(len(self.shape), self._store.value_dtype))


def open_source(
    path: str | os.PathLike[str], comm: Comm, progress: Progress | None = None, verify: bool = True
) -> Source:
    """Open the tensor at `path`, a store or any file that `partitioner.readers.read` takes.

    A store is checked against its checksums if `verify`.

    Raises
    ------
    InputError
        On every rank, if the file is at fault.
    """
    if Path(path).is_dir():
        return StoreSource(together(comm, lambda: Store(path, verify)), comm)
    return TensorSource(on_root(comm, lambda: read(path, progress=progress)), comm)
