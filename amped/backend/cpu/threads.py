"""The threads of a rank."""

from __future__ import annotations

import _thread
import atexit
import threading
import weakref
from collections.abc import Sequence

import numpy as np
from numpy.typing import NDArray

from .caches import aligned
from .simd.thread_team import ASLEEP, SPINS, WORDS, dismiss, serve

SPIN = 4000  # pauses of 10 to 50 ns: longer than the gap between two MTTKRPs of a small tensor


_living: dict[int, tuple[NDArray[np.int64], Sequence[threading.Thread]]] = {}
"""Teams with running threads, by the ids of their arrays."""


class Threads:
    """A team of threads that lives as long as this object; the calling thread is a member.

    Attributes
    ----------
    count : int
    team : array
        State through which a compiled function is shared among the threads; see `amped.backend.cpu.simd.thread_team`.
    """

    def __init__(self, count: int, spare: bool = True) -> None:
        """Start `count` - 1 threads; waiting threads spin for a while if each has a core to itself (`spare`)."""
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
            weakref.finalize(self, _finalize, id(self.team)).atexit = False


def _finalize(key: int) -> None:
    """End a team's threads from another thread.

    The garbage collector may call this at any point, for example during a compilation. This thread may then hold locks
    that the team's threads wait for, so it must not wait for them.
    """
    if key in _living:
        _thread.start_new_thread(_dismiss, (key,))


def _dismiss(key: int) -> None:
    """End a team's threads and wait for them."""
    team, threads = _living.get(key, (None, ()))
    if team is None:
        return
    dismiss(team, len(threads) + 1)
    for thread in threads:
        thread.join()
    _living.pop(key, None)


@atexit.register
def _dismiss_all() -> None:
    """End all teams before the interpreter shuts down."""
    for key in list(_living):
        _dismiss(key)


def check(faults: int) -> None:
    """Raise an error if threads failed in a compiled function."""
    if faults:
        raise RuntimeError(f"{faults} threads failed in a kernel")
