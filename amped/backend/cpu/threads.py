"""The threads of a rank, and memory that suits them."""

from __future__ import annotations

import math
import threading
import weakref
from collections.abc import Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

from partitioner.threads import usable_cores

from .team import ASLEEP, SPINS, WORDS, dismiss, serve
from .vectors import LINE

SPIN = 4000  # pauses, of 10 to 50 ns: longer than what a decomposition does between two MTTKRPs of a small tensor


class Threads:
    """Threads that work side by side, for as long as this object lives; the calling thread is one of them.

    Attributes
    ----------
    count : int
    team : array
        What a compiled function needs to share itself out among them; see `amped.backend.cpu.team`.
    """

    def __init__(self, count: int, spare: bool = True) -> None:
        """Start `count` - 1 threads; they spin for a while where cores are to `spare`, one for each thread."""
        self.count = count
        self.team = aligned((ASLEEP + WORDS * count,), np.dtype(np.int64))
        self.team.fill(0)
        self.team[SPINS] = SPIN if spare and count <= usable_cores() else 0
        others = [
            threading.Thread(target=serve, args=(self.team, k), name=f"amped-mttkrp-{k}", daemon=True)
            for k in range(1, count)
        ]
        for thread in others:
            thread.start()
        weakref.finalize(self, _end, self.team, others)  # at exit too: a thread must not come back to an ended Python


def _end(team: NDArray[np.int64], threads: Sequence[threading.Thread]) -> None:
    dismiss(team, len(threads) + 1)
    for thread in threads:
        if thread is not threading.current_thread():
            thread.join()


def check(faults: int) -> None:
    """Raise an error if threads failed in a compiled function."""
    if faults:
        raise RuntimeError(f"{faults} threads failed in a kernel")


def aligned(shape: tuple[int, ...], dtype: np.dtype[Any]) -> NDArray[Any]:
    """Return an array that begins with a cache line: rows of whole lines lie in as few as can be."""
    count = math.prod(shape) * dtype.itemsize
    memory = np.empty(count + LINE, np.uint8)
    start = -memory.ctypes.data % LINE
    return memory[start : start + count].view(dtype).reshape(shape)
