"""Descriptions that all sources of sparse tensors share."""

from __future__ import annotations

import math
import os
from collections.abc import Callable
from typing import Any

from partitioner.array_types import FloatDType
from partitioner.readers import line_where
from partitioner.tensors.sparse import SparseTensor
from partitioner.tensors.value_range import ValueRange
from partitioner.wording import readable

from ..placement import Loading
from .protocols import DeviceMemory, SparseSource


class SparseProduct:
    """A sparse tensor as a `ProductSource`."""

    dense: tuple[int, ...] = ()

    def __init__(self, source: SparseSource) -> None:
        self._source, self.shape, self.nnz = source, source.shape, source.nnz
        self.value_range, self.labels, self.path = source.value_range, source.labels, source.path
        self.sparse = tuple(range(len(source.shape)))

    def by_fibre(self, mode: int, dtype: FloatDType) -> list[Any]:
        return self._source.by_fibre(mode, dtype)

    def loading(self, ranks: int, dtype: FloatDType, on_host: bool) -> Loading:
        return self._source.loading(ranks, dtype, on_host)

    def leave_device(self) -> None:
        self._source.leave_device()


COUNTED = 1 << 20  # nonzeros up to which counting the rows of trees takes 20 ms at most


class DescribedSparse:
    """Base class of sources of sparse tensors; see `DescribedSource`."""

    kind = "sparse"
    path: str | os.PathLike[str] | None
    shape: tuple[int, ...]
    nnz: int
    norm: float
    value_range: ValueRange
    duplicates: int
    zeros: int

    @property
    def known_norm(self) -> float:
        """See `DescribedSource`."""
        return self.norm

    @property
    def planned_values(self) -> ValueRange:
        """See `DescribedSource`: the range of all values."""
        return self.value_range

    @property
    def density(self) -> float:
        """See `DescribedSource`."""
        return self.nnz / math.prod(map(float, self.shape))

    @property
    def repaired(self) -> dict[str, int]:
        """See `DescribedSource`."""
        return {"duplicates": self.duplicates, "zeros": self.zeros}

    def tree_rows(self) -> int | None:
        """Return `backend.plain.splits.tree_rows` if counting takes little time, else None. Collective."""
        return None

    def describe(self) -> str:
        """See `DescribedSource`."""
        shape = " x ".join(map(str, self.shape))
        text = f"{shape}, {self.nnz:,} nonzeros (density {self.density:.1e}), norm {readable(self.norm)}"
        if self.duplicates:
            text += f"; {self.duplicates:,} duplicates summed"
        if self.zeros:
            text += f"; {self.zeros:,} zeros dropped"
        return text

    def line_where(self, wrong: Callable[[float], bool]) -> int | None:
        """See `DescribedSource`."""
        return line_where(self.path, wrong)

    def unchecked(self: SparseSource) -> SparseTensor | None:
        """See `DescribedSource`."""
        return self.tensor()

    def sparse(self: SparseSource, memory: DeviceMemory | None) -> SparseSource:
        """See `DescribedSource`: the source itself."""
        return self

    def product(self: SparseSource) -> SparseProduct:
        """See `DescribedSource`."""
        return SparseProduct(self)
