"""A rank's block of a sparse tensor that is distributed over a grid of ranks."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from partitioner.array_types import Element, FloatDType, Floats
from partitioner.shards.partition import Cut
from partitioner.shards.process_grid import ProcessGrid
from partitioner.tensors.sparse import SparseTensor
from partitioner.tensors.value_range import NO_NORM, norm, squares

from ...parallel.mpi import Comm, SingleComm
from ..placement import GridParts, Loading
from .protocols import DeviceMemory, ModeCopies, Offsets
from .sparse import TensorSource

COPIES = 3  # of a block while it is distributed: the share that was loaded, the parts to send, and the block


class NonzeroColumns(NamedTuple):
    """Nonzeros on a rank: indices by mode, (order, n), and values, (n,)."""

    columns: list[NDArray[np.int32]]
    values: Floats


class Block(NamedTuple):
    """A rank's block of a tensor: its nonzeros, with indices from the block's first rows, and its lengths."""

    nonzeros: NonzeroColumns
    shape: tuple[int, ...]
    norm: float  # of the whole tensor, with values as stored


def whole_block(source: ModeCopies, comm: Comm, dtype: FloatDType) -> Block:
    """Return the whole tensor as a block, on every rank. Collective."""
    share = _share(source, comm, dtype)
    ends = np.cumsum([0, *comm.allgather(share.values.size)])
    columns, values = [_all(column, ends, comm) for column in share.columns], _all(share.values, ends, comm)
    return Block(NonzeroColumns(columns, values), source.shape, _rounded_norm(source, share.values, comm))


def _all(array: NDArray[Element], ends: NDArray[np.int64], comm: Comm) -> NDArray[Element]:
    """All-gather arrays; that of rank ``r`` ends at ``ends[r + 1]``."""
    whole = np.empty(int(ends[-1]), array.dtype)
    whole[ends[comm.rank] : ends[comm.rank + 1]] = array
    comm.all_gather_rows(whole, ends[:-1], ends[1:])
    return whole


def block_of(source: ModeCopies, parts: GridParts, comm: Comm, dtype: FloatDType) -> tuple[ProcessGrid, Block]:
    """Distribute a tensor over a grid; return the grid and this rank's block. Collective.

    Each rank loads an equal share of the nonzeros, and sends them to the ranks whose blocks they are in.
    """
    share = _share(source, comm, dtype)
    cuts = tuple(source.cut(mode, count) for mode, count in enumerate(parts.layers))
    spans = tuple(_spans(cut, column, comm) for cut, column in zip(cuts, share.columns, strict=True))
    grid = ProcessGrid(cuts, spans, parts.nodes)
    mine = dealt(share, grid.ranks_of(share.columns), comm)
    rows = [grid.rows(mode, comm.rank) for mode in range(len(cuts))]
    for column, held in zip(mine.columns, rows, strict=True):
        column -= held.start
    shape = tuple(max(1, held.stop - held.start) for held in rows)  # kernels need a row
    return grid, Block(mine, shape, _rounded_norm(source, mine.values, comm))


def _share(source: ModeCopies, comm: Comm, dtype: FloatDType) -> NonzeroColumns:
    """Return an equal share of the nonzeros, in lexicographic order over the ranks. Collective."""
    *columns, values = (on_host(column) for column in source.load(0, source.cut(0, comm.size), dtype))
    return NonzeroColumns(columns, values)


def on_host(column: Any) -> NDArray[Any]:
    """Return a column, which may be in device memory or in a file, as a host array."""
    if hasattr(column, "part"):
        return np.asarray(column.part(0, column.size))
    return np.ascontiguousarray(column.get() if hasattr(column, "get") else column)


def _spans(cut: Cut, rows: NDArray[np.int32], comm: Comm) -> NDArray[np.int64]:
    """Return the spans of split rows among all ranks' `rows`; see `ProcessGrid`. Collective."""
    if not cut.split_rows.size:
        return np.empty((0, 2), np.int64)
    mine = np.array([[np.count_nonzero(rows < row), np.count_nonzero(rows <= row)] for row in cut.split_rows])
    return np.asarray(np.sum(comm.allgather(mine), axis=0), np.int64)


def dealt(nonzeros: NonzeroColumns, ranks: NDArray[np.uint16], comm: Comm) -> NonzeroColumns:
    """Send each nonzero to the rank with its number in `ranks`; return those received, in the senders' order."""
    in_order = np.argsort(ranks, kind="stable")
    counts = np.array(comm.allgather(np.bincount(ranks, minlength=comm.size)))  # by sender and receiver
    starts = np.concatenate([[0], np.cumsum(counts[comm.rank])])
    places = np.concatenate([[0], np.cumsum(counts[:, comm.rank])])
    columns, values = nonzeros
    received = [_sent(column[in_order], starts, places, comm) for column in columns]
    return NonzeroColumns(received, _sent(values[in_order], starts, places, comm))


def _sent(
    array: NDArray[Element], starts: NDArray[np.int64], places: NDArray[np.int64], comm: Comm
) -> NDArray[Element]:
    """Send parts of an array, which begin at `starts`, to all ranks; receive theirs, each in its place."""
    result = np.empty(int(places[-1]), array.dtype)
    for shift in range(comm.size):
        to, source = (comm.rank + shift) % comm.size, (comm.rank - shift) % comm.size
        comm.swap(array[starts[to] : starts[to + 1]], to, result[places[source] : places[source + 1]], source)
    return result


def _rounded_norm(source: ModeCopies, values: Floats, comm: Comm) -> float:
    """Return the norm of the tensor with values as stored, as fits near 1 must refer to it. Collective."""
    if not source.value_range.largest:
        return NO_NORM
    if source.value_dtype == values.dtype or source.value_range.exact_in(values.dtype):
        return source.norm
    bounds = source.value_range[:2]
    return norm(bounds, [square for of_rank in comm.allgather(squares(values, bounds)) for square in of_rank])


class BlockSource:
    """A block as a tensor on a single rank; see `ModeCopies`. It may be empty."""

    stored = False

    def __init__(self, source: ModeCopies, block: Block, memory: DeviceMemory) -> None:
        """Take a block of `source`; `memory` is that of a machine with this rank only."""
        self.shape, self.norm = block.shape, block.norm
        self.path, self.value_range = source.path, source.value_range
        columns, values = block.nonzeros
        self.value_dtype = values.dtype
        self._dealing = COPIES * sum(array.nbytes for array in (*columns, values))
        self._tensor: TensorSource | None = None
        if values.size:
            tensor = SparseTensor.from_columns(np.stack(columns), values, self.shape, path=self.path, keep_zeros=True)
            self._tensor = TensorSource(tensor, SingleComm(), self.path, memory)

    def used(self, mode: int) -> int:
        return self._tensor.used(mode) if self._tensor else 0

    def cut(self, mode: int, parts: int, targets: Offsets | None = None) -> Cut:
        if self._tensor:
            return self._tensor.cut(mode, parts, targets)
        rows = np.full(parts + 1, self.shape[mode], np.int64)
        rows[0] = 0
        return Cut(np.zeros(parts + 1, np.int64), rows, np.full(parts, -1, np.int64))

    def load(self, mode: int, cut: Cut, dtype: FloatDType, keep: int | None = None) -> Iterator[Any]:
        if self._tensor:
            yield from self._tensor.load(mode, cut, dtype, keep)
            return
        for _ in self.shape:
            yield np.empty(0, np.int32)
        yield np.empty(0, dtype)

    def loading(self, ranks: int, dtype: FloatDType, on_host: bool) -> Loading:
        """See `ModeCopies`; blocks were distributed before."""
        loading = self._tensor.loading(ranks, dtype, on_host) if self._tensor else Loading()
        return loading._replace(reading=max(loading.reading, self._dealing))

    def placed(self) -> None:
        if self._tensor:
            self._tensor.placed()

    def leave_device(self) -> None:
        if self._tensor:
            self._tensor.leave_device()
