"""The ttm operation: multiplies a sparse tensor by a matrix in one mode, fibre by fibre (SpTTM).

Li, Ma, Yan and Vuduc, Optimizing Sparse Tensor Times Matrix on Multi-core and Many-core Architectures, IA3 2016.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, NamedTuple, Protocol

from partitioner.array_types import FloatDType

from ..device import Array, Movable
from ..registry import Op


@dataclass(frozen=True)
class ProductForm:
    """Properties of a product that are known before its nonzeros are loaded."""

    length: int  # rows of the matrix
    stride: int  # columns of matrix and result in memory, including padding
    dtype: FloatDType  # of values, matrix and result
    nnz: int  # of this rank
    width: int = 1  # numbers per value: the size of the dense modes of a semi-sparse tensor

    @property
    def row_bytes(self) -> int:
        """Bytes of the result for a fibre."""
        return self.width * self.stride * self.dtype.itemsize


class TtmBytes(NamedTuple):
    """Device memory, in bytes, that a kernel needs for some nonzeros."""

    shard: int  # upper bound of their shard
    making: int  # additionally, while the shard is built
    running: int  # scratch memory for `TtmKernel.run`


class FibreShard(Movable, Protocol):
    """Nonzeros of consecutive fibres in the format of a kernel, in device or host memory."""

    @property
    def nnz(self) -> int:
        """The number of nonzeros."""

    @property
    def fibres(self) -> int:
        """The number of fibres."""

    def unloaded(self) -> FibreShard:
        """Return a copy in host memory that is suited to fill slots."""


class TtmKernel(Protocol):
    """A kernel that computes SpTTM on a device: a provider of the operation. Results are bitwise reproducible."""

    name: str
    most_nonzeros: int  # largest number of nonzeros of a shard

    def prepare(self, form: ProductForm) -> None:
        """Start preparations that do not depend on the nonzeros, such as compiling; return immediately."""

    def bytes(self, form: ProductForm, nnz: int, fibres: int) -> TtmBytes:
        """Return the memory that `nnz` nonzeros in `fibres` fibres need."""

    def make(self, indices: Array, values: Array, starts: Array, form: ProductForm) -> FibreShard:
        """Return a shard of nonzeros, which are sorted by fibre, in device memory.

        Parameters
        ----------
        indices : (nnz,) int32 array
            Indices of the multiplied mode, in host or device memory.
        values : (nnz,) or (nnz, width) array
        starts : (fibres + 1,) integer array
            The starts of the fibres, and the end.
        form : ProductForm
        """

    def run(self, shard: Any, matrix: Array, out: Array, scratch: Array = None) -> None:
        """Queue the product of a shard, which writes all rows of `out`, without allocating memory or waiting.

        Parameters
        ----------
        shard : FibreShard
        matrix : (length, stride) array
        out : (fibres, width, stride) array
            C-contiguous.
        scratch : (bytes,) uint8 array
            At least of the size that `bytes` returns; its contents are not preserved.
        """


TTM = Op[TtmKernel]("ttm")
"""The first provider is the default."""
