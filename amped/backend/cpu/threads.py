"""The threads of a rank, and memory that suits them."""

from __future__ import annotations

import math
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import numpy as np
from numpy.typing import NDArray

from .vectors import LINE


class Threads:
    """Threads that work side by side; the calling thread is one of them."""

    def __init__(self, count: int) -> None:
        self.count = count
        self._pool = ThreadPoolExecutor(count - 1, "amped-mttkrp") if count > 1 else None

    def each(self, count: int, work: Callable[[int], None]) -> None:
        """Do ``work(0)`` to ``work(count - 1)``, the first of them in the calling thread."""
        others = [self._pool.submit(work, t) for t in range(1, count)] if self._pool else []
        for t in range(1 if self._pool else count):
            work(t)
        for other in others:
            other.result()


def aligned(shape: tuple[int, ...], dtype: np.dtype[Any]) -> NDArray[Any]:
    """Return an array that begins with a cache line: rows of whole lines lie in as few as can be."""
    count = math.prod(shape) * dtype.itemsize
    memory = np.empty(count + LINE, np.uint8)
    start = -memory.ctypes.data % LINE
    return memory[start : start + count].view(dtype).reshape(shape)
