"""Exchange among the ranks: all-gather of factor rows (AMPED, Algorithm 3), sums of rows, and small sums.

Host arrays go over MPI. Device arrays go over NCCL where each rank has a GPU of its own; where ranks share one, which
NCCL refuses, they are staged through the host.
"""

from __future__ import annotations

import os
from collections.abc import Callable
from functools import cache
from itertools import pairwise
from typing import Any, Protocol

import numpy as np
from numpy.typing import NDArray

from .backend import Backend
from .mpi import Comm, Reduction


class Exchange(Protocol):
    """Collectives on the arrays of a backend, in place.

    Attributes
    ----------
    name : str
        What carries the data, for reports.
    """

    name: str

    def gather_rows(self, matrix: Any, offsets: NDArray[np.int64]) -> None:
        """All-gather of unequal row blocks: rank ``r`` gives rows ``offsets[r]`` to ``offsets[r + 1]`` of `matrix`."""

    def reduce_rows(self, matrix: Any, offsets: NDArray[np.int64]) -> None:
        """Add up the ranks' matrices: rank ``r`` gets rows ``offsets[r]`` to ``offsets[r + 1]``, others are lost."""

    def reduce(self, array: Any, reduction: Reduction) -> None:
        """Combine the ranks' arrays elementwise, on all ranks."""


def connect(backend: Backend, comm: Comm) -> Exchange:
    """Return the collectives for arrays of `backend` among the ranks of `comm`."""
    if backend.name != "cuda":
        return HostExchange(comm)
    identities = comm.allgather((os.uname().nodename, backend.description))
    if comm.size == 1 or len(set(identities)) < comm.size:
        return StagedExchange(comm, backend.to_host)
    return _nccl(comm) or StagedExchange(comm, backend.to_host)


@cache
def _nccl(comm: Comm) -> Exchange | None:
    """Return the NCCL communicator of these ranks, made once in a process; None if NCCL is not installed."""
    try:
        from .backend.cuda.nccl import NcclExchange
    except (ImportError, AttributeError):  # CuPy without the NCCL wheel
        return None
    return NcclExchange(comm)


class HostExchange:
    """Collectives on host arrays: MPI's own, which run large all-gathers as a ring."""

    def __init__(self, comm: Comm) -> None:
        self._comm = comm
        self.name = "MPI" if comm.size > 1 else "none"

    def gather_rows(self, matrix: NDArray[Any], offsets: NDArray[np.int64]) -> None:
        """See `Exchange`."""
        self._comm.all_gather_rows(matrix, offsets)

    def reduce_rows(self, matrix: NDArray[Any], offsets: NDArray[np.int64]) -> None:
        """See `Exchange`."""
        for owner, (begin, end) in enumerate(pairwise(offsets)):
            self._comm.sum_on(owner, matrix[begin:end])

    def reduce(self, array: NDArray[Any], reduction: Reduction) -> None:
        """See `Exchange`."""
        self._comm.all_reduce(array, reduction)


class StagedExchange:
    """Collectives on device arrays through host memory: for ranks that share a GPU, or a world of one."""

    def __init__(self, comm: Comm, to_host: Callable[[Any], NDArray[Any]]) -> None:
        self._comm = comm
        self._to_host = to_host
        self.name = "MPI, staged through the host" if comm.size > 1 else "none"

    def gather_rows(self, matrix: Any, offsets: NDArray[np.int64]) -> None:
        """See `Exchange`."""
        if self._comm.size > 1:
            host = np.empty(matrix.shape, matrix.dtype)
            mine = slice(int(offsets[self._comm.rank]), int(offsets[self._comm.rank + 1]))
            host[mine] = self._to_host(matrix[mine])
            self._comm.all_gather_rows(host, offsets)
            matrix.set(host)

    def reduce_rows(self, matrix: Any, offsets: NDArray[np.int64]) -> None:
        """See `Exchange`. One owner's rows at a time, so that no whole matrix is in host memory."""
        for owner, (begin, end) in enumerate(pairwise(offsets)):
            if self._comm.size > 1 and end > begin:
                host = np.ascontiguousarray(self._to_host(matrix[begin:end]))
                self._comm.sum_on(owner, host)
                if owner == self._comm.rank:
                    matrix[begin:end].set(host)

    def reduce(self, array: Any, reduction: Reduction) -> None:
        """See `Exchange`."""
        if self._comm.size > 1:
            host = np.ascontiguousarray(self._to_host(array))
            self._comm.all_reduce(host, reduction)
            array.set(host)
