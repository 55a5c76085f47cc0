"""The threads of a rank, and memory that suits them."""

from __future__ import annotations

import math
import weakref
from collections.abc import Callable
from queue import SimpleQueue
from threading import Thread
from typing import Any

import numpy as np
from numpy.typing import NDArray

from .vectors import LINE

Work = Callable[[int], None]
Fault = BaseException | None
Piece = tuple[Work, int, "SimpleQueue[Fault]"]


class Threads:
    """Threads that work side by side, for as long as this object lives; the calling thread is one of them.

    They wait at a queue that is written in C: the futures of a pool take longer to make than a small piece of work.
    """

    def __init__(self, count: int) -> None:
        self.count = count
        self._queue: SimpleQueue[Piece | None] = SimpleQueue()
        for t in range(1, count):
            Thread(target=_serve, args=(self._queue,), name=f"amped-mttkrp-{t}", daemon=True).start()
        weakref.finalize(self, _end, self._queue, count - 1)

    def each(self, count: int, work: Work) -> None:
        """Do ``work(0)`` to ``work(count - 1)``, the first of them in the calling thread; raise what one raises."""
        others = count - 1 if self.count > 1 else 0
        done: SimpleQueue[Fault] = SimpleQueue()
        for t in range(1, 1 + others):
            self._queue.put((work, t, done))
        try:
            for t in range(count - others):
                work(t)
        finally:  # no thread is left behind in memory that the caller may free
            faults = [done.get() for _ in range(others)]
        for fault in faults:
            if fault is not None:
                raise fault


def _serve(queue: SimpleQueue[Piece | None]) -> None:
    while (piece := queue.get()) is not None:
        work, t, done = piece
        fault: Fault = None
        try:
            work(t)
        except BaseException as error:
            fault = error
        del piece, work  # what it works on is not held until the next piece
        done.put(fault)
        del done, fault


def _end(queue: SimpleQueue[Any], threads: int) -> None:
    for _ in range(threads):
        queue.put(None)


def aligned(shape: tuple[int, ...], dtype: np.dtype[Any]) -> NDArray[Any]:
    """Return an array that begins with a cache line: rows of whole lines lie in as few as can be."""
    count = math.prod(shape) * dtype.itemsize
    memory = np.empty(count + LINE, np.uint8)
    start = -memory.ctypes.data % LINE
    return memory[start : start + count].view(dtype).reshape(shape)
