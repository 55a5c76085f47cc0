"""The session of a verb that computes: its outputs, devices, reports and exit code."""

from __future__ import annotations

import time
from pathlib import Path
from typing import ClassVar, NamedTuple

from partitioner.host.stages import STAGES

from ..errors import EXIT_INCOMPLETE
from ..operators.sources.protocols import DescribedSource
from ..operators.sparse.tuning import Budget
from ..parallel.mpi import Comm, on_root
from ..parallel.stopping import StopRequest
from ..parallel.watchdog import Watchdog
from ..report import text
from ..report.progress import StreamName
from ..runs.session import Session
from .requests import Request


class VerbSession(NamedTuple):
    """The environment of a verb: the ranks, requests to stop, and the watchdog."""

    comm: Comm
    stop: StopRequest
    watchdog: Watchdog


class Job(Session):
    """The session of a verb that computes; a context manager."""

    PROGRESS: ClassVar[StreamName] = "stderr"

    def __init__(self, request: Request, session: VerbSession) -> None:
        super().__init__(session.comm, request.options)
        self.request, self._aborts, self._stop = request, session.watchdog.aborts, session.stop
        self._memory_limit, self._began, self.kernel_budget = 0, time.perf_counter(), Budget()
        STAGES.collect()  # discard the times of earlier calls

    def __enter__(self) -> Job:
        """Check the request, claim the outputs, and connect the devices."""
        try:
            with self._stop.shielded():
                self.place = on_root(self.comm, self._claim)
            self.bring_up(self._aborts, self.request.quiet, self.request.PRINTS)
        except BaseException:
            self.close()
            raise
        self._memory_limit = self.options.device_memory or self.machine.device.memory(self.comm.local_size)
        return self

    def _claim(self) -> Path | None:
        self.request.check()
        place = self.request.claim(self.outputs)
        self.metrics = self.request.open_metrics()  # may be in the folder that was just created for the result
        return place

    def close(self) -> None:
        """See `Session`."""
        with self._stop.shielded():
            super().close()

    def __exit__(self, kind: object, error: BaseException | None, trace: object) -> None:
        self.close()
        if isinstance(error, MemoryError):
            on_host = self.machine.device.on_host
            raise MemoryError(text.out_of_memory(error, self._memory_limit, on_host, self.options)) from None

    def exit_code(self, code: int = 0, failed: bool = False) -> int:
        """Return `code`, or `EXIT_INCOMPLETE` if a side output of rank 0 failed; the result is written. Collective."""
        failed = self.comm.bcast(failed or self.metrics.failed or self.display.failed)
        return EXIT_INCOMPLETE if failed else code

    def open(self) -> DescribedSource:
        """Open the tensor and print a line about it."""
        return self.read(self.request.tensor, not self.request.no_verify, self.request.form)

    def budget(self, repeats: int, expected: int | None = None) -> Budget:
        """Return the time budget for choosing kernels if each mode is computed at most `repeats` times."""
        self.kernel_budget = Budget(repeats, self._began, expected=expected)
        return self.kernel_budget

    def say_machine(self) -> None:
        """Print the ranks and devices. Collective."""
        self.reporter.machine(self.machine, self.options)
