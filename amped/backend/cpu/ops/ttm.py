"""SpTTM on the CPU: shards of fibres, and their split over threads."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
from numpy.typing import NDArray

from partitioner.array_types import Floats

from ...device import Array
from ...fibres import Chunks, cut_chunks, most_slots
from ...ops.ttm import TTM, ProductForm, TtmBytes, TtmKernel
from ..device import CpuDevice
from ..kernels.fibres import add_carries, fibre_sums
from ..kernels.sums import lanes_of
from ..shard import constant
from ..simd.vectors import LANE, LINE, PAST, STORE
from ..threads import check

PREFETCH = 12  # prefetch distance in nonzeros, unless the matrix fits into the L1 cache
NEAR = 32 << 10  # bytes of the L1 cache
TURNS = 32  # chunks per thread; faster threads take more of them
SMALLEST = 4096  # nonzeros of a chunk; smaller chunks cost more than they balance
SLACK = 16  # nonzeros by which a chunk's end is moved at most, to the end of a fibre
CACHED = 4 << 20  # largest result that stays in the caches, in bytes


@dataclass(frozen=True)
class HostFibres:
    """Nonzeros of fibres. See `FibreShard`."""

    starts: NDArray[np.int32]  # first nonzero of each fibre, then the number of nonzeros
    indices: NDArray[np.int32]
    values: Floats  # (nnz * width,)
    chunks: Chunks

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
        """The size in bytes."""
        return self.starts.nbytes + self.indices.nbytes + self.values.nbytes

    def unloaded(self) -> HostFibres:
        return self

    def copied(self, buffer: NDArray[np.uint8]) -> HostFibres:
        views, at = list[NDArray[Any]](), 0
        for array in (self.values, self.starts, self.indices):  # values first, so that all arrays are aligned
            view = buffer[at : at + array.nbytes].view(array.dtype)
            np.copyto(view, array)
            views.append(constant(view))
            at += array.nbytes
        return replace(self, values=views[0], starts=views[1], indices=views[2])


class CpuFibres:
    """Sums fibres in vector registers; threads take chunks of fibres in turn. See `TtmKernel`."""

    name = "fibres"
    most_nonzeros = (1 << 31) - 1

    def __init__(self, device: CpuDevice) -> None:
        self._threads = device.threads

    def prepare(self, form: ProductForm) -> None:
        """See `TtmKernel`: Numba compiles in one thread, at the first call."""

    def bytes(self, form: ProductForm, nnz: int, fibres: int) -> TtmBytes:
        if not nnz:
            return TtmBytes(0, 0, 0)
        shard = nnz * (4 + form.width * form.dtype.itemsize) + 4 * (fibres + 1)
        slots = most_slots(-(-nnz // self._size(nnz))) * form.width + self._threads.count
        return TtmBytes(shard, 0, slots * form.stride * 8)

    def make(self, indices: Array, values: Array, starts: Array, form: ProductForm) -> HostFibres:
        indices = np.ascontiguousarray(indices, np.int32)
        values = np.ascontiguousarray(values, form.dtype).reshape(-1)
        chunks = cut_chunks(starts, indices.size, self._size(indices.size), SLACK)
        return HostFibres(constant(starts.astype(np.int32)), constant(indices), constant(values), chunks)

    def _size(self, nnz: int) -> int:
        return max(SMALLEST, -(-nnz // (self._threads.count * TURNS)))

    def run(self, shard: HostFibres, matrix: Array, out: Array, scratch: Array = None) -> None:
        """See `TtmKernel`."""
        if not shard.nnz:
            return
        threads, width, stride = self._threads, out.shape[1], out.shape[2]
        rows, slots = out.reshape(-1, stride), shard.chunks.slots * width + threads.count
        size = slots * stride * 8
        carries = np.empty((slots, stride)) if scratch is None else scratch[:size].view(np.float64).reshape(-1, stride)
        aligned = out.ctypes.data % LINE == 0 and stride * out.itemsize % LANE == 0
        way = PAST if aligned and out.nbytes > CACHED else STORE
        nonzeros, turn = (shard.starts, shard.indices, shard.values), np.zeros(1, np.int64)
        called = min(threads.count, len(shard.chunks.table))
        prefetch = PREFETCH if matrix.nbytes > NEAR else 0
        args = shard.chunks.table, nonzeros, (constant(matrix),), rows, carries, way, prefetch
        check(fibre_sums(0, threads.team, called, turn, *args, *lanes_of(matrix)))
        for items in shard.chunks.levels:
            add_carries(items, carries, rows, width)


@TTM.provider("cpu")
def providers(device: CpuDevice) -> Sequence[TtmKernel]:
    """Return the kernels of the operation, the default first."""
    return [CpuFibres(device)]
