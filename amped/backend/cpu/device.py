"""The CPU as a device."""

from __future__ import annotations

import platform
import time
from collections import defaultdict
from collections.abc import Callable, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import AbstractContextManager, nullcontext
from functools import cached_property
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import DTypeLike, NDArray

from partitioner.array_types import FloatDType, HostArray
from partitioner.host.memory import available_memory
from partitioner.host.threads import fair_threads, parallel_map, usable_cores
from partitioner.tensors.npy_file import PART, PIECE, READERS, RUN

from ...parallel.mpi import Comm
from ..blas import limit_blas
from ..device import Array, Movable, Replay, Write
from .caches import LANE, LINE, aligned

if TYPE_CHECKING:  # it loads Numba
    from .threads import Threads


class CpuDevice:
    """See `Device`. Streaming copies shards from memory or a store while others are computed."""

    name = folder = "cpu"
    xp = np
    on_host = True
    queues = False
    steady = False
    host_bytes = 5 << 20  # compiled code of row solvers, and modules that a run imports
    code_bytes = 7 << 20
    sample = 1 << 22
    together = 32
    least_speed = 1e8

    def __init__(self, comm: Comm, threads: int | None = None) -> None:
        count = threads or fair_threads(comm)
        self.description = f"CPU, {count} thread{'s' * (count > 1)}"
        self.cores, self._spare = count, not threads or threads * comm.size <= usable_cores()
        limit_blas(1)  # see `kernels.solve`

    @cached_property
    def model(self) -> str:
        """See `Device`. Python starts a process to find the processor."""
        return f"{self.description} of {platform.processor() or platform.machine()}"

    @cached_property
    def threads(self) -> Threads:
        """The threads of compiled code, which start when it is first needed."""
        from .threads import Threads

        return Threads(self.cores, self._spare)

    def stride(self, rank: int, itemsize: int) -> int:
        """See `Device`: one lane, or whole cache lines."""
        unit = (LANE if rank * itemsize <= LANE else LINE) // itemsize
        return -(-rank // unit) * unit

    def reading_bytes(self, size: int, copies: int) -> int:
        """See `Device`: data that is not copied is read in place; of a part, a thread copies one piece at a time."""
        parts = 1 + 2 * size // (PART * RUN)  # parts end at a boundary, so they may be half as large
        return copies * min(size, min(self._readers, parts) * PIECE)

    @property
    def _readers(self) -> int:
        return max(READERS, self.cores)

    def memory(self, local_ranks: int) -> int:
        """See `Device`: an equal share of the node's free memory."""
        return available_memory() * 9 // 10 // local_ranks

    def rest(self) -> None:
        """See `Device`: no memory is cached."""

    def trim(self) -> None:
        """See `Device`: no memory is cached."""

    def peak_bytes(self) -> None:
        """See `Device`: there is only host memory."""

    def empty(self, shape: tuple[int, ...], dtype: DTypeLike) -> Array:
        return aligned(shape, np.dtype(dtype))

    def zeros(self, shape: tuple[int, ...], dtype: DTypeLike) -> Array:
        array = self.empty(shape, dtype)
        array.fill(0)
        return array

    def to_device(self, array: HostArray) -> Array:
        return array

    def fill(self, targets: Sequence[Array], sources: Sequence[HostArray]) -> None:
        for target, source in zip(targets, sources, strict=True):
            np.copyto(target, source, casting="same_kind")

    def prepare(self, order: int, dtype: FloatDType) -> None:
        """See `Device`: compiled code is cached on disk."""

    def set_rows(self, target: Array, source: HostArray) -> None:
        target[...] = source

    def begin_fill(self, runs: Sequence[Sequence[tuple[Array, Write]]], whole: int) -> Callable[[], None]:
        def fill(run: Sequence[tuple[Array, Write]]) -> None:
            for target, write in run:
                write(target)

        parallel_map(fill, runs, min(self._readers, max(1, len(runs))))
        return lambda: None

    def lock(self, array: HostArray) -> None:
        """See `Device`: not needed on the host."""

    def to_host(self, array: Array) -> NDArray[Any]:
        return np.asarray(array)

    def side_stream(self) -> AbstractContextManager[None]:
        """See `Device`: work is done when it is queued."""
        return nullcontext()

    def wait_side(self) -> None:
        """See `Device`: work is done when it is queued."""

    def capture(self, queue: Callable[[], None], read: Array, clock: HostClock) -> Replay | None:
        """See `Device`: work is done when it is queued, so it cannot be captured."""
        return None

    def slot(self, nbytes: int, clock: HostClock) -> HostSlot:
        return HostSlot(self.empty((nbytes,), np.uint8), clock)

    def clock(self) -> HostClock:
        return HostClock()

    def synchronize(self) -> None:
        """See `Device`: work is done when the call returns."""

    def collectives(self, comm: Comm) -> None:
        """See `Device`: host arrays are sent by MPI."""


class HostSlot:
    """See `Slot`. A separate thread copies, so that copying and computing overlap as on a GPU."""

    def __init__(self, memory: NDArray[np.uint8], clock: HostClock) -> None:
        self._memory, self._clock = memory, clock
        self._copier = ThreadPoolExecutor(1, "amped-copy")
        self._filled: Future[Any]

    def fill(self, shard: Movable, mode: int) -> None:
        self._filled = self._copier.submit(self._copy, shard, mode)

    def _copy(self, shard: Movable, mode: int) -> Any:
        with self._clock.span("copy", mode):
            return shard.copied(self._memory)

    def shard(self) -> Any:
        return self._filled.result()

    def release(self) -> None:
        """See `Slot`. Work on the host is done when the call returns."""


class _Span(AbstractContextManager[None]):
    """Adds the time of a block to a counter; takes less time than a generator with `contextmanager`."""

    __slots__ = "_key", "_seconds", "_start"

    def __init__(self, seconds: dict[tuple[str, int], float], key: tuple[str, int]) -> None:
        self._seconds, self._key = seconds, key

    def __enter__(self) -> None:
        self._start = time.perf_counter()

    def __exit__(self, *_: object) -> None:
        self._seconds[self._key] += time.perf_counter() - self._start


class HostClock:
    """See `Clock`."""

    def __init__(self) -> None:
        self._seconds: dict[tuple[str, int], float] = defaultdict(float)

    def span(self, kind: str, mode: int) -> AbstractContextManager[None]:
        return _Span(self._seconds, (kind, mode))

    def collect(self) -> dict[tuple[str, int], float]:
        seconds, self._seconds = dict(self._seconds), defaultdict(float)
        return seconds
