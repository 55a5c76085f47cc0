"""A run of a verb: what it claims, what it tells, and how it ends."""

from __future__ import annotations

import time
from pathlib import Path
from typing import NamedTuple

from partitioner.host.stages import STAGES
from partitioner.readers import is_table

from ..errors import EXIT_INCOMPLETE
from ..files import Outputs
from ..operators.sources.protocols import DescribedSource
from ..operators.sparse.tuning import Budget
from ..parallel.mpi import Comm, on_root
from ..parallel.stopping import StopRequest
from ..parallel.watchdog import Watchdog
from ..report import text
from ..report.console import RunReporter
from ..report.metrics import Metrics
from ..report.progress import Display, display
from ..runs.assembly import bring_up, open_path, room_of
from .requests import Request


class VerbSession(NamedTuple):
    """What a command line runs in: its ranks, who asks it to stop, and what ends it if it hangs."""

    comm: Comm
    stop: StopRequest
    watchdog: Watchdog


class Job:
    """A run of a verb; a context manager."""

    def __init__(self, request: Request, session: VerbSession) -> None:
        self.request, self.comm, self._aborts = request, session.comm, session.watchdog.aborts
        self._stop = session.stop
        self.metrics, self.outputs, self.display = Metrics(), Outputs(), Display()
        self._room, self._began, self.kernel_budget = 0, time.perf_counter(), Budget()
        STAGES.collect()  # of calls before

    def __enter__(self) -> Job:
        """Check what can be known before the tensor is read, claim what will be written, bring up the device."""
        try:
            with self._stop.shielded():
                self.place = on_root(self.comm, self._claim)
            self.machine = bring_up(self.request.options, self.comm)
        except BaseException:
            self._let_go()
            raise
        self._aborts.append(self.machine.exchange.abort)
        self._room = self.request.options.device_memory or self.machine.device.memory(self.comm.local_size)
        self.display = display(self.comm.rank, self.request.quiet, self.request.PRINTS)
        self.teller = RunReporter(self.comm, self.display, self.metrics)
        return self

    def _claim(self) -> Path | None:
        self.request.check()
        place = self.request.claim(self.outputs)
        self.metrics = self.request.open_metrics()  # perhaps in a folder that has just been made for the result
        return place

    def _let_go(self) -> None:
        with self._stop.shielded():
            self.display.close()
            self.metrics.close()
            self.outputs.close()

    def __exit__(self, kind: object, error: BaseException | None, trace: object) -> None:
        self._let_go()
        if isinstance(error, MemoryError):
            on_host, options = self.machine.device.on_host, self.request.options
            raise MemoryError(text.out_of_memory(error, self._room, on_host, options)) from None

    def exit_code(self, code: int = 0, failed: bool = False) -> int:
        """Return the exit code of a run whose result is written: another than `code` if a side output failed.

        Collective; rank 0's side outputs count.
        """
        failed = self.comm.bcast(failed or self.metrics.failed or self.display.failed)
        return EXIT_INCOMPLETE if failed else code

    def open(self) -> DescribedSource:
        """Open the tensor and say what it is."""
        request = self.request
        room, verify = room_of(self.machine, request.options), not request.no_verify
        with STAGES.of("read"):
            telling = self.display.rows if is_table(request.tensor, request.form) else self.display.reading
            source = open_path(request.tensor, self.comm, telling, verify, request.form, room)
        self.teller.source(Path(request.tensor).name, source)
        return source

    def budget(self, repeats: int) -> Budget:
        """Return what may be spent on choosing kernels, where each mode will be computed so many times at most."""
        self.kernel_budget = Budget(repeats, self._began)
        return self.kernel_budget

    def say_machine(self) -> None:
        """Say what the tensor was placed on. Collective."""
        self.teller.machine(self.machine, self.request.options.precision)
