"""Where the nonzeros of a product come from: a sparse tensor, or a semi-sparse one in rank 0's memory."""

from __future__ import annotations

import os
from typing import Any, Protocol

import numpy as np
from numpy.typing import NDArray

from partitioner.coo import ValueRange, ends
from partitioner.labels import Labels
from partitioner.sort import stable_argsort

from ..errors import InputError
from ..models.semisparse import SemiSparseTensor
from ..parallel.mpi import Comm
from .held import equal_parts
from .placement import INDEX_BYTES, Loading
from .source import Source


class ProductSource(Protocol):
    """A tensor that is dealt to the ranks by the fibres of a mode. All methods are collective."""

    shape: tuple[int, ...]
    nnz: int  # values, each of which has numbers for all dense modes
    value_range: ValueRange

    @property
    def sparse(self) -> tuple[int, ...]:
        """The modes that have indices."""

    @property
    def dense(self) -> tuple[int, ...]:
        """The other modes, in the order of a value's axes."""

    @property
    def labels(self) -> Labels | None:
        """What indices stand for, if not for themselves."""

    @property
    def path(self) -> str | os.PathLike[str] | None:
        """The file or store, if it is in one."""

    def by_fibre(self, mode: int, dtype: np.dtype[Any]) -> list[Any]:
        """Return what `Source.by_fibre` does; values of a semi-sparse tensor are (n, width)."""

    def loading(self, ranks: int, dtype: np.dtype[Any], on_host: bool) -> Loading:
        """See `Source`."""

    def leave_device(self) -> None:
        """See `Source`."""


class SparseProduct:
    """A sparse tensor. See `ProductSource`."""

    dense: tuple[int, ...] = ()

    def __init__(self, source: Source) -> None:
        self._source, self.shape, self.nnz = source, source.shape, source.nnz
        self.value_range, self.labels, self.path = source.value_range, source.labels, source.path
        self.sparse = tuple(range(len(source.shape)))

    def by_fibre(self, mode: int, dtype: np.dtype[Any]) -> list[Any]:
        return self._source.by_fibre(mode, dtype)

    def loading(self, ranks: int, dtype: np.dtype[Any], on_host: bool) -> Loading:
        return self._source.loading(ranks, dtype, on_host)

    def leave_device(self) -> None:
        self._source.leave_device()


class SemiSparseProduct:
    """A semi-sparse tensor in rank 0's memory; what the other ranks pass is not looked at. See `ProductSource`."""

    path: str | os.PathLike[str] | None

    def __init__(self, tensor: SemiSparseTensor | None, comm: Comm, path: str | os.PathLike[str] | None = None) -> None:
        self._tensor, self._comm, self.path = tensor if comm.rank == 0 else None, comm, path
        root = self._tensor
        known = comm.bcast(None if root is None else _kind(root))
        if known is None:
            raise InputError("no tensor on rank 0")
        self.shape, self.nnz, self.sparse, self.dense, self.value_range, self.labels = known
        if not self.nnz:
            raise InputError("no fibres", path=path)

    def by_fibre(self, mode: int, dtype: np.dtype[Any]) -> list[Any]:
        others, at = [m for m in self.sparse if m != mode], self.sparse.index(mode)
        parts, root, columns, values = equal_parts(self.nnz, self._comm.size), self._tensor, None, None
        if root is not None:
            columns, values = root.indices.T, root.values.reshape(root.fibres, -1)
            if others and at < len(self.sparse) - 1:  # or they are in order already
                keys = [np.ascontiguousarray(columns[k]) for k in range(len(self.sparse)) if k != at]
                order = stable_argsort(keys, [self.shape[m] for m in others])
                columns, values = columns[:, order], values[order]
        wanted, index = [self.sparse.index(m) for m in (*others, mode)], np.dtype(np.int32)
        dealt: list[NDArray[Any]] = []
        for k in wanted:
            column = None if columns is None else np.ascontiguousarray(columns[k])
            dealt.append(self._comm.scatter(column, parts, index))
        return [*dealt, self._rows(values, parts, dtype)]

    def rows(self, dtype: np.dtype[Any]) -> tuple[NDArray[np.int32], NDArray[Any]]:
        """Return this rank's equal share of the fibres in order: their coordinates, and their values, (n, width)."""
        parts, root = equal_parts(self.nnz, self._comm.size), self._tensor
        index, sparse = np.dtype(np.int32), len(self.sparse)
        wide = self._comm.scatter(None if root is None else root.indices.reshape(-1), parts * sparse, index)
        mine = int(parts[self._comm.rank + 1] - parts[self._comm.rank])
        values = None if root is None else root.values.reshape(root.fibres, -1)
        return wide.reshape(mine, sparse), self._rows(values, parts, dtype)

    def _rows(self, values: NDArray[Any] | None, parts: NDArray[np.int64], dtype: np.dtype[Any]) -> NDArray[Any]:
        width = int(np.prod([self.shape[m] for m in self.dense]))
        flat = None if values is None else np.ascontiguousarray(values).reshape(-1)
        return self._comm.scatter(flat, parts * width, dtype).reshape(-1, width)

    def loading(self, ranks: int, dtype: np.dtype[Any], on_host: bool) -> Loading:
        """See `Source`. Sorting takes an order of the fibres, and a copy of the values."""
        width = int(np.prod([self.shape[m] for m in self.dense]))
        each = INDEX_BYTES * len(self.sparse) + width * dtype.itemsize
        if self._tensor is None:
            return Loading(streamed=each)
        return Loading(tensor=self._tensor.nbytes, dealing=self.nnz * each, sorting=16 * self.nnz, streamed=each)

    def leave_device(self) -> None:
        """See `Source`: it is never there as a whole."""


def _kind(root: SemiSparseTensor) -> Any:
    low, high = ends(root.values.reshape(-1)) if root.values.size else (0.0, 0.0)
    return root.shape, root.fibres, root.sparse_modes, root.modes, ValueRange(low, high, 0.0), root.labels
