"""A run of a verb: what it claims, and how it ends."""

from __future__ import annotations

import time
from pathlib import Path
from typing import NamedTuple

from partitioner.host.stages import STAGES

from ..errors import EXIT_INCOMPLETE
from ..operators.sources.protocols import DescribedSource
from ..operators.sparse.tuning import Budget
from ..parallel.mpi import Comm, on_root
from ..parallel.stopping import StopRequest
from ..parallel.watchdog import Watchdog
from ..report import text
from ..runs.session import Session
from .requests import Request


class VerbSession(NamedTuple):
    """What a command line runs in: its ranks, who asks it to stop, and what ends it if it hangs."""

    comm: Comm
    stop: StopRequest
    watchdog: Watchdog


class Job(Session):
    """A run of a verb; a context manager."""

    def __init__(self, request: Request, session: VerbSession) -> None:
        super().__init__(session.comm, request.options)
        self.request, self._aborts, self._stop = request, session.watchdog.aborts, session.stop
        self._room, self._began, self.kernel_budget = 0, time.perf_counter(), Budget()
        STAGES.collect()  # of calls before

    def __enter__(self) -> Job:
        """Check what can be known before the tensor is read, claim what will be written, bring up the device."""
        try:
            with self._stop.shielded():
                self.place = on_root(self.comm, self._claim)
            self.bring_up(self._aborts, self.request.quiet, self.request.PRINTS)
        except BaseException:
            self.close()
            raise
        self._room = self.options.device_memory or self.machine.device.memory(self.comm.local_size)
        return self

    def _claim(self) -> Path | None:
        self.request.check()
        place = self.request.claim(self.outputs)
        self.metrics = self.request.open_metrics()  # perhaps in a folder that has just been made for the result
        return place

    def close(self) -> None:
        """See `Session`."""
        with self._stop.shielded():
            super().close()

    def __exit__(self, kind: object, error: BaseException | None, trace: object) -> None:
        self.close()
        if isinstance(error, MemoryError):
            on_host = self.machine.device.on_host
            raise MemoryError(text.out_of_memory(error, self._room, on_host, self.options)) from None

    def exit_code(self, code: int = 0, failed: bool = False) -> int:
        """Return the exit code of a run whose result is written: another than `code` if a side output failed.

        Collective; rank 0's side outputs count.
        """
        failed = self.comm.bcast(failed or self.metrics.failed or self.display.failed)
        return EXIT_INCOMPLETE if failed else code

    def open(self) -> DescribedSource:
        """Open the tensor and say what it is."""
        return self.read(self.request.tensor, not self.request.no_verify, self.request.form)

    def budget(self, repeats: int) -> Budget:
        """Return what may be spent on choosing kernels, where each mode will be computed so many times at most."""
        self.kernel_budget = Budget(repeats, self._began)
        return self.kernel_budget

    def say_machine(self) -> None:
        """Say what the tensor was placed on. Collective."""
        self.reporter.machine(self.machine, self.options.precision)
