"""Signals that stop a run: during iterations, the current mode is finished and the state saved; otherwise at once."""

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
    """A context manager that handles stop signals and lets the ranks agree on them.

    Outside `listening` a signal raises `Stopped`.
    """

    def __init__(self) -> None:
        super().__init__()
        self.signal: signal.Signals | None = None  # set once the ranks have agreed
        self.saved: Callable[[], str] = lambda: NOTHING
        """Returns a description of what the run has saved, for the message."""

    def agreed(self, comm: Comm) -> bool:
        """Return whether any rank received a stop signal. Collective."""
        received = np.array([self.received], np.int64)
        comm.all_reduce(received, "max")
        self.signal = signal.Signals(int(received[0])) if received[0] else None
        return self.signal is not None

    def report(self, comm: Comm) -> None:
        """Print on rank 0 that the run was stopped, if the ranks have agreed to stop, and ignore further signals."""
        if self.signal is not None:
            self.ignore_all()
            if comm.rank == 0:
                print(f"amped: {described(self.signal)}; {self.saved()}", file=sys.stderr, flush=True)

    @property
    def exit_code(self) -> int:
        """The exit code of the run, 0 unless the ranks have agreed to stop."""
        return 0 if self.signal is None else exit_code(self.signal)


class Stop(NamedTuple):
    """The stop test of a run's loops. Signals are recorded within `listening`, where it is called."""

    request: StopRequest
    comm: Comm

    def __call__(self) -> bool:
        """Return whether to stop. Collective."""
        return self.request.agreed(self.comm)

    def listening(self) -> AbstractContextManager[None]:
        """See `Interrupts`."""
        return self.request.listening()


class NeverStop:
    """A stop test that is never true. See `Stop`."""

    def __call__(self) -> bool:
        return False

    def listening(self) -> AbstractContextManager[None]:
        """See `Stop`."""
        return nullcontext()


class StopOnRequest(NeverStop):
    """A stop test that is true once `requested` is set, on all ranks."""

    def __init__(self) -> None:
        self.requested = False

    def __call__(self) -> bool:
        return self.requested


NEVER = NeverStop()
