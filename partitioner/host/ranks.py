"""The group of MPI ranks that partition a tensor, and their collective operations.

MPI is imported only under a launcher: a single process needs no MPI library.
"""

from __future__ import annotations

import math
import os
import sys
import time
import traceback
from collections.abc import Callable, Mapping
from functools import cache
from types import TracebackType
from typing import Any, Protocol, TypeVar

import numpy as np

from ..array_types import HostArray
from ..errors import EXIT_FAILURE, InputError, UnreadError
from .signals import LAST_WORDS_SECONDS, LAUNCHER_RANKS, described, exit_code, number_of, raising

T = TypeVar("T")
Hook = Callable[[type[BaseException], BaseException, TracebackType | None], None]

LAUNCHER_SIZES = ("OMPI_COMM_WORLD_SIZE", "PMI_SIZE", "MV2_COMM_WORLD_SIZE", "PALS_SIZE")
LAUNCHED_SIZES = ("OMPI_COMM_WORLD_SIZE", "PMI_SIZE", "SLURM_STEP_NUM_TASKS")
ENDING_SECONDS = 5.0  # timeout for all ranks to report the same error
STOPPING_SECONDS = 1.0  # the same after a signal, as launchers soon kill the ranks
LONGEST_SLEEP = 0.005  # seconds between polls of a barrier
MESSAGE = 1 << 30  # maximum bytes per message; many MPI libraries have 32-bit counts


class Ranks(Protocol):
    """Group operations needed for partitioning, with this process's rank and the number of ranks."""

    rank: int
    size: int
    host: str  # host name if ranks run on several hosts, otherwise empty

    def allgather(self, item: T) -> list[T]:
        """Return every rank's `item`, in rank order. Collective."""

    def swap(self, array: HostArray, to: int, into: HostArray, source: int) -> None:
        """Send a 1-d array of any size to rank `to` and receive another from rank `source`. Collective."""

    def all_end(self, seconds: float) -> bool:
        """Return whether all ranks make this call within `seconds`, so that no `abort` is needed."""

    def abort(self, code: int) -> None:
        """End the processes of all ranks with this exit code."""


class SingleRank:
    """A single process without MPI."""

    rank = 0
    size = 1
    host = ""

    def allgather(self, item: T) -> list[T]:
        """See `Ranks`."""
        return [item]

    def swap(self, array: HostArray, to: int, into: HostArray, source: int) -> None:
        """See `Ranks`."""
        np.copyto(into, array)

    def all_end(self, seconds: float) -> bool:
        """See `Ranks`."""
        return True

    def abort(self, code: int) -> None:
        """See `Ranks`."""
        sys.stderr.flush()
        os._exit(code)


class MpiRanks:
    """The ranks of an mpi4py communicator."""

    def __init__(self, comm: Any) -> None:
        from mpi4py import MPI

        self._mpi = MPI
        self._comm = comm
        self._ending = comm.Dup()  # `comm` may still be in use by a collective call of other ranks
        self.rank: int = comm.Get_rank()
        self.size: int = comm.Get_size()
        hosts = comm.allgather(os.uname().nodename)
        self.host: str = hosts[self.rank] if len(set(hosts)) > 1 else ""

    def allgather(self, item: T) -> list[T]:
        """See `Ranks`."""
        self.wait_for_all()
        result: list[T] = self._comm.allgather(item)
        return result

    def wait_for_all(self) -> None:
        """Wait for the other ranks. Signals can interrupt the wait unless they are only recorded. Collective."""
        if raising():
            self.sleep_until_all()

    def sleep_until_all(self) -> None:
        """Wait for the other ranks, mostly asleep. Collective."""
        request, seconds = self._comm.Ibarrier(), 0.0
        while not request.Test():
            time.sleep(seconds)
            seconds = min(LONGEST_SLEEP, seconds + 1e-5)

    def swap(self, array: HostArray, to: int, into: HostArray, source: int) -> None:
        """See `Ranks`."""
        if to == self.rank:
            np.copyto(into, array)
            return
        requests = [self._comm.Irecv(piece, source) for piece in messages(into)]
        requests += [self._comm.Isend(piece, to) for piece in messages(np.ascontiguousarray(array))]
        self._mpi.Request.Waitall(requests)

    def all_end(self, seconds: float) -> bool:
        """See `Ranks`."""
        request = self._ending.Ibarrier()
        if seconds == math.inf:
            request.Wait()
            return True
        deadline = time.monotonic() + seconds
        while not (arrived := bool(request.Test())) and time.monotonic() < deadline:
            time.sleep(0.01)
        return arrived

    def abort(self, code: int) -> None:
        """See `Ranks`."""
        sys.stderr.flush()
        self._comm.Abort(code)


def messages(array: HostArray) -> list[HostArray]:
    """Split a 1-d array into pieces of at most `MESSAGE` bytes."""
    step = MESSAGE // array.itemsize
    return [array[k : k + step] for k in range(0, array.size, step)]


def launched() -> bool:
    """Return whether an MPI launcher started this process."""
    env = os.environ
    if "mpi4py.MPI" in sys.modules or any(name in env for name in LAUNCHER_SIZES + LAUNCHER_RANKS):
        return True
    return "SLURM_STEP_NUM_TASKS" in env and int(env["SLURM_STEP_NUM_TASKS"]) > 1


def load_mpi() -> Any:
    """Return ``mpi4py.MPI``; raise `InputError` if the MPI library is missing or does not match the launcher."""
    try:
        from mpi4py import MPI
    except (ImportError, RuntimeError) as error:
        raise InputError(
            f"started by an MPI launcher, but mpi4py cannot load MPI ({str(error).splitlines()[0]}): install a system "
            "MPI, or amped[mpi] and use its mpirun"
        ) from None
    started = max(int(os.environ.get(name, "1")) for name in LAUNCHED_SIZES)
    if started > MPI.COMM_WORLD.Get_size() == 1:
        raise InputError(
            f"{started} processes were started, but MPI sees one: launcher and MPI library do not match "
            "(under Slurm, see `srun --mpi=list`)"
        )
    return MPI


@cache
def world() -> Ranks:
    """Return the group of all processes of this launch. See `load_mpi` for errors."""
    return MpiRanks(load_mpi().COMM_WORLD) if launched() else SingleRank()


def refuse(ranks: Ranks, program: str, error: InputError | OSError) -> int:
    """Print an error once and end all ranks, even if only this rank has the error (its disk is full, say).

    Return the exit code. An `OSError` without a file name is a bug and is raised again.
    """
    if isinstance(error, OSError):  # inaccessible path, or name too long
        if error.filename is None:
            raise error
        error = InputError(error.strerror or str(error), path=error.filename)
    if ranks.rank == 0 and not isinstance(error, UnreadError):
        print(f"{program}: error: {error}", file=sys.stderr, flush=True)
    if not ranks.all_end(ENDING_SECONDS):
        if ranks.rank:
            print(f"{program}: error: rank {ranks.rank}: {error}", file=sys.stderr, flush=True)
        ranks.abort(error.exit_code)
    return error.exit_code


def end_stopped(ranks: Ranks, program: str, error: KeyboardInterrupt, saved: str) -> int:
    """Print once that a signal ended the run, and `saved`, what was saved. End all ranks; return the exit code."""
    number = number_of(error)
    if ranks.rank == 0:
        print(f"{program}: {described(number)}; {saved}", file=sys.stderr, flush=True)
    if ranks.size > 1:
        time.sleep(LAST_WORDS_SECONDS)
    if not ranks.all_end(STOPPING_SECONDS):
        if ranks.rank:
            print(f"{program}: rank {ranks.rank} was {described(number)}; {saved}", file=sys.stderr, flush=True)
        ranks.abort(exit_code(number))
    return exit_code(number)


def abort_all(ranks: Ranks, program: str, where: Callable[[], str] = str) -> Hook:
    """Return an excepthook that aborts all ranks when this one fails; otherwise they would wait for it forever.

    `where` may return lines that describe what this rank was doing.
    """

    def hook(kind: type[BaseException], error: BaseException, trace: TracebackType | None) -> None:
        if issubclass(kind, (ArithmeticError, MemoryError, KeyboardInterrupt)):
            text = f"{kind.__name__}: {error}\n" if str(error) else f"{kind.__name__}\n"
        else:
            text = "".join(traceback.format_exception(kind, error, trace))
        sys.stderr.write(f"{program}: rank {ranks.rank} failed: {text}{where()}")
        sys.stderr.flush()
        code = exit_code(number_of(error)) if isinstance(error, KeyboardInterrupt) else EXIT_FAILURE
        ranks.abort(code)
        os._exit(code)

    return hook


def together(ranks: Ranks, action: Callable[[], T]) -> T:
    """Run `action` on every rank. If it raises `InputError` on any rank, raise that error on all. Collective.

    If it raises any other error on a rank, the other ranks raise an `InputError` that names it. Without this, the other
    ranks would wait forever for the failed one.
    """
    fault: InputError | None = None
    failure: Exception | None = None
    try:
        result = action()
    except InputError as error:
        fault = error
    except Exception as error:
        failure, fault = error, InputError(f"{type(error).__name__} on rank {ranks.rank}: {error}")
    faults = ranks.allgather(fault)
    if failure is not None:
        raise failure
    for each in faults:
        if each is not None:
            raise each
    return result


def agree(ranks: Ranks, call: str, arguments: Callable[[], Mapping[str, str | None]]) -> None:
    """Raise on every rank unless all ranks make the same `call` with the same arguments. Collective.

    Parameters
    ----------
    ranks : Ranks
        The ranks.
    call : str
        Name of the called function.
    arguments : callable
        Checks this rank's arguments and returns them as text by name; None for an argument that is not compared with
        rank 0's.

    Raises
    ------
    InputError, TypeError
        If the calls differ, or if `arguments` raises such an error on any rank. If it raises any other error on a rank,
        the other ranks raise an `InputError` that names it.
    """
    fault: InputError | TypeError | None = None
    failure: Exception | None = None
    values: Mapping[str, str | None] = {}
    try:
        values = arguments()
    except (InputError, TypeError) as error:
        fault = error
    except Exception as error:  # otherwise the other ranks would wait for this one
        failure, fault = error, InputError(f"{call}: {type(error).__name__} on rank {ranks.rank}: {error}")
    calls = ranks.allgather((call, values, fault))
    if failure is not None:
        raise failure
    for _, _, each in calls:
        if each is not None:
            raise each
    call, values, _ = calls[0]
    for rank, (other, theirs, _) in enumerate(calls):
        if other != call:
            raise InputError(f"rank 0 calls {call}, rank {rank} {other}: call the same function on all ranks")
        for name, mine in values.items():
            if theirs[name] not in (None, mine):
                difference = f"{name} is {mine} on rank 0 and {theirs[name]} on rank {rank}"
                raise InputError(f"{call}: {difference}; pass the same value on all ranks")


def on_root(ranks: Ranks, action: Callable[[], T]) -> T | None:
    """Run `action` on rank 0 only, with errors as in `together`. The other ranks return None. Collective.

    If ranks run on several hosts, an error about a path names the host.
    """

    def with_host() -> T:
        try:
            return action()
        except InputError as error:
            if error.path is None or not ranks.host:
                raise
            cause = f"{error.cause} (on {ranks.host}, rank 0's host)"
            raise type(error)(cause, path=error.path, line=error.line) from None

    return together(ranks, lambda: with_host() if ranks.rank == 0 else None)
