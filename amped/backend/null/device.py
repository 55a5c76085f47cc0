"""The host as a device that has a GPU's rules and writes down what it is asked for."""

from __future__ import annotations

from collections import deque
from collections.abc import Callable
from typing import Any

import numpy as np
from numpy.typing import NDArray

from ...parallel.mpi import Comm
from ..cpu.device import CpuDevice, HostClock
from ..device import Array


class NullDevice(CpuDevice):
    """See `Device`. Making a shard takes memory, scratch memory grows with nonzeros, work can be noted down."""

    name = folder = "null"
    queues = True

    def __init__(self, comm: Comm, threads: int | None = 1) -> None:
        super().__init__(comm, threads)
        self.used: list[tuple[str, int]] = []  # kernels that have computed, and how many nonzeros each time
        self.allocated: list[tuple[int, ...]] = []  # shapes of all arrays that were asked for

    def capture(self, queue: Callable[[], None], read: Array, clock: HostClock) -> NullReplay:
        return NullReplay(queue, read)

    def empty(self, shape: tuple[int, ...], dtype: Any) -> Array:
        self.allocated.append(shape)
        return super().empty(shape, dtype)


class NullReplay:
    """See `Replay`: a launch does all at once, however many are yet to be waited for."""

    def __init__(self, queue: Callable[[], None], read: Array) -> None:
        self._queue, self._read = queue, read
        self._reads = deque[NDArray[np.uint8]]()

    def launch(self) -> None:
        self._queue()
        self._reads.append(self._read.copy())

    def wait(self) -> NDArray[np.uint8]:
        return self._reads.popleft()
