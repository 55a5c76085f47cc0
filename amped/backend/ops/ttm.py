"""The operation that multiplies a sparse tensor with a matrix in one mode, fibre by fibre (SpTTM).

Li, Ma, Yan and Vuduc, Optimizing Sparse Tensor Times Matrix on Multi-core and Many-core Architectures, IA3 2016.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, NamedTuple, Protocol

import numpy as np

from ..device import Array, Movable
from ..registry import Op


@dataclass(frozen=True)
class ProductForm:
    """What is known of a product before its nonzeros are loaded."""

    length: int  # rows of the matrix
    stride: int  # columns of matrix and result in memory
    dtype: np.dtype[Any]  # of values, matrix and result
    nnz: int  # of this rank
    width: int = 1  # numbers of a value: of a semi-sparse tensor those of its dense modes

    @property
    def row_bytes(self) -> int:
        """Bytes of the result for a fibre."""
        return self.width * self.stride * self.dtype.itemsize


class TtmBytes(NamedTuple):
    """Device memory that a kernel takes for some nonzeros."""

    shard: int  # of their shard, at most
    making: int  # while it is made, beside it and the nonzeros
    running: int  # scratch memory that `TtmKernel.run` is given


class FibreShard(Movable, Protocol):
    """Nonzeros of a run of fibres as a kernel wants them, in device memory or on their way there."""

    @property
    def nnz(self) -> int:
        """The number of nonzeros."""

    @property
    def fibres(self) -> int:
        """The number of fibres."""

    def unloaded(self) -> FibreShard:
        """Return a copy in host memory, from which slots are filled fastest."""


class TtmKernel(Protocol):
    """One way to compute SpTTM on a device: a provider of the operation. Its results are bitwise equal every time."""

    name: str
    most_nonzeros: int  # of a shard

    def prepare(self, form: ProductForm) -> None:
        """Begin to make what does not depend on the nonzeros themselves, such as compiled code, and return at once."""

    def bytes(self, form: ProductForm, nnz: int, fibres: int) -> TtmBytes:
        """Return the memory that so many nonzeros of so many fibres take."""

    def make(self, indices: Array, values: Array, starts: Array, form: ProductForm) -> FibreShard:
        """Return nonzeros as this kernel wants them, in device memory.

        Parameters
        ----------
        indices : (nnz,) int32 array
            Of the mode that is multiplied; nonzeros are sorted by fibre. In host or device memory.
        values : (nnz,) or (nnz, width) array
        starts : (fibres + 1,) integer array
            Where the fibres begin, and the end.
        form : ProductForm
        """

    def run(self, shard: Any, matrix: Array, out: Array, scratch: Array = None) -> None:
        """Queue the product of a shard: every row of `out` is written. Allocate nothing, wait for nothing.

        Parameters
        ----------
        shard : FibreShard
        matrix : (length, stride) array
        out : (fibres, width, stride) array
            C-contiguous.
        scratch : (bytes,) uint8 array
            At least as large as `bytes` says. Its contents mean nothing before and after.
        """


TTM = Op[TtmKernel]("ttm")
"""The first provider is the default."""
