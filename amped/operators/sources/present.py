"""A source of the elements of an array that are not NaN, which are listed only if their list is needed."""

from __future__ import annotations

import os
from collections.abc import Iterator
from typing import Any

import numpy as np
from numpy.typing import NDArray

from partitioner.array_types import FloatDType
from partitioner.shards.partition import Cut
from partitioner.tensors.present import PresentElements
from partitioner.tensors.sparse import SparseTensor

from ...errors import InputError
from ...parallel.mpi import Comm, on_root, share
from ..placement import Loading
from .described import DescribedSparse
from .protocols import DeviceMemory, Offsets
from .sparse import TensorSource


class PresentSource(DescribedSparse):
    """Elements in rank 0's memory; other ranks' arguments are ignored. See `SparseSource`.

    Their list takes several times the memory of the array, and decompositions of tensors with few gaps do without it.
    `elements` are those given on rank 0, and None elsewhere.
    """

    stored = False
    duplicates = zeros = 0

    def __init__(
        self,
        elements: PresentElements | None,
        comm: Comm,
        path: str | os.PathLike[str] | None = None,
        memory: DeviceMemory | None = None,
    ) -> None:
        self._comm, self.path, self._memory = comm, path, memory
        self._list: TensorSource | None = None
        self._stays = False
        self.value_dtype: FloatDType = np.dtype(np.float64)
        self.elements = root = elements if comm.rank == 0 else None
        known = comm.bcast(
            None if root is None else (root.tensor.shape, root.nnz, root.norm, root.values, root.tensor.labels)
        )
        if known is None:
            raise InputError("no tensor on rank 0")
        self.shape, self.nnz, self.norm, self.value_range, self.labels = known

    @property
    def _listed(self) -> TensorSource:
        """The source of the list. Collective."""
        if self._list is None:
            elements = self.elements
            tensor = on_root(self._comm, lambda: None if elements is None else elements.listed())
            self._list = TensorSource(tensor, self._comm, self.path, self._memory)
            if self._stays:
                self._list.stay_on_device()
        return self._list

    def used(self, mode: int) -> int:
        return self.used_indices(mode).size

    def used_indices(self, mode: int) -> NDArray[np.int32]:
        return share(self._comm, None if self.elements is None else self.elements.used_indices(mode))

    def cut(self, mode: int, parts: int, targets: Offsets | None = None) -> Cut:
        return self._listed.cut(mode, parts, targets)

    def load(self, mode: int, cut: Cut, dtype: FloatDType, keep: int | None = None) -> Iterator[Any]:
        return self._listed.load(mode, cut, dtype, keep)

    def by_fibre(self, mode: int, dtype: FloatDType) -> list[Any]:
        return self._listed.by_fibre(mode, dtype)

    def tensor(self) -> SparseTensor | None:
        return self._listed.tensor()

    def digest(self) -> int:
        return self._listed.digest()

    def loading(self, ranks: int, dtype: FloatDType, on_host: bool) -> Loading:
        return self._listed.loading(ranks, dtype, on_host)

    def stay_on_device(self) -> None:
        """See `SparseSource`."""
        self._stays = True
        if self._list is not None:
            self._list.stay_on_device()

    def placed(self) -> None:
        """See `SparseSource`."""
        if self._list is not None:
            self._list.placed()

    def leave_device(self) -> None:
        """See `SparseSource`."""
        self._memory = None
        if self._list is not None:
            self._list.leave_device()
