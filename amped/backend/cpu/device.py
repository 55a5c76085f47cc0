"""The host's cores as a device."""

from __future__ import annotations

import os
import time
from collections import defaultdict
from collections.abc import Iterator, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import contextmanager
from typing import Any

import numpy as np
import psutil
import threadpoolctl
from numpy.typing import NDArray

from ...mpi import Comm
from ..base import Array, Clock, Shard
from .mttkrp import KERNELS, Threads


class CpuBackend:
    """See `Backend`. Streaming here copies shards from a memory-mapped store while others are computed."""

    name = "cpu"
    xp = np
    kernels: Sequence[str] = KERNELS
    vector_bytes = 1
    runtime_bytes = 0
    host_runtime_bytes = 4 << 20
    dense_blocks = 2

    def __init__(self, comm: Comm, threads: int | None = None) -> None:
        self.threads = threads or fair_threads(comm)
        self.description = f"CPU, {self.threads} thread{'s' * (self.threads > 1)}"
        self._threads = Threads(self.threads)
        threadpoolctl.threadpool_limits(self.threads)  # BLAS beside our own threads would fight them for the cores

    def memory(self, local_ranks: int) -> int:
        """See `Backend`: an equal share of what is free on this node."""
        free: int = psutil.virtual_memory().available
        return free * 9 // 10 // local_ranks

    def peak_bytes(self) -> None:
        """See `Backend`: there is no memory but the host's."""

    def empty(self, shape: tuple[int, ...], dtype: Any) -> Array:
        """See `Backend`."""
        return np.empty(shape, dtype)

    def zeros(self, shape: tuple[int, ...], dtype: Any) -> Array:
        """See `Backend`."""
        return np.zeros(shape, dtype)

    def to_device(self, array: NDArray[Any]) -> Array:
        """See `Backend`."""
        return array

    def to_host(self, array: Array) -> NDArray[Any]:
        """See `Backend`."""
        return np.asarray(array)

    def source(self, host: NDArray[Any], dtype: Any) -> NDArray[Any]:
        """See `Backend`."""
        return np.ascontiguousarray(host, dtype)

    def column(self, host: NDArray[Any], dtype: Any) -> Array:
        """See `Backend`."""
        return np.ascontiguousarray(host, dtype)

    def slot(self, order: int, capacity: int, dtype: Any, clock: Clock) -> HostSlot:
        """See `Backend`."""
        return HostSlot(order, capacity, dtype, clock)

    def clock(self) -> HostClock:
        """See `Backend`."""
        return HostClock()

    def scratch_bytes(self, nnz: int, stride: int) -> int:
        """See `Backend`."""
        return self.threads * stride * 24 if nnz else 0

    def mttkrp(self, shard: Shard, factors: Sequence[Array], out: Array, row_begin: int, kernel: str) -> None:
        """See `Backend`."""
        if shard.nnz:
            self._threads.mttkrp(shard, factors, out, row_begin)

    def synchronize(self) -> None:
        """See `Backend`."""


class HostSlot:
    """See `Slot`. A thread of its own copies, so that copying and computing overlap as they do on a GPU."""

    def __init__(self, order: int, capacity: int, dtype: Any, clock: Clock) -> None:
        self._indices = [np.empty(capacity, np.int32) for _ in range(order)]
        self._values = np.empty(capacity, dtype)
        self._copier = ThreadPoolExecutor(1, "amped-copy")
        self._clock = clock
        self._filled: Future[Shard]

    def fill(self, indices: Sequence[NDArray[np.int32]], values: NDArray[Any], continues: bool, mode: int) -> None:
        """See `Slot`."""
        self._filled = self._copier.submit(self._copy, indices, values, continues, mode)

    def _copy(self, indices: Sequence[NDArray[np.int32]], values: NDArray[Any], continues: bool, mode: int) -> Shard:
        with self._clock.span("copy", mode):
            for source, target in zip(indices, self._indices, strict=True):
                np.copyto(target[: source.size], source)
            np.copyto(self._values[: values.size], values, casting="same_kind")
        return Shard(self._indices, self._values, values.size, continues)

    def shard(self) -> Shard:
        """See `Slot`."""
        return self._filled.result()

    def release(self) -> None:
        """See `Slot`. Work on the host is done when it returns, so there is nothing to note."""


class HostClock:
    """See `Clock`."""

    def __init__(self) -> None:
        self._seconds: dict[tuple[str, int], float] = defaultdict(float)

    @contextmanager
    def span(self, kind: str, mode: int) -> Iterator[None]:
        """See `Clock`."""
        start = time.perf_counter()
        try:
            yield
        finally:
            self._seconds[kind, mode] += time.perf_counter() - start

    def collect(self) -> dict[tuple[str, int], float]:
        """See `Clock`."""
        seconds, self._seconds = dict(self._seconds), defaultdict(float)
        return seconds


def fair_threads(comm: Comm) -> int:
    """Return how many threads this rank may run: its cores, shared with the node's ranks that have the same ones.

    Respects the affinity set by a launcher, a limit of the control group, and ``OMP_NUM_THREADS``.
    """
    cores = frozenset(os.sched_getaffinity(0))
    node = os.uname().nodename
    sharing = comm.allgather((node, cores)).count((node, cores))
    share = max(1, min(len(cores), _group_cores()) // sharing)
    wish = os.environ.get("OMP_NUM_THREADS", "").split(",")[0]
    return min(share, int(wish)) if wish.isdigit() and int(wish) else share


def _group_cores() -> int:
    """Return the whole cores that the control group grants, or a large number where it sets no limit."""
    try:
        with open("/sys/fs/cgroup/cpu.max") as file:
            quota, period = file.read().split()
        return max(1, int(quota) // int(period))
    except (OSError, ValueError):
        return 1 << 16
