"""Communication between ranks: all-gather of factor rows (AMPED, Algorithm 3), sums of rows, and small sums.

Host arrays are sent by MPI. Device arrays are sent by NCCL if each rank has a GPU to itself; if ranks share a GPU,
which NCCL does not support, they are staged through the host.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Sequence
from contextlib import AbstractContextManager, nullcontext
from itertools import pairwise
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from partitioner.array_types import Element, HostArray

from ..parallel.mpi import Comm, Reduction, share
from .byte_count import Counted
from .device import Array, Device


class Machine(NamedTuple):
    """The hardware of a run: its ranks, this rank's device, and the collectives for device arrays."""

    comm: Comm  # ranks that share the work
    device: Device
    exchange: Counted
    others: Comm | None = None  # all ranks of the run, if each does the same work, and `comm` has only this one

    @property
    def everyone(self) -> Comm:
        """All ranks of the run."""
        return self.others or self.comm

    def agreed(self, array: NDArray[Element]) -> NDArray[Element]:
        """Return rank 0's array if all ranks do the same work, as they may differ in rounding. Collective."""
        return array if self.others is None else share(self.others, array)


class RowRanges(NamedTuple):
    """Rows that all ranks send in one all-gather: rank ``r`` sends rows ``begin[r]`` to ``end[r]``."""

    shards: int  # shards to compute before, since the previous all-gather
    begin: NDArray[np.int64]
    end: NDArray[np.int64]
    last: bool

    def rows(self, rank: int, first: int) -> slice:
        """Return a rank's rows, counted from `first`."""
        return slice(int(self.begin[rank]) - first, int(self.end[rank]) - first)


def agree(done: Sequence[Sequence[int]], rows: NDArray[np.int64], least: int | None) -> list[RowRanges]:
    """Divide a mode's rows into blocks that are sent one after the other.

    Parameters
    ----------
    done : sequence of sequence of int
        For each rank, the end of its finished rows after each of its shards.
    rows : (ranks + 1,) int64 array
        Rank ``r`` owns rows ``rows[r]`` to ``rows[r + 1]``.
    least : int or None
        Minimum number of rows of the largest part of a block; None: all rows are one block.
    """
    count = max(map(len, done))
    begin, blocks, since = rows[:-1], list[RowRanges](), 0
    if least is None:
        return [RowRanges(count, begin, rows[1:], last=True)]
    for k in range(count - 1):
        # A rank's last rows are sent in the last block: other ranks may have partial sums of them.
        end = np.array([[first, *mine[:-1]][: k + 2][-1] for first, mine in zip(rows, done, strict=False)], np.int64)
        if np.max(end - begin) >= least:
            blocks.append(RowRanges(k + 1 - since, begin, end, last=False))
            begin, since = end, k + 1
    return [*blocks, RowRanges(max(0, count - since), begin, rows[1:], last=True)]


def connect(device: Device, comm: Comm) -> Machine:
    """Return the machine of these ranks and their devices. Collective."""
    if device.on_host:
        return Machine(comm, device, Counted(HostExchange(comm), comm))
    identities = comm.allgather((os.uname().nodename, device.description))
    exclusive = comm.size > 1 and len(set(identities)) == comm.size
    device_collectives = device.collectives(comm) if exclusive else None
    return Machine(comm, device, Counted(device_collectives or StagedExchange(comm, device.to_host), comm))


class _Blocking:
    """Collectives that are complete when they return."""

    overlaps = False

    def comm_stream(self) -> AbstractContextManager[None]:
        return nullcontext()

    def wait_comm(self, forget: bool = True) -> None:
        """See `Collectives`."""

    def abort(self) -> None:
        """See `Collectives`: MPI's communicator is aborted with the process."""


class HostExchange(_Blocking):
    """Collectives on host arrays by MPI, which runs large all-gathers as a ring."""

    def __init__(self, comm: Comm) -> None:
        self._comm = comm
        self.name = "MPI" if comm.size > 1 else "none"

    def gather_rows(
        self, matrix: HostArray, begin: NDArray[np.int64], end: NDArray[np.int64], sums: Array | None = None
    ) -> None:
        self._comm.all_gather_rows(matrix, begin, end)
        if sums is not None:
            self.reduce(sums, "sum")

    def reduce_rows(self, matrix: HostArray, offsets: NDArray[np.int64]) -> None:
        for owner, (begin, end) in enumerate(pairwise(offsets)):
            self._comm.sum_on(owner, matrix[begin:end])

    def reduce(self, array: HostArray, reduction: Reduction) -> None:
        self._comm.all_reduce(array, reduction)

    def part(self, comm: Comm) -> HostExchange:
        return HostExchange(comm)


class StagedExchange(_Blocking):
    """Collectives on device arrays through host memory, for ranks that share a GPU and for a single rank."""

    def __init__(self, comm: Comm, to_host: Callable[[Array], NDArray[Any]]) -> None:
        self._comm, self._to_host = comm, to_host
        self.name = "MPI, staged through the host" if comm.size > 1 else "none"

    def gather_rows(
        self, matrix: Any, begin: NDArray[np.int64], end: NDArray[np.int64], sums: Array | None = None
    ) -> None:
        if sums is not None:
            self.reduce(sums, "sum")
        if self._comm.size > 1:
            blocks = [slice(int(b), int(e)) for b, e in zip(begin, end, strict=True)]
            host = np.empty(matrix.shape, matrix.dtype)
            host[blocks[self._comm.rank]] = self._to_host(matrix[blocks[self._comm.rank]])
            self._comm.all_gather_rows(host, begin, end)
            for block in blocks:
                matrix[block].set(host[block])

    def reduce_rows(self, matrix: Any, offsets: NDArray[np.int64]) -> None:
        """See `Collectives`. One owner's rows at a time, so that host memory never has a whole matrix."""
        for owner, (begin, end) in enumerate(pairwise(offsets)):
            if self._comm.size > 1 and end > begin:
                host = np.ascontiguousarray(self._to_host(matrix[begin:end]))
                self._comm.sum_on(owner, host)
                if owner == self._comm.rank:
                    matrix[begin:end].set(host)

    def reduce(self, array: Any, reduction: Reduction) -> None:
        if self._comm.size > 1:
            host = np.ascontiguousarray(self._to_host(array))
            self._comm.all_reduce(host, reduction)
            array.set(host)

    def part(self, comm: Comm) -> StagedExchange:
        return StagedExchange(comm, self._to_host)
