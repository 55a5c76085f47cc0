"""The ranks of a run: MPI if a launcher started several processes, else a single process.

MPI is imported only under a launcher: a single process needs no MPI library. MPI carries host data only; device data
goes through NCCL.
"""

from __future__ import annotations

import os
import sys
from collections.abc import Sequence
from functools import cache
from typing import Any, Literal, Protocol, TypeVar

import numpy as np
from numpy.typing import NDArray

from partitioner.array_types import Element, HostArray
from partitioner.host import ranks
from partitioner.host.ranks import LAUNCHER_SIZES, launched, messages, on_root, together
from partitioner.host.signals import LAUNCHER_RANKS

from .progress import CURRENT, recorded

__all__ = [
    "LAUNCHER_RANKS", "LAUNCHER_SIZES", "Comm", "MpiComm", "Reduction", "SingleComm", "abort_all", "launched",
    "on_root", "share", "together", "world",
]  # fmt: skip

T = TypeVar("T")
Reduction = Literal["sum", "max"]


class Comm(ranks.Ranks, Protocol):
    """amped's collective operations, in addition to those of the partitioner."""

    local_rank: int  # of this process on its node
    local_size: int  # number of processes on its node

    def __hash__(self) -> int:
        """Hash by identity: there is one object per group of ranks."""

    def bcast(self, item: T) -> T:
        """Return rank 0's `item` on every rank."""

    def bcast_array(self, array: HostArray) -> None:
        """Copy rank 0's contiguous `array` into those of the other ranks; rank 0's may be read-only."""

    def scatter(
        self, array: HostArray | None, offsets: NDArray[np.int64], dtype: np.dtype[Element]
    ) -> NDArray[Element]:
        """Return this rank's slice, ``offsets[rank]`` to ``offsets[rank + 1]``, of rank 0's 1-d `array`."""

    def all_reduce(self, array: HostArray, reduction: Reduction) -> None:
        """Combine the ranks' arrays elementwise, in place."""

    def sum_on(self, rank: int, array: HostArray) -> None:
        """Sum the ranks' arrays into the one on `rank`; the others do not change."""

    def part(self, ranks: Sequence[int]) -> Comm:
        """Return a communicator of some of the ranks, ascending, among them this one. Collective for these ranks."""

    def all_gather_rows(self, matrix: HostArray, begin: NDArray[np.int64], end: NDArray[np.int64]) -> None:
        """All-gather: copy rows ``begin[r]`` to ``end[r]`` of each rank ``r``'s `matrix` to all ranks, in place."""


class SingleComm(ranks.SingleRank):
    """A single process. See `Comm`."""

    local_rank, local_size = 0, 1

    def bcast(self, item: T) -> T:
        return item

    def bcast_array(self, array: HostArray) -> None:
        """See `Comm`."""

    def scatter(
        self, array: HostArray | None, offsets: NDArray[np.int64], dtype: np.dtype[Element]
    ) -> NDArray[Element]:
        assert array is not None
        return array.astype(dtype, copy=False)

    def all_reduce(self, array: HostArray, reduction: Reduction) -> None:
        """See `Comm`."""

    def sum_on(self, rank: int, array: HostArray) -> None:
        """See `Comm`."""

    def part(self, ranks: Sequence[int]) -> Comm:
        return self

    def all_gather_rows(self, matrix: HostArray, begin: NDArray[np.int64], end: NDArray[np.int64]) -> None:
        """See `Comm`."""


class MpiComm(ranks.MpiRanks):
    """An mpi4py communicator. See `Comm`."""

    allgather = recorded(ranks.MpiRanks.allgather)
    swap = recorded(ranks.MpiRanks.swap)

    def __init__(self, comm: Any) -> None:
        super().__init__(comm)
        node = comm.Split_type(self._mpi.COMM_TYPE_SHARED)
        self.local_rank: int = node.Get_rank()
        self.local_size: int = node.Get_size()
        node.Free()
        self._crowded = any(comm.allgather(self.local_size > (os.cpu_count() or 1)))  # on any host

    def _yield_core(self) -> None:
        """Wait for the other ranks without a core if there are more ranks than cores. Collective.

        Within a collective call of MPI, ranks that wait poll, and the others compute more slowly.
        """
        if self._crowded:
            self.sleep_until_all()

    @recorded
    def bcast(self, item: T) -> T:
        self.wait_for_all()
        result: T = self._comm.bcast(item)
        return result

    @recorded
    def bcast_array(self, array: HostArray) -> None:
        self.wait_for_all()
        for piece in messages(array.reshape(-1)):
            self._comm.Bcast(piece, 0)

    @recorded
    def scatter(
        self, array: HostArray | None, offsets: NDArray[np.int64], dtype: np.dtype[Element]
    ) -> NDArray[Element]:
        self.wait_for_all()
        if self.rank:
            local = np.empty(int(offsets[self.rank + 1] - offsets[self.rank]), dtype)
            for piece in messages(local):
                self._comm.Recv(piece)
            return local
        assert array is not None
        for other in range(1, self.size):
            part = np.ascontiguousarray(array[offsets[other] : offsets[other + 1]], dtype)
            for piece in messages(part):
                self._comm.Send(piece, dest=other)
        # A copy if there are other ranks, so that the whole array can be freed.
        return array[: offsets[1]].astype(dtype, copy=self.size > 1)

    @recorded
    def all_reduce(self, array: HostArray, reduction: Reduction) -> None:
        self._yield_core()
        self._comm.Allreduce(self._mpi.IN_PLACE, array, self._mpi.SUM if reduction == "sum" else self._mpi.MAX)

    @recorded
    def sum_on(self, rank: int, array: HostArray) -> None:
        for piece in messages(array.reshape(-1)):
            send, receive = (self._mpi.IN_PLACE, piece) if self.rank == rank else (piece, None)
            self._comm.Reduce(send, receive, self._mpi.SUM, rank)

    def part(self, ranks: Sequence[int]) -> Comm:
        return group(self, tuple(ranks))

    def _create(self, ranks: tuple[int, ...]) -> MpiComm:
        return MpiComm(self._comm.Create_group(self._comm.Get_group().Incl(ranks)))

    @recorded
    def all_gather_rows(self, matrix: HostArray, begin: NDArray[np.int64], end: NDArray[np.int64]) -> None:
        self._yield_core()
        # NumPy does not define the stride of a single row.
        row_bytes = matrix.strides[0] if len(matrix) > 1 else matrix.nbytes
        row = self._mpi.BYTE.Create_contiguous(row_bytes).Commit()
        try:
            self._comm.Allgatherv(self._mpi.IN_PLACE, [matrix, end - begin, begin, row])
        finally:
            row.Free()


@cache
def group(comm: MpiComm, ranks: tuple[int, ...]) -> Comm:
    """Return the communicator of some ranks; see `Comm.part`. MPI has a limited number, so each is created once."""
    return SingleComm() if len(ranks) == 1 else comm._create(ranks)


@cache
def world() -> Comm:
    """Return the group of all processes of this run; see `partitioner.host.ranks.load_mpi` for errors."""
    if not launched():
        return SingleComm()
    comm = MpiComm(ranks.load_mpi().COMM_WORLD)
    if comm.size > 1 and sys.excepthook is sys.__excepthook__:
        sys.excepthook = abort_all(comm)
    return comm


def abort_all(comm: Comm) -> ranks.Hook:
    """Return an excepthook that prints the rank's position in the computation and aborts all ranks."""
    return ranks.abort_all(comm, "amped", lambda: f"amped: rank {comm.rank} was {CURRENT.where()}\n" * (comm.size > 1))


def share(comm: Comm, array: NDArray[Element] | None) -> NDArray[Element]:
    """Return rank 0's matrix on every rank. On rank 0 the result may be `array` itself: do not modify it."""
    if comm.size == 1:
        assert array is not None
        return array
    shape, dtype = comm.bcast((array.shape, array.dtype) if comm.rank == 0 and array is not None else ((0, 0), None))
    whole = np.ascontiguousarray(array) if comm.rank == 0 and array is not None else np.empty(shape, dtype)
    comm.bcast_array(whole)
    return whole
