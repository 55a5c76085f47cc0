"""Where the nonzeros of a product come from: a sparse tensor, or a semi-sparse one that rank 0 has."""

from __future__ import annotations

import math
import os
from collections.abc import Callable
from itertools import pairwise
from typing import Any

import numpy as np
from numpy.typing import NDArray

from partitioner.array_types import Element, FloatDType, Floats, HostArray, Integers
from partitioner.sorting.sort import stable_argsort
from partitioner.tensors.value_range import ValueRange, ends

from ...errors import InputError
from ...models.semisparse import BLOCK, SemiSparseTensor
from ...parallel.mpi import Comm, on_root, together
from ..placement import INDEX_BYTES, Loading
from .device_tensor import equal_parts


class SemiSparseProduct:
    """A semi-sparse tensor that rank 0 has; what the other ranks pass is not looked at. See `ProductSource`.

    Values may be in a file: rank 0 reads one rank's part at a time.
    """

    path: str | os.PathLike[str] | None

    def __init__(self, tensor: SemiSparseTensor | None, comm: Comm, path: str | os.PathLike[str] | None = None) -> None:
        self._tensor, self._comm, self.path = tensor if comm.rank == 0 else None, comm, path
        root = self._tensor
        known = comm.bcast(on_root(comm, lambda: None if root is None else _kind(root)))
        if known is None:
            raise InputError("no tensor on rank 0")
        self.shape, self.nnz, self.sparse, self.dense, self.value_range, self.labels = known
        if not self.nnz:
            raise InputError("no fibres", path=path)

    def by_fibre(self, mode: int, dtype: FloatDType) -> list[Any]:
        others, at = [m for m in self.sparse if m != mode], self.sparse.index(mode)
        root, order = self._tensor, None
        if root is not None and others and at < len(self.sparse) - 1:  # or they are in order already
            keys = [np.ascontiguousarray(root.indices[:, k]) for k in range(len(self.sparse)) if k != at]
            order = stable_argsort(keys, [self.shape[m] for m in others])
            del keys
        wanted = [self.sparse.index(m) for m in (*others, mode)]
        return [*(self._indices(slice(k, k + 1), order) for k in wanted), self._values(order, dtype)]

    def rows(self, dtype: FloatDType) -> tuple[NDArray[np.int32], Floats]:
        """Return this rank's equal share of the fibres in order: their coordinates, and their values, (n, width)."""
        sparse, values = len(self.sparse), self._values(None, dtype)
        return self._indices(slice(0, sparse), None).reshape(len(values), sparse), values

    def _indices(self, columns: slice, order: Integers | None) -> NDArray[np.int32]:
        root, dtype = self._tensor, np.dtype(np.int32)

        def pick(part: slice) -> NDArray[np.int32] | None:
            return None if root is None else _picked(root.indices[:, columns], order, part, dtype)

        return self._scattered(pick, dtype, columns.stop - columns.start)

    def _values(self, order: Integers | None, dtype: FloatDType) -> Floats:
        root, width = self._tensor, self._width

        def pick(part: slice) -> Floats | None:
            if root is None or root.in_file:
                return None if root is None else _read(root, order, part, dtype)
            return _picked(root.values.reshape(root.fibres, width), order, part, dtype)

        return self._scattered(pick, dtype, width).reshape(-1, width)

    def _scattered(
        self, pick: Callable[[slice], NDArray[Element] | None], dtype: np.dtype[Element], width: int
    ) -> NDArray[Element]:
        """Return this rank's part of rank 0's rows, which `pick` copies flat on rank 0."""
        comm, parts, ranks = self._comm, equal_parts(self.nnz, self._comm.size), np.arange(self._comm.size + 1)
        mine = np.empty(0, dtype)
        for rank, (begin, end) in enumerate(pairwise(parts)):
            piece = together(comm, lambda part=slice(int(begin), int(end)): pick(part))  # type: ignore[misc]
            result = comm.scatter(piece, np.where(ranks > rank, (end - begin) * width, 0), dtype)
            mine = result if rank == comm.rank else mine
        return mine

    @property
    def _width(self) -> int:
        return math.prod(self.shape[m] for m in self.dense)

    def loading(self, ranks: int, dtype: FloatDType, on_host: bool) -> Loading:
        """See `SparseSource`. Sorting takes an order of the fibres; beside rank 0's own part there is another one's."""
        each, part = INDEX_BYTES * len(self.sparse) + self._width * dtype.itemsize, -(-self.nnz // ranks)
        root = self._tensor
        if root is None:
            return Loading(streamed=each)
        held = root.indices.nbytes if root.in_file else root.nbytes
        return Loading(tensor=held, dealing=min(2, ranks) * part * each, sorting=16 * self.nnz, streamed=each)

    def leave_device(self) -> None:
        """See `SparseSource`: it is never there as a whole."""


def _kind(root: SemiSparseTensor) -> Any:
    result = [ends(block.reshape(-1)) for block in root.blocks() if block.size] or [(0.0, 0.0)]
    low, high = min(low for low, _ in result), max(high for _, high in result)
    return root.shape, root.fibres, root.sparse_modes, root.modes, ValueRange(low, high, 0.0), root.labels


def _picked(rows: HostArray, order: Integers | None, part: slice, dtype: np.dtype[Element]) -> NDArray[Element]:
    """Return a copy of some rows, flat, of those in an order if there is one."""
    result = np.empty((part.stop - part.start, *rows.shape[1:]), dtype)
    step = max(1, BLOCK // max(1, math.prod(rows.shape[1:])))
    for begin in range(part.start, part.stop, step):
        block = slice(begin, min(begin + step, part.stop))
        result[begin - part.start : block.stop - part.start] = rows[block if order is None else order[block]]
    return result.reshape(-1)


def _read(tensor: SemiSparseTensor, order: Integers | None, part: slice, dtype: FloatDType) -> Floats:
    """Do the same with values in a file, which is read from its begin to its end, whatever the order."""
    result = np.empty((part.stop - part.start, tensor.width), dtype)
    step = max(1, BLOCK // max(1, tensor.width))
    if order is None:
        for begin in range(part.start, part.stop, step):
            end = min(begin + step, part.stop)
            result[begin - part.start : end - part.start] = tensor.rows(begin, end).reshape(-1, tensor.width)
        return result.reshape(-1)
    wanted = order[part]
    ascending = np.argsort(wanted)
    starts = range(0, tensor.fibres, step)
    cuts = np.searchsorted(wanted, [*starts, tensor.fibres], sorter=ascending)
    for begin, (low, high) in zip(starts, pairwise(cuts), strict=True):
        if low < high:
            places = ascending[low:high]
            rows = tensor.rows(begin, min(begin + step, tensor.fibres)).reshape(-1, tensor.width)
            result[places] = rows[wanted[places] - begin]
    return result.reshape(-1)
