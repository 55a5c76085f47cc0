"""Where a run's nonzeros come from: a tensor in rank 0's memory, or a file or store that every rank reads."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import asdict
from itertools import chain
from pathlib import Path
from typing import Any, Protocol

import numpy as np
from numpy.typing import NDArray

from partitioner.build import Facts as ReadFacts
from partitioner.build import Reading
from partitioner.coo import SparseTensor, ValueRange, norm, squares
from partitioner.digest import digest
from partitioner.hosts import check_same
from partitioner.indices import Labels, all_distinct, count_runs, distinct, is_long
from partitioner.readers import PLAIN, Form, open_store, read
from partitioner.runs import Runs, Slice
from partitioner.shards import (
    CountedRows,
    Cut,
    DealtRows,
    SortedTensor,
    counted_rows,
    cut_mode,
    mode_order,
)
from partitioner.sort import key_bytes, sort_bytes, sort_nonzeros
from partitioner.store import Store
from partitioner.tables import Nonzeros
from partitioner.threads import usable_cores

from ..errors import InputError
from ..parallel.mpi import Comm, on_root, together
from .held import Facts, Kind, Room, hold, hold_together
from .placement import INDEX_BYTES, Loading, nonzero_bytes

EVERYTHING = 1 << 62  # nonzeros that are sorted together: all there are
READER_BYTES = 5 << 20  # compiled readers and sorts, and the blocks that they read

Progress = Callable[[int, int | None], None]
Offsets = NDArray[np.int64]


class Source(Protocol):
    """A tensor that is dealt to the ranks, one mode copy at a time. All methods are collective."""

    shape: tuple[int, ...]
    nnz: int
    norm: float
    value_range: ValueRange
    duplicates: int  # merged on reading
    zeros: int  # dropped on reading
    stored: bool  # in a store
    value_dtype: np.dtype[Any]
    labels: Labels | None  # what indices stand for, if not for themselves; on every rank

    @property
    def path(self) -> str | os.PathLike[str] | None:
        """The file or store, if it is in one."""

    def used(self, mode: int) -> int:
        """Return how many indices of a mode are used."""

    def cut(self, mode: int, parts: int, targets: Offsets | None = None) -> Cut:
        """Return how the nonzeros of `mode` are dealt to `parts` ranks; see `partitioner.shards.cut_mode`."""

    def load(self, mode: int, cut: Cut, dtype: np.dtype[Any], keep: int | None = None) -> Iterator[Any]:
        """Yield this rank's share of the mode copy: its `order` index columns, then its values.

        Arrays, in device memory if the tensor is held there; if only the first `keep` nonzeros need to be in memory,
        perhaps a `StoredColumn`.
        """

    def tensor(self) -> SparseTensor | None:
        """Return the whole tensor on rank 0, None elsewhere."""

    def digest(self) -> int:
        """Return a number that tells the tensor from others, on whatever ranks; see `partitioner.digest`."""

    def loading(self, ranks: int, dtype: np.dtype[Any], on_host: bool) -> Loading:
        """Return what rank 0 needs to load the tensor for so many ranks, whose shards stay on the host or do not."""

    def leave_device(self) -> None:
        """Give back the device memory that loading has taken: from now on nonzeros are loaded from the host."""


class TensorSource:
    """A tensor in rank 0's memory; what the other ranks pass is not looked at. See `Source`."""

    stored = False

    def __init__(
        self,
        tensor: SparseTensor | None,
        comm: Comm,
        path: str | os.PathLike[str] | None = None,
        room: Room | None = None,
    ) -> None:
        """Take a tensor, read from the file at `path` if it was; hold it on devices where they have `room` for it."""
        self._tensor, self._comm, self.path = tensor, comm, path
        root = self._root
        known = comm.bcast(None if root is None else (_kind(root), root.labels))
        if known is None:
            raise InputError("no tensor on rank 0")
        kind, self.labels = known
        self.shape, self.value_dtype = kind.shape, kind.dtype
        try:
            there = hold(root, kind, room)
        except InputError as error:
            raise InputError(error.cause, path=path) from None
        self._held = there[0] if there else None
        facts = there[1] if there else comm.bcast(on_root(comm, lambda: None if root is None else _facts(root)))
        assert facts is not None
        self.nnz, self.norm, self.value_range, self.duplicates, self.zeros = facts

    def used(self, mode: int) -> int:
        root = self._root
        return self._comm.bcast(0 if root is None else distinct(root.columns[mode], self.shape[mode]).size)

    def cut(self, mode: int, parts: int, targets: Offsets | None = None) -> Cut:
        if self._held is not None:
            return self._held.cut(mode, parts, targets)
        mine, length = None, self.shape[mode]
        if self._root is not None:
            mine = cut_mode(counted_rows(self._root.columns[mode], length), length, parts, targets)
        cut = self._comm.bcast(mine)
        assert cut is not None
        return cut

    def load(self, mode: int, cut: Cut, dtype: np.dtype[Any], keep: int | None = None) -> Iterator[Any]:
        if self._held is not None:
            yield from self._held.share(mode, cut, self._comm.rank, dtype)
            return
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
        return self._root

    def digest(self) -> int:
        return self._comm.bcast(0 if self._root is None else digest(list(self._root.columns), self._root.values))

    def loading(self, ranks: int, dtype: np.dtype[Any], on_host: bool) -> Loading:
        """See `Source`. Dealing a mode takes what sorting does, and the sorted copy where that is not kept."""
        root = self._root
        each = nonzero_bytes(len(self.shape), dtype)
        if self._held is not None:
            passing = self._held.passing(ranks)
            mine = Loading(device=passing)
            return mine if root is None else mine._replace(reading=root.build_bytes, tensor=root.nbytes, others=mine)
        if root is None:
            return Loading(streamed=each)
        if ranks > 1 and self.path is not None:  # they would read it together
            return dealt_loading(self, self.value_dtype, dtype, ranks, is_divisible(self.path))
        same, alone = self.value_dtype == dtype, ranks == 1 and on_host
        dealing = 0 if alone else self.nnz * each
        shareable = (root.columns.nbytes + (root.values.nbytes if same else 0)) if alone else 0
        reading, tensor = root.build_bytes + READER_BYTES, root.nbytes + READER_BYTES
        return Loading(reading, tensor, dealing, key_bytes(self.nnz), shareable, each)

    def leave_device(self) -> None:
        self._held = None


def _kind(tensor: SparseTensor) -> Kind:
    values = tensor.given[0][1]
    return Kind(tensor.shape, values.size, values.dtype)


def _facts(tensor: SparseTensor) -> Facts:
    return Facts(tensor.nnz, tensor.norm(), tensor.value_range(), tensor.duplicates, tensor.zeros)


class DealtSource:
    """A file that all ranks read together; each keeps an equal share of its nonzeros in memory. See `Source`."""

    stored = False

    def __init__(
        self,
        path: str | os.PathLike[str],
        comm: Comm,
        progress: Progress | None = None,
        form: Form = PLAIN,
        room: Room | None = None,
    ) -> None:
        self.path, self._comm, reading = path, comm, Reading(path, comm, progress, form)
        self.value_dtype, self._threads = reading.dtype, reading.threads
        runs = self._runs(range(reading.order), reading.order, reading.dtype)
        for columns, values, _ in reading.chunks(EVERYTHING):
            runs.add(columns, values)
        self.shape = reading.shape()
        self._columns, self._values = self._only(runs.pieces(runs.shares(), merge=True), reading.dtype)
        mine = ReadFacts(0, runs.duplicates, runs.zeros)
        mine.add(self._values)
        facts = reading.facts(comm.allgather(mine))
        self.nnz, self.duplicates, self.zeros = facts.nnz, facts.duplicates, facts.zeros
        self.value_range = ValueRange(*facts.ends, facts.grain)
        self.norm = norm(facts.ends, list(chain.from_iterable(comm.allgather(squares(self._values, facts.ends)))))
        self._in_parts = is_divisible(path)
        renumbering = reading.renumbering(
            [distinct(column, n) for column, n in zip(self._columns, self.shape, strict=True)] if form.compact else []
        )
        self.labels = None if renumbering is None else renumbering.labels
        if renumbering is not None:
            self.shape = renumbering.shape
            renumbering.apply(self._columns)
        kind = Kind(self.shape, self.nnz, self.value_dtype)
        self._held = hold_together((self._columns, self._values), kind, room)

    def _runs(self, modes: Sequence[int], order: int, dtype: np.dtype[Any]) -> Runs:
        return Runs(modes, order, dtype, EVERYTHING, self._comm, self._threads)

    def _only(self, pieces: Iterable[Nonzeros], dtype: np.dtype[Any]) -> Nonzeros:
        """Return the one piece that this rank has, if it has any."""
        empty = np.empty((len(self.shape), 0), np.int32), np.empty(0, dtype)
        return next(iter([*pieces, empty]))

    def used(self, mode: int) -> int:
        return int(all_distinct(self._columns[mode], self.shape[mode], self._comm).size)

    def cut(self, mode: int, parts: int, targets: Offsets | None = None) -> Cut:
        if self._held is not None:
            return self._held.cut(mode, parts, targets)
        column, length = self._columns[mode], self.shape[mode]
        if is_long(length, self.nnz):
            return cut_mode(DealtRows(column, length, self._comm), length, parts, targets)
        counts = np.bincount(column, minlength=length)
        self._comm.all_reduce(counts, "sum")
        return cut_mode(CountedRows(counts), length, parts, targets)

    def load(self, mode: int, cut: Cut, dtype: np.dtype[Any], keep: int | None = None) -> Iterator[Any]:
        if self._held is not None:
            yield from self._held.share(mode, cut, self._comm.rank, dtype)
            return
        runs, mine = self._runs([mode], len(self.shape), dtype), (self._columns, self._values.astype(dtype, copy=False))
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

    def tensor(self) -> SparseTensor | None:
        runs = self._runs(range(len(self.shape)), len(self.shape), self.value_dtype)
        runs.add(self._columns, self._values, in_order=True)
        everything = Slice(np.zeros(self._comm.size, np.int64), np.array(self._comm.allgather(self._values.size)), True)
        columns, values = self._only(
            runs.pieces([[everything], *([] for _ in range(self._comm.size - 1))]), self.value_dtype
        )
        if self._comm.rank:
            return None
        tensor = SparseTensor.from_columns(columns, values, self.shape)
        tensor.labels = self.labels
        return tensor

    def digest(self) -> int:
        return sum(self._comm.allgather(digest(list(self._columns), self._values))) % (1 << 64)

    def loading(self, ranks: int, dtype: np.dtype[Any], on_host: bool) -> Loading:
        loading = dealt_loading(self, self.value_dtype, dtype, ranks, self._in_parts)
        if self._held is None:
            return loading
        mine = loading._replace(dealing=0, sorting=0, streamed=0, device=self._held.passing(ranks))
        return mine._replace(others=mine._replace(reading=(loading.others or loading).reading))

    def leave_device(self) -> None:
        self._held = None


def _keys_at(cut: Cut) -> NDArray[np.int32]:
    """Return the row, (1, parts - 1), that each part but the first begins in, or an empty one before it."""
    keys = np.where(cut.heads >= 0, cut.heads, cut.rows[:-1])
    for p in reversed(range(keys.size - 1)):  # a part without nonzeros begins where the next one does
        if cut.nonzeros[p] == cut.nonzeros[p + 1]:
            keys[p] = keys[p + 1]
    return keys[None, 1:].astype(np.int32)


def dealt_loading(source: Source, given: np.dtype[Any], dtype: np.dtype[Any], ranks: int, in_parts: bool) -> Loading:
    """Return what ranks need to load a file together, which has values as `given`, `in_parts` or all on rank 0."""
    order, share = len(source.shape), -(-source.nnz // ranks)
    there, each = nonzero_bytes(order, given), nonzero_bytes(order, dtype)
    threads = max(1, usable_cores() // ranks)  # on one node

    def of(read: int) -> Loading:
        # A run is sorted, and then there while a slice is received and sorted.
        run, merged = (sort_bytes(n, there, threads=threads) for n in (read, share))
        sorting = read * there + max(run, share * there + merged)
        dealing = share * each, sort_bytes(share, each, threads=threads)
        return Loading(sorting, READER_BYTES + share * there, *dealing, streamed=each)

    root = of(share if in_parts else source.nnz)
    return root._replace(others=of(share if in_parts else 0))


def is_divisible(path: str | os.PathLike[str]) -> bool:
    """Tell whether ranks read parts of a file: plain text."""
    if not Path(path).is_file() or Path(path).suffix.lower() == ".npz":
        return False
    with open(path, "rb") as file:
        return file.read(2) != b"\x1f\x8b"


class StoreSource:
    """A store on a disk that all ranks see; each reads and checks its own share. See `Source`."""

    stored = True

    def __init__(self, store: Store, comm: Comm) -> None:
        self.path, self._store, self._comm = store.path, store, comm
        self.shape, self.nnz, self.norm = store.shape, store.nnz, store.norm
        self.value_range, self.value_dtype = store.value_range, store.value_dtype
        self.duplicates, self.zeros = store.duplicates, store.zeros
        self.labels = together(comm, store.labels)

    def used(self, mode: int) -> int:
        return self._comm.bcast(on_root(self._comm, lambda: count_runs(self._store.mode(mode).column(0))) or 0)

    def cut(self, mode: int, parts: int, targets: Offsets | None = None) -> Cut:
        rows = self._store.mode(mode).column(0)
        return together(self._comm, lambda: cut_mode(rows, self.shape[mode], parts, targets))

    def load(self, mode: int, cut: Cut, dtype: np.dtype[Any], keep: int | None = None) -> Iterator[Any]:
        rank, copy = self._comm.rank, self._store.mode(mode)
        start, stop = (int(cut.nonzeros[rank + k]) for k in (0, 1))
        begin, end = int(cut.rows[rank]), int(cut.rows[rank + 1])
        if (head := int(cut.heads[rank])) >= 0:  # a row of an earlier rank's
            begin, end = head, max(head + 1, end)
        held = stop - start if keep is None else keep
        yield from together(self._comm, lambda: copy.share(start, stop, range(begin, end), held, dtype))

    def tensor(self) -> SparseTensor | None:
        return on_root(self._comm, self._store.tensor)

    def digest(self) -> int:
        """See `Source`. Each rank reads an equal share."""
        copy, parts = self._store.mode(0), self._comm.size
        share = (self.nnz * self._comm.rank // parts, self.nnz * (self._comm.rank + 1) // parts)
        columns = [copy.column(k).part(*share) for k in range(len(self.shape))]
        mine = together(self._comm, lambda: digest(columns, copy.values.part(*share)))
        return sum(self._comm.allgather(mine)) % (1 << 64)

    def loading(self, ranks: int, dtype: np.dtype[Any], on_host: bool) -> Loading:
        """See `Source`. A mode's share is read into memory, or stays in its files where it is streamed on the host."""
        order = len(self.shape)
        device = Loading(streamed=nonzero_bytes(order, self._store.value_dtype))
        mine = Loading(columns=INDEX_BYTES * order) if on_host else device
        return mine._replace(others=mine)

    def leave_device(self) -> None:
        """See `Source`: it is never there as a whole."""


def open_source(
    path: str | os.PathLike[str],
    comm: Comm,
    progress: Progress | None = None,
    verify: bool = True,
    form: Form = PLAIN,
    room: Room | None = None,
) -> Source:
    """Open the tensor at `path`, a store or any file that `partitioner.readers.read` takes.

    What is read from a file is held on devices where they have `room` for it, to be sorted there. A store is checked
    against its checksums if `verify`. Every rank raises `InputError` if the file is at fault.
    """
    check_same(comm, path)
    if Path(path).is_dir():
        return StoreSource(together(comm, lambda: open_store(path, form, verify)), comm)
    if comm.size > 1:
        return DealtSource(path, comm, progress, form, room)
    return TensorSource(read(path, progress=progress, **asdict(form)), comm, path, room)
