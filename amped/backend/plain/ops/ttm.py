"""SpTTM without compiled code."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from partitioner.host.imports import scipy_module

from ...device import Array
from ...ops.ttm import TTM, ProductForm, TtmBytes, TtmKernel
from ..device import PlainDevice

csr_array = scipy_module("sparse").csr_array


@dataclass(frozen=True)
class PlainFibres:
    """Nonzeros of fibres. See `FibreShard`."""

    starts: NDArray[np.int32]  # of the fibres, and the end
    indices: NDArray[np.int32]
    values: NDArray[np.float64]  # (nnz, width)

    @property
    def nnz(self) -> int:
        """The number of nonzeros."""
        return int(self.indices.size)

    @property
    def fibres(self) -> int:
        """The number of fibres."""
        return int(self.starts.size - 1)

    @property
    def nbytes(self) -> int:
        """The bytes of the nonzeros."""
        return self.starts.nbytes + self.indices.nbytes + self.values.nbytes

    def unloaded(self) -> PlainFibres:
        """See `FibreShard`: it stays in host memory."""
        return self

    def copied(self, buffer: NDArray[np.uint8]) -> PlainFibres:
        """See `Movable`: nothing is copied."""
        return self


class PlainTtm:
    """Sparse matrix products, one for each number of a value. See `TtmKernel`."""

    name = "fibres"
    most_nonzeros = (1 << 31) - 1

    def prepare(self, form: ProductForm) -> None:
        """See `TtmKernel`: nothing is compiled."""

    def bytes(self, form: ProductForm, nnz: int, fibres: int) -> TtmBytes:
        shard = nnz * (4 + 8 * form.width) + 4 * (fibres + 1)
        return TtmBytes(shard, 0, 8 * (nnz + (fibres + form.length) * form.stride))

    def make(self, indices: Array, values: Array, starts: Array, form: ProductForm) -> PlainFibres:
        double = np.ascontiguousarray(values, np.float64).reshape(-1, form.width)
        return PlainFibres(starts.astype(np.int32), np.ascontiguousarray(indices, np.int32), double)

    def run(self, shard: PlainFibres, matrix: Array, out: Array, scratch: Array = None) -> None:
        """See `TtmKernel`: in double precision; NumPy allocates its own memory, as much as `scratch`."""
        double, shape = matrix.astype(np.float64, copy=False), (shard.fibres, len(matrix))
        for number in range(out.shape[1]):
            nonzeros = csr_array((shard.values[:, number].copy(), shard.indices, shard.starts), shape=shape)
            with np.errstate(over="ignore"):  # the caller checks the range
                out[:, number] = nonzeros @ double


@TTM.provider("plain")
def providers(device: PlainDevice) -> Sequence[TtmKernel]:
    """Return the kernels of the operation."""
    return [PlainTtm()]
