"""The threads of a rank, and memory that suits them."""

from __future__ import annotations

import _thread
import atexit
import math
import threading
import weakref
from collections.abc import Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

from .simd.thread_team import ASLEEP, SPINS, WORDS, dismiss, serve
from .simd.vectors import LINE

SPIN = 4000  # pauses, of 10 to 50 ns: longer than what a decomposition does between two MTTKRPs of a small tensor


_living: dict[int, tuple[NDArray[np.int64], Sequence[threading.Thread]]] = {}
"""The teams that have threads, by the addresses of their arrays."""


class Threads:
    """Threads that work side by side, for as long as this object lives; the calling thread is one of them.

    Attributes
    ----------
    count : int
    team : array
        What a compiled function needs to share itself out among them; see `amped.backend.cpu.simd.thread_team`.
    """

    def __init__(self, count: int, spare: bool = True) -> None:
        """Start `count` - 1 threads; they spin for a while where cores are to `spare`, one for each thread."""
        self.count = count
        self.team = aligned((ASLEEP + WORDS * count,), np.dtype(np.int64))
        self.team.fill(0)
        self.team[SPINS] = SPIN if spare else 0
        others = [
            threading.Thread(target=serve, args=(self.team, k), name=f"amped-mttkrp-{k}", daemon=True)
            for k in range(1, count)
        ]
        for thread in others:
            thread.start()
        if others:
            _living[id(self.team)] = self.team, others
            weakref.finalize(self, _let_go, id(self.team)).atexit = False


def _let_go(key: int) -> None:
    """Have a team's threads end, by another thread.

    The garbage collector may call this in the middle of anything, such as compiling: this thread may hold locks that
    the team's threads wait for, and must not wait for them.
    """
    if key in _living:
        _thread.start_new_thread(_dismiss, (key,))


def _dismiss(key: int) -> None:
    """Have a team's threads end, and wait for them."""
    team, threads = _living.get(key, (None, ()))
    if team is None:
        return
    dismiss(team, len(threads) + 1)
    for thread in threads:
        thread.join()
    _living.pop(key, None)


@atexit.register
def _dismiss_all() -> None:
    """End all teams: a thread must not come back to an ended Python."""
    for key in list(_living):
        _dismiss(key)


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
