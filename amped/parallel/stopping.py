"""Signals that stop a run: it finishes the current mode, writes a checkpoint, and says how to resume."""

from __future__ import annotations

import signal
from collections.abc import Iterator
from contextlib import contextmanager
from types import FrameType

import numpy as np

from ..errors import EXIT_INTERRUPTED, EXIT_STOPPED
from .mpi import Comm


class StopRequest:
    """Whether any rank of this run received a signal to stop.

    SIGUSR1 is handled from the start, as its default action would kill a job that is still reading. SIGTERM and SIGINT
    end the run at once until there is something to save.
    """

    def __init__(self) -> None:
        self.signal: signal.Signals | None = None  # once the ranks have agreed on it
        self._told = 0
        signal.signal(signal.SIGUSR1, self._hear)

    def _hear(self, number: int, _: FrameType | None) -> None:
        self._told = max(self._told, number)
        if number == signal.SIGINT:  # a second Ctrl-C ends at once
            signal.signal(signal.SIGINT, signal.default_int_handler)

    @contextmanager
    def listening(self) -> Iterator[None]:
        """Handle SIGTERM and SIGINT inside the block."""
        before = {number: signal.signal(number, self._hear) for number in (signal.SIGTERM, signal.SIGINT)}
        try:
            yield
        finally:
            for number, handler in before.items():
                signal.signal(number, handler)

    def agreed(self, comm: Comm) -> bool:
        """Return whether any rank was told to stop. Collective."""
        told = np.array([self._told], np.int64)
        comm.all_reduce(told, "max")
        self.signal = signal.Signals(int(told[0])) if told[0] else None
        return self.signal is not None

    @property
    def exit_code(self) -> int:
        """The exit code of the run, as agreed so far."""
        if self.signal is None:
            return 0
        return EXIT_INTERRUPTED if self.signal == signal.SIGINT else EXIT_STOPPED
