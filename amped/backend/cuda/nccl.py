"""Exchange of device arrays over NCCL. CuPy's binding is to be retired one day, so it stays in this file."""

from __future__ import annotations

from typing import Any

import cupy
import numpy as np
from cupy.cuda import nccl
from numpy.typing import NDArray

from ...mpi import Comm, Reduction

TYPES = {np.dtype(np.float32): nccl.NCCL_FLOAT32, np.dtype(np.float64): nccl.NCCL_FLOAT64}


class NcclExchange:
    """Collectives on device arrays, queued on the current stream; one GPU for each rank."""

    name = "NCCL"

    def __init__(self, comm: Comm) -> None:
        unique = comm.bcast(nccl.get_unique_id() if comm.rank == 0 else None)
        self._size, self._rank = comm.size, comm.rank
        self._nccl = nccl.NcclCommunicator(comm.size, unique, comm.rank)
        self.reduce(cupy.zeros(1, np.float64), "sum")  # NCCL connects the ranks at their first collective
        cupy.cuda.get_current_stream().synchronize()

    def gather_rows(self, matrix: Any, offsets: NDArray[np.int64]) -> None:
        """See `Exchange`. Blocks of unequal size: one broadcast for each owner, fused by NCCL into rings."""
        counts = np.diff(offsets) * matrix.shape[1]
        kind, stream = TYPES[matrix.dtype], cupy.cuda.get_current_stream().ptr
        begin = [matrix.data.ptr + int(o) * matrix.strides[0] for o in offsets]
        if np.all(counts == counts[0]):
            self._nccl.allGather(begin[self._rank], begin[0], int(counts[0]), kind, stream)
            return
        nccl.groupStart()
        for owner in np.flatnonzero(counts):
            at = begin[owner]
            self._nccl.broadcast(at, at, int(counts[owner]), kind, int(owner), stream)
        nccl.groupEnd()

    def reduce_rows(self, matrix: Any, offsets: NDArray[np.int64]) -> None:
        """See `Exchange`. Blocks of unequal size: one reduction for each owner, fused by NCCL."""
        counts = np.diff(offsets) * matrix.shape[1]
        kind, stream = TYPES[matrix.dtype], cupy.cuda.get_current_stream().ptr
        nccl.groupStart()
        for owner in np.flatnonzero(counts):
            at = matrix.data.ptr + int(offsets[owner]) * matrix.strides[0]
            self._nccl.reduce(at, at, int(counts[owner]), kind, nccl.NCCL_SUM, int(owner), stream)
        nccl.groupEnd()

    def reduce(self, array: Any, reduction: Reduction) -> None:
        """See `Exchange`."""
        operation = nccl.NCCL_SUM if reduction == "sum" else nccl.NCCL_MAX
        at, stream = array.data.ptr, cupy.cuda.get_current_stream().ptr
        self._nccl.allReduce(at, at, array.size, TYPES[array.dtype], operation, stream)
