"""A device for tests: the host with a GPU's rules, which records kernels and allocations."""

from __future__ import annotations

from collections import deque
from collections.abc import Callable

import numpy as np
from numpy.typing import DTypeLike, NDArray

from ...parallel.mpi import Comm
from ..cpu.device import CpuDevice, HostClock
from ..device import Array


class NullDevice(CpuDevice):
    """See `Device`. Building a shard needs memory, scratch memory grows with nonzeros, work can be captured."""

    name = folder = "null"
    queues = True

    def __init__(self, comm: Comm, threads: int | None = 1) -> None:
        super().__init__(comm, threads)
        self.used: list[tuple[str, int]] = []  # each computation's kernel and number of nonzeros
        self.allocated: list[tuple[int, ...]] = []  # shapes of all allocated arrays

    def capture(self, queue: Callable[[], None], read: Array, clock: HostClock) -> NullReplay:
        return NullReplay(queue, read)

    def empty(self, shape: tuple[int, ...], dtype: DTypeLike) -> Array:
        self.allocated.append(shape)
        return super().empty(shape, dtype)


class NullReplay:
    """See `Replay`; `launch` computes synchronously."""

    def __init__(self, queue: Callable[[], None], read: Array) -> None:
        self._queue, self._read = queue, read
        self._reads = deque[NDArray[np.uint8]]()

    def launch(self) -> None:
        self._queue()
        self._reads.append(self._read.copy())

    def wait(self) -> NDArray[np.uint8]:
        return self._reads.popleft()
