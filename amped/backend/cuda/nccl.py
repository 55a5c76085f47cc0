"""Collectives on device arrays by NCCL. CuPy plans to drop its binding, so only this file uses it."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from functools import cache
from typing import Any

import cupy
import numpy as np
from cupy.cuda import nccl
from numpy.typing import NDArray

from ...parallel.mpi import Comm, Reduction
from ...parallel.progress import CURRENT
from .clock import HIGHEST, untimed

TYPES = {
    np.dtype(np.float32): nccl.NCCL_FLOAT32, np.dtype(np.float64): nccl.NCCL_FLOAT64,
    np.dtype(np.uint8): nccl.NCCL_UINT8,
}  # fmt: skip


def _now() -> Any:
    """Return an event that completes when all work queued so far is done."""
    return cupy.cuda.get_current_stream().record(untimed())


class NcclExchange:
    """Collectives on device arrays, on a separate stream; one GPU per rank.

    NCCL runs one collective at a time, so the collectives of some ranks use the stream of the `whole`, if given.
    """

    name = "NCCL"
    overlaps = True

    def __init__(self, comm: Comm, whole: NcclExchange | None = None) -> None:
        unique = comm.bcast(nccl.get_unique_id() if comm.rank == 0 else None)
        self._rank = comm.rank
        self._nccl = nccl.NcclCommunicator(comm.size, unique, comm.rank)
        # Has priority over kernels queued earlier: it takes few multiprocessors, and other ranks wait for it.
        self._stream: Any = whole._stream if whole else cupy.cuda.Stream(non_blocking=True, priority=HIGHEST)
        self._sent: Any = None  # event that `wait_comm` waits for, if any
        self._parts = list[NcclExchange]()
        self.reduce(cupy.zeros(1, np.float64), "sum")  # NCCL connects the ranks at their first collective
        cupy.cuda.get_current_stream().synchronize()

    @contextmanager
    def comm_stream(self) -> Iterator[None]:
        self._stream.wait_event(_now())
        with self._stream:
            yield
        self._sent = self._stream.record(untimed())

    def wait_comm(self, forget: bool = True) -> None:
        """See `Collectives`. Sums queued later on behalf of another stream are not waited for."""
        if self._sent is not None:
            cupy.cuda.get_current_stream().wait_event(self._sent)
            self._sent = None if forget else self._sent

    @contextmanager
    def _ordered(self, operation: str, nbytes: int) -> Iterator[tuple[Any, int]]:
        """Yield the communicator and its stream, ordered after all queued work: NCCL runs one collective at a time."""
        CURRENT.queued(f"NCCL {operation}", nbytes)
        if cupy.cuda.get_current_stream() == self._stream:
            yield self._nccl, self._stream.ptr
            return
        self._stream.wait_event(_now())
        yield self._nccl, self._stream.ptr
        cupy.cuda.get_current_stream().wait_event(self._stream.record(untimed()))

    def gather_rows(self, matrix: Any, begin: NDArray[np.int64], end: NDArray[np.int64], sums: Any = None) -> None:
        """See `Collectives`. Unequal blocks use one broadcast per owner, which NCCL fuses."""
        counts = (end - begin) * matrix.shape[1]
        kind = TYPES[matrix.dtype]
        at = [matrix.data.ptr + int(b) * matrix.strides[0] for b in begin]
        with self._ordered("all-gather", matrix.nbytes) as (communicator, stream):
            nccl.groupStart()
            if sums is not None:
                to = sums.data.ptr
                communicator.allReduce(to, to, sums.size, TYPES[sums.dtype], nccl.NCCL_SUM, stream)
            if np.all(counts == counts[0]) and np.array_equal(begin[1:], end[:-1]):
                communicator.allGather(at[self._rank], at[0], int(counts[0]), kind, stream)
            else:
                for owner in np.flatnonzero(counts):
                    communicator.broadcast(at[owner], at[owner], int(counts[owner]), kind, int(owner), stream)
            nccl.groupEnd()

    def reduce_rows(self, matrix: Any, offsets: NDArray[np.int64]) -> None:
        """See `Collectives`. Unequal blocks use one reduction per owner, which NCCL fuses."""
        counts = np.diff(offsets) * matrix.shape[1]
        kind = TYPES[matrix.dtype]
        with self._ordered("reduce-scatter", matrix.nbytes) as (communicator, stream):
            nccl.groupStart()
            for owner in np.flatnonzero(counts):
                at = matrix.data.ptr + int(offsets[owner]) * matrix.strides[0]
                communicator.reduce(at, at, int(counts[owner]), kind, nccl.NCCL_SUM, int(owner), stream)
            nccl.groupEnd()

    def reduce(self, array: Any, reduction: Reduction) -> None:
        operation = nccl.NCCL_SUM if reduction == "sum" else nccl.NCCL_MAX
        at = array.data.ptr
        with self._ordered("all-reduce", array.nbytes) as (communicator, stream):
            communicator.allReduce(at, at, array.size, TYPES[array.dtype], operation, stream)

    def part(self, comm: Comm) -> NcclExchange:
        """See `Collectives`."""
        result = connected(comm, self)
        if result not in self._parts:
            self._parts.append(result)
        return result

    def abort(self) -> None:
        """Abort queued collectives that other ranks will not join."""
        for each in (self, *self._parts):
            each._nccl.abort()


@cache
def connected(comm: Comm, whole: NcclExchange | None = None) -> NcclExchange:
    """Return the communicator of these ranks; it is created once per process. Collective."""
    return NcclExchange(comm, whole)
