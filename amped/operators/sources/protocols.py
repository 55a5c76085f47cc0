"""Protocols of sources: tensors of any kind, sparse tensors, and tensors that are multiplied by matrices."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator
from typing import Any, NamedTuple, Protocol

import numpy as np
from numpy.typing import NDArray

from partitioner.array_types import DType, FloatDType
from partitioner.shards.partition import Cut
from partitioner.tensors.dense import DenseTensor
from partitioner.tensors.labels import Labels
from partitioner.tensors.sparse import SparseTensor
from partitioner.tensors.value_range import ValueRange

from ...backend.exchange import Machine
from ..placement import Loading

Offsets = NDArray[np.int64]


class DeviceMemory(NamedTuple):
    """Device memory in which a tensor may be stored: the machine, and the usable bytes per device."""

    machine: Machine
    nbytes: int


class TensorFacts(Protocol):
    """What all sources know of a tensor. Attributes are equal on all ranks, and `norm` is collective."""

    shape: tuple[int, ...]

    @property
    def value_dtype(self) -> DType:
        """The type of the elements."""

    @property
    def norm(self) -> float:
        """The Frobenius norm."""

    @property
    def value_range(self) -> ValueRange:
        """The smallest and the largest value."""

    @property
    def stored(self) -> bool:
        """Whether the tensor is in a store."""

    @property
    def path(self) -> str | os.PathLike[str] | None:
        """The file or store, if any."""


class DescribedSource(TensorFacts, Protocol):
    """A tensor of any kind. Attributes are equal on all ranks, and all methods are collective."""

    kind: str  # "sparse" or "dense"
    nnz: int  # stored elements; all elements of a dense tensor

    @property
    def duplicates(self) -> int:
        """Nonzeros that were merged on reading."""

    @property
    def zeros(self) -> int:
        """Nonzeros that were dropped on reading."""

    @property
    def labels(self) -> Labels | None:
        """The labels of indices, if any, on every rank."""

    @property
    def known_norm(self) -> float | None:
        """The Frobenius norm if it is known without reading elements, else None."""

    @property
    def planned_values(self) -> ValueRange:
        """The range of values on which plans depend."""

    @property
    def density(self) -> float | None:
        """The fraction of nonzero elements of a sparse tensor; None for a dense one."""

    @property
    def repaired(self) -> dict[str, int]:
        """Numbers of duplicates and zeros that were removed on reading, by name; empty if not applicable."""

    def describe(self) -> str:
        """Return a one-line description: the shape, and known properties of the elements."""

    def line_where(self, wrong: Callable[[float], bool]) -> int | None:
        """Return the line number of the first value in its file that is `wrong`; None if unknown. Not collective."""

    def sparse(self, memory: DeviceMemory | None) -> SparseSource:
        """Return the tensor as a sparse one, stored on the devices if it fits into `memory`."""

    def product(self) -> ProductSource:
        """Return the tensor as a source for multiplication by matrices; raise `InputError` if unsupported."""

    def stay_on_device(self) -> None:
        """Keep a small tensor on the devices after it is placed, as it will be placed again."""

    def used(self, mode: int) -> int:
        """Return the number of used indices of a mode."""

    def used_indices(self, mode: int) -> NDArray[np.int32] | None:
        """Return the used indices of a mode, ascending, on all ranks; None if the tensor is dense."""

    def tensor(self) -> SparseTensor | DenseTensor | None:
        """Return the whole tensor on rank 0, None elsewhere."""

    def unchecked(self) -> SparseTensor | DenseTensor | None:
        """Return the whole tensor on rank 0, None elsewhere; elements of a dense one may be NaN."""

    def digest(self) -> int:
        """Return a digest of the tensor, independent of the ranks; see `partitioner.tensors.digest`."""


class ModeCopies(TensorFacts, Protocol):
    """A sparse tensor that is distributed to the ranks, one mode copy at a time. All methods are collective."""

    def used(self, mode: int) -> int:
        """Return the number of used indices of a mode."""

    def cut(self, mode: int, parts: int, targets: Offsets | None = None) -> Cut:
        """Return the cut of a mode's nonzeros into `parts` shares; see `partitioner.shards.partition.cut_mode`."""

    def load(self, mode: int, cut: Cut, dtype: FloatDType, keep: int | None = None) -> Iterator[Any]:
        """Yield the columns of this rank's share of the mode copy: `order` index columns, then the values.

        Columns are arrays, in device memory if the tensor is stored there. If only the first `keep` nonzeros need to be
        in memory, they may be instances of `StoredColumn`.
        """

    def loading(self, ranks: int, dtype: FloatDType, on_host: bool) -> Loading:
        """Return the memory needed to load the tensor for `ranks` ranks, whose shards stay on the host if `on_host`."""

    def placed(self) -> None:
        """Free the device memory used for loading, unless the tensor stays there."""

    def leave_device(self) -> None:
        """Free the device memory used for loading; afterwards, nonzeros are loaded from the host."""


class SparseSource(DescribedSource, ModeCopies, Protocol):
    """A sparse tensor; see `DescribedSource` and `ModeCopies`. All methods are collective."""

    def used_indices(self, mode: int) -> NDArray[np.int32]:
        """See `DescribedSource`."""

    def by_fibre(self, mode: int, dtype: FloatDType) -> list[Any]:
        """Return this rank's equal share of the nonzeros, sorted by all other modes in turn, then by `mode`.

        Returns the columns of the other modes, ascending, that of `mode`, and the values, in device memory if the
        tensor is stored there. A fibre may extend over several ranks.
        """

    def tensor(self) -> SparseTensor | None:
        """Return the whole tensor on rank 0, None elsewhere."""


class ProductSource(Protocol):
    """A tensor that is distributed to the ranks by the fibres of a mode. All methods are collective."""

    shape: tuple[int, ...]
    nnz: int  # number of values, each of which is an array over all dense modes
    value_range: ValueRange

    @property
    def sparse(self) -> tuple[int, ...]:
        """The sparse modes, which have indices."""

    @property
    def dense(self) -> tuple[int, ...]:
        """The dense modes, in the order of a value's axes."""

    @property
    def labels(self) -> Labels | None:
        """The labels of indices, if any."""

    @property
    def path(self) -> str | os.PathLike[str] | None:
        """The file or store, if any."""

    def by_fibre(self, mode: int, dtype: FloatDType) -> list[Any]:
        """See `SparseSource.by_fibre`; values of a semi-sparse tensor are (n, width)."""

    def loading(self, ranks: int, dtype: FloatDType, on_host: bool) -> Loading:
        """See `SparseSource`."""

    def leave_device(self) -> None:
        """See `SparseSource`."""
