"""Signals that stop a run: while it iterates it finishes the current mode and saves, at other times it ends at once."""

from __future__ import annotations

import signal
import sys
from collections.abc import Callable
from contextlib import AbstractContextManager, nullcontext
from typing import NamedTuple

import numpy as np

from partitioner.host.signals import NOTHING, Interrupts, described, exit_code

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

    def tell(self, comm: Comm) -> None:
        """Say on rank 0 that the run was stopped, if the ranks have agreed on that, and ignore further signals."""
        if self.signal is not None:
            self.over()
            if comm.rank == 0:
                print(f"amped: {described(self.signal)}; {self.saved()}", file=sys.stderr, flush=True)

    @property
    def exit_code(self) -> int:
        """The exit code of the run, as agreed so far."""
        return 0 if self.signal is None else exit_code(self.signal)


class Stop(NamedTuple):
    """How loops of a run, on all ranks, are stopped: signals are noted within `listening`, and it is called there."""

    request: StopRequest
    comm: Comm

    def __call__(self) -> bool:
        """Return whether to stop. Collective."""
        return self.request.agreed(self.comm)

    def listening(self) -> AbstractContextManager[None]:
        """See `Interrupts`."""
        return self.request.listening()


class NeverStop:
    """Stops no loop. See `Stop`."""

    def __call__(self) -> bool:
        return False

    def listening(self) -> AbstractContextManager[None]:
        """See `Stop`."""
        return nullcontext()


NEVER = NeverStop()
