"""Signals that ask a run to stop: it finishes the mode it is at, saves what is done, and says how to go on."""

from __future__ import annotations

import signal
from collections.abc import Iterator
from contextlib import contextmanager
from types import FrameType

import numpy as np

from ..errors import EXIT_INTERRUPTED, EXIT_STOPPED
from .mpi import Comm


class StopRequest:
    """Whether this run was told to stop, by a signal to any of its ranks.

    SIGUSR1 is listened to from the start, as its default action would kill a job that is told to stop while it still
    reads. SIGTERM and SIGINT count while there is something to save, and end the run at once before that.

    Attributes
    ----------
    signal : signal.Signals or None
        What told it to, as the ranks have agreed.
    """

    def __init__(self) -> None:
        self.signal: signal.Signals | None = None
        self._told = 0
        signal.signal(signal.SIGUSR1, self._hear)

    def _hear(self, number: int, _: FrameType | None) -> None:
        self._told = max(self._told, number)
        if number == signal.SIGINT:  # a second one does not wait
            signal.signal(signal.SIGINT, signal.default_int_handler)

    @contextmanager
    def listening(self) -> Iterator[None]:
        """Listen to SIGTERM and SIGINT within."""
        before = {number: signal.signal(number, self._hear) for number in (signal.SIGTERM, signal.SIGINT)}
        try:
            yield
        finally:
            for number, handler in before.items():
                signal.signal(number, handler)

    def agreed(self, comm: Comm) -> bool:
        """Tell whether any rank was told to stop. Collective."""
        told = np.array([self._told], np.int64)
        comm.all_reduce(told, "max")
        self.signal = signal.Signals(int(told[0])) if told[0] else None
        return self.signal is not None

    @property
    def exit_code(self) -> int:
        """The exit code of a run that went on until now."""
        if self.signal is None:
            return 0
        return EXIT_INTERRUPTED if self.signal == signal.SIGINT else EXIT_STOPPED
