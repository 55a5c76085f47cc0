"""The host as a device that has a GPU's rules and writes down what it is asked for."""

from __future__ import annotations

from typing import Any

from ...parallel.mpi import Comm
from ..base import Array
from ..cpu.device import CpuDevice


class NullDevice(CpuDevice):
    """See `Device`. Making a shard takes memory, scratch memory grows with nonzeros, and there are several kernels."""

    name = "null"

    def __init__(self, comm: Comm, threads: int | None = 1) -> None:
        super().__init__(comm, threads)
        self.used: list[tuple[str, int]] = []  # kernels that have computed, and how many nonzeros each time
        self.allocated: list[tuple[int, ...]] = []  # shapes of all arrays that were asked for

    def empty(self, shape: tuple[int, ...], dtype: Any) -> Array:
        self.allocated.append(shape)
        return super().empty(shape, dtype)
