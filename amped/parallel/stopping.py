"""Signals that stop a run: while it iterates it finishes the current mode and saves, at other times it ends at once."""

from __future__ import annotations

import signal
from collections.abc import Callable

import numpy as np

from partitioner.signals import NOTHING, Interrupts, exit_code

from .mpi import Comm


class StopRequest(Interrupts):
    """Whether any rank of this run received a signal to stop; a context manager that handles signals.

    Outside `listening` a signal raises `Stopped`.
    """

    def __init__(self) -> None:
        super().__init__()
        self.signal: signal.Signals | None = None  # once the ranks have agreed on it
        self.saved: Callable[[], str] = lambda: NOTHING
        """Returns what a run that ends now has saved, in words."""

    def agreed(self, comm: Comm) -> bool:
        """Return whether any rank was told to stop. Collective."""
        told = np.array([self.told], np.int64)
        comm.all_reduce(told, "max")
        self.signal = signal.Signals(int(told[0])) if told[0] else None
        return self.signal is not None

    @property
    def exit_code(self) -> int:
        """The exit code of the run, as agreed so far."""
        return 0 if self.signal is None else exit_code(self.signal)
