"""The ranks of a run: MPI where a launcher started several processes, otherwise a world of one.

MPI is imported only under a launcher, so that a single process needs no MPI library. Device pointers never
come here: MPI carries host data, NCCL device data.
"""

from __future__ import annotations

import os
import sys
import time
import traceback
from collections.abc import Callable
from functools import cache
from types import TracebackType
from typing import Any, Literal, Protocol, TypeVar

import numpy as np
from numpy.typing import NDArray

from .errors import EXIT_FAILURE, InputError
from .recorder import HERE, recorded

T = TypeVar("T")
Reduction = Literal["sum", "max"]

LAUNCHER_SIZES = ("OMPI_COMM_WORLD_SIZE", "PMI_SIZE", "MV2_COMM_WORLD_SIZE", "PALS_SIZE")
LAUNCHED_SIZES = ("OMPI_COMM_WORLD_SIZE", "PMI_SIZE", "SLURM_STEP_NUM_TASKS")
LAUNCHER_RANKS = ("PMIX_RANK", "PMI_RANK", "PALS_RANKID")
MESSAGE = 1 << 30  # bytes; MPI counts are 32-bit in many libraries


class Comm(Protocol):
    """What amped asks of a group of ranks.

    Attributes
    ----------
    rank, size : int
        This process among all.
    local_rank, local_size : int
        This process among those of its node.
    """

    rank: int
    size: int
    local_rank: int
    local_size: int

    def __hash__(self) -> int:
        """Make it a key: there is one for each group of ranks."""

    def bcast(self, item: T) -> T:
        """Return rank 0's `item` on every rank."""

    def allgather(self, item: T) -> list[T]:
        """Return every rank's `item`, by rank."""

    def scatter(self, array: NDArray[Any] | None, offsets: NDArray[np.int64], dtype: np.dtype[Any]) -> NDArray[Any]:
        """Return this rank's slice, ``offsets[rank]`` to ``offsets[rank + 1]``, of rank 0's 1-d `array`."""

    def all_reduce(self, array: NDArray[Any], reduction: Reduction) -> None:
        """Combine the ranks' arrays elementwise, in place."""

    def sum_on(self, rank: int, array: NDArray[Any]) -> None:
        """Add up the ranks' arrays in place of the one on `rank`; the others stay as they are."""

    def all_gather_rows(self, matrix: NDArray[Any], begin: NDArray[np.int64], end: NDArray[np.int64]) -> None:
        """Give all ranks rows ``begin[r]`` to ``end[r]`` of rank ``r``'s `matrix`, in place."""

    def all_end(self, seconds: float) -> bool:
        """Tell whether all ranks came here within so many seconds, so that they can end by themselves."""

    def abort(self, code: int) -> None:
        """End the processes of all ranks with this exit code."""


class SingleComm:
    """A world of one process."""

    rank = local_rank = 0
    size = local_size = 1

    def bcast(self, item: T) -> T:
        """See `Comm`."""
        return item

    def allgather(self, item: T) -> list[T]:
        """See `Comm`."""
        return [item]

    def scatter(self, array: NDArray[Any] | None, offsets: NDArray[np.int64], dtype: np.dtype[Any]) -> NDArray[Any]:
        """See `Comm`."""
        assert array is not None
        return array.astype(dtype, copy=False)

    def all_reduce(self, array: NDArray[Any], reduction: Reduction) -> None:
        """See `Comm`."""

    def sum_on(self, rank: int, array: NDArray[Any]) -> None:
        """See `Comm`."""

    def all_gather_rows(self, matrix: NDArray[Any], begin: NDArray[np.int64], end: NDArray[np.int64]) -> None:
        """See `Comm`."""

    def all_end(self, seconds: float) -> bool:
        """See `Comm`."""
        return True

    def abort(self, code: int) -> None:
        """See `Comm`."""
        sys.stderr.flush()
        os._exit(code)


class MpiComm:
    """A communicator of mpi4py."""

    def __init__(self, comm: Any) -> None:
        from mpi4py import MPI

        self._mpi = MPI
        self._comm = comm
        self._ending = comm.Dup()  # the others may be waiting for this rank on the first
        self.rank: int = comm.Get_rank()
        self.size: int = comm.Get_size()
        node = comm.Split_type(MPI.COMM_TYPE_SHARED)
        self.local_rank: int = node.Get_rank()
        self.local_size: int = node.Get_size()
        node.Free()

    @recorded
    def bcast(self, item: T) -> T:
        """See `Comm`."""
        result: T = self._comm.bcast(item)
        return result

    @recorded
    def allgather(self, item: T) -> list[T]:
        """See `Comm`."""
        result: list[T] = self._comm.allgather(item)
        return result

    @recorded
    def scatter(self, array: NDArray[Any] | None, offsets: NDArray[np.int64], dtype: np.dtype[Any]) -> NDArray[Any]:
        """See `Comm`."""
        if self.rank:
            mine = np.empty(int(offsets[self.rank + 1] - offsets[self.rank]), dtype)
            for piece in _messages(mine):
                self._comm.Recv(piece)
            return mine
        assert array is not None
        for other in range(1, self.size):
            theirs = np.ascontiguousarray(array[offsets[other] : offsets[other + 1]], dtype)
            for piece in _messages(theirs):
                self._comm.Send(piece, dest=other)
        # A copy if there are other ranks, so that their share does not stay in memory.
        return array[: offsets[1]].astype(dtype, copy=self.size > 1)

    @recorded
    def all_reduce(self, array: NDArray[Any], reduction: Reduction) -> None:
        """See `Comm`."""
        self._comm.Allreduce(self._mpi.IN_PLACE, array, self._mpi.SUM if reduction == "sum" else self._mpi.MAX)

    @recorded
    def sum_on(self, rank: int, array: NDArray[Any]) -> None:
        """See `Comm`."""
        for piece in _messages(array.reshape(-1)):
            given, taken = (self._mpi.IN_PLACE, piece) if self.rank == rank else (piece, None)
            self._comm.Reduce(given, taken, self._mpi.SUM, rank)

    @recorded
    def all_gather_rows(self, matrix: NDArray[Any], begin: NDArray[np.int64], end: NDArray[np.int64]) -> None:
        """See `Comm`."""
        row = self._mpi.BYTE.Create_contiguous(matrix.strides[0]).Commit()
        try:
            self._comm.Allgatherv(self._mpi.IN_PLACE, [matrix, end - begin, begin, row])
        finally:
            row.Free()

    def all_end(self, seconds: float) -> bool:
        """See `Comm`."""
        request = self._ending.Ibarrier()
        deadline = time.monotonic() + seconds
        while not (here := bool(request.Test())) and time.monotonic() < deadline:
            time.sleep(0.01)
        return here

    def abort(self, code: int) -> None:
        """See `Comm`."""
        sys.stderr.flush()
        self._comm.Abort(code)


def _messages(array: NDArray[Any]) -> list[NDArray[Any]]:
    step = MESSAGE // array.itemsize
    return [array[k : k + step] for k in range(0, array.size, step)]


def launched() -> bool:
    """Tell whether an MPI launcher started this process."""
    env = os.environ
    if "mpi4py.MPI" in sys.modules or any(name in env for name in LAUNCHER_SIZES + LAUNCHER_RANKS):
        return True
    return "SLURM_STEP_NUM_TASKS" in env and int(env["SLURM_STEP_NUM_TASKS"]) > 1


@cache
def world() -> Comm:
    """Return the group of all processes of this run.

    Raises
    ------
    InputError
        If a launcher started several processes but mpi4py finds no MPI library.
    """
    if not launched():
        return SingleComm()
    try:
        from mpi4py import MPI
    except (ImportError, RuntimeError) as error:
        raise InputError(
            f"started by an MPI launcher, but mpi4py cannot load MPI ({str(error).splitlines()[0]}): install a system "
            "MPI, or amped[mpi] and use its mpirun"
        ) from None
    comm = MpiComm(MPI.COMM_WORLD)
    started = max(int(os.environ.get(name, "1")) for name in LAUNCHED_SIZES)
    if started > comm.size == 1:
        raise InputError(
            f"{started} processes were started, but MPI sees one: launcher and MPI library do not fit "
            "(under Slurm, see `srun --mpi=list`)"
        )
    if comm.size > 1 and sys.excepthook is sys.__excepthook__:
        sys.excepthook = abort_all(comm)
    return comm


def abort_all(comm: Comm) -> Callable[[type[BaseException], BaseException, TracebackType | None], None]:
    """Return a hook that ends all ranks when this one fails: the others would wait for it for ever."""

    def hook(kind: type[BaseException], error: BaseException, trace: TracebackType | None) -> None:
        if issubclass(kind, (ArithmeticError, MemoryError, KeyboardInterrupt)):
            text = f"{kind.__name__}: {error}\n" if str(error) else f"{kind.__name__}\n"
        else:
            text = "".join(traceback.format_exception(kind, error, trace))
        sys.stderr.write(f"amped: rank {comm.rank} failed: {text}")
        if comm.size > 1:
            sys.stderr.write(f"amped: rank {comm.rank} was {HERE.where()}\n")
        sys.stderr.flush()
        comm.abort(EXIT_FAILURE)
        os._exit(EXIT_FAILURE)

    return hook


def share(comm: Comm, array: NDArray[Any] | None) -> NDArray[Any]:
    """Return rank 0's matrix on every rank, of any size."""
    if comm.size == 1:
        assert array is not None
        return array
    shape, dtype = comm.bcast((array.shape, array.dtype) if comm.rank == 0 and array is not None else ((0, 0), None))
    whole = np.ascontiguousarray(array) if comm.rank == 0 and array is not None else np.empty(shape, dtype)
    offsets = np.full(comm.size + 1, shape[0], np.int64)
    offsets[0] = 0
    comm.all_gather_rows(whole, offsets[:-1], offsets[1:])
    return whole


def together(comm: Comm, action: Callable[[], T]) -> T:
    """Run `action` on every rank; if the input is at fault on any, raise the same `InputError` on all.

    Without this the ranks that found nothing wrong would wait for ever for the one that did.
    """
    fault: InputError | None = None
    try:
        result = action()
    except InputError as error:
        fault = error
    for found in comm.allgather(fault):
        if found is not None:
            raise found
    return result


def on_root(comm: Comm, action: Callable[[], T]) -> T | None:
    """Run `action` on rank 0 alone, under the promise of `together`; the other ranks get None."""
    return together(comm, lambda: action() if comm.rank == 0 else None)
