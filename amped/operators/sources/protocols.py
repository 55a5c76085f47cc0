"""What all sources of tensors have in common, what those of sparse ones have, and what is multiplied with matrices."""

from __future__ import annotations

import os
from collections.abc import Iterator
from typing import Any, NamedTuple, Protocol

import numpy as np
from numpy.typing import NDArray

from partitioner.shards.partition import Cut
from partitioner.tensors.dense import DenseTensor
from partitioner.tensors.labels import Labels
from partitioner.tensors.sparse import SparseTensor, ValueRange

from ...backend.exchange import Machine
from ..placement import Loading

Offsets = NDArray[np.int64]


class DeviceMemory(NamedTuple):
    """Where a tensor may be held: the ranks' devices, and how many bytes of memory each may use."""

    machine: Machine
    nbytes: int


class DescribedSource(Protocol):
    """A tensor of any kind, as all ranks know it. All methods are collective."""

    kind: str  # "sparse" or "dense"
    shape: tuple[int, ...]
    nnz: int  # elements that are held: of a dense tensor, all
    value_dtype: np.dtype[Any]

    @property
    def norm(self) -> float:
        """The Frobenius norm."""

    @property
    def value_range(self) -> ValueRange:
        """The smallest and the largest value."""

    @property
    def duplicates(self) -> int:
        """Nonzeros that were merged on reading."""

    @property
    def zeros(self) -> int:
        """Nonzeros that were dropped on reading."""

    @property
    def stored(self) -> bool:
        """Whether it is in a store."""

    @property
    def labels(self) -> Labels | None:
        """What indices stand for, if not for themselves; on every rank."""

    @property
    def path(self) -> str | os.PathLike[str] | None:
        """The file or store, if it is in one."""

    @property
    def known_norm(self) -> float | None:
        """The Frobenius norm, if no element has to be read to find it."""

    @property
    def planned_values(self) -> ValueRange:
        """The values on which plans depend."""

    @property
    def density(self) -> float | None:
        """The share of elements that are held, of a sparse tensor; None of a dense one."""

    @property
    def repaired(self) -> dict[str, int]:
        """What was repaired on reading, by name, of a tensor of which that can be said."""

    def describe(self) -> str:
        """Return the shape, and what is known of the elements, in one line."""

    def negative_line(self) -> int | None:
        """Return the line of its file that has the first negative value, if there is one. Not collective."""

    def sparse(self, room: DeviceMemory | None) -> SparseSource:
        """Return the tensor as a sparse one, held on devices where they have `room` for it."""

    def product(self) -> ProductSource:
        """Return the tensor as what is multiplied with matrices; raise `InputError` if its kind is not."""

    def stay_on_device(self) -> None:
        """Let devices hold the tensor after it was placed, if it is small and they do: it will be placed again."""

    def used(self, mode: int) -> int:
        """Return how many indices of a mode are used."""

    def tensor(self) -> SparseTensor | DenseTensor | None:
        """Return the whole tensor on rank 0, None elsewhere."""

    def digest(self) -> int:
        """Return a number that tells the tensor from others, on whatever ranks; see `partitioner.tensors.digest`."""


class SparseSource(DescribedSource, Protocol):
    """A sparse tensor that is dealt to the ranks, one mode copy at a time. All methods are collective."""

    def cut(self, mode: int, parts: int, targets: Offsets | None = None) -> Cut:
        """Return how the nonzeros of `mode` are dealt to `parts` ranks; see `partitioner.shards.partition.cut_mode`."""

    def load(self, mode: int, cut: Cut, dtype: np.dtype[Any], keep: int | None = None) -> Iterator[Any]:
        """Yield this rank's share of the mode copy: its `order` index columns, then its values.

        Arrays, in device memory if the tensor is held there; if only the first `keep` nonzeros need to be in memory,
        perhaps a `StoredColumn`.
        """

    def by_fibre(self, mode: int, dtype: np.dtype[Any]) -> list[Any]:
        """Return this rank's equal share of the nonzeros, sorted by all other modes in turn, then by `mode`.

        The columns of the other modes, ascending, that of `mode`, and the values; in device memory if the tensor is
        held there. A fibre may lie on several ranks.
        """

    def tensor(self) -> SparseTensor | None:
        """Return the whole tensor on rank 0, None elsewhere."""

    def loading(self, ranks: int, dtype: np.dtype[Any], on_host: bool) -> Loading:
        """Return what rank 0 needs to load the tensor for so many ranks, whose shards stay on the host or do not."""

    def placed(self) -> None:
        """Give back the device memory that loading has taken, unless the tensor is to stay there."""

    def leave_device(self) -> None:
        """Give that memory back in any case: from now on nonzeros are loaded from the host."""


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
        """Return what `SparseSource.by_fibre` does; values of a semi-sparse tensor are (n, width)."""

    def loading(self, ranks: int, dtype: np.dtype[Any], on_host: bool) -> Loading:
        """See `SparseSource`."""

    def leave_device(self) -> None:
        """See `SparseSource`."""
