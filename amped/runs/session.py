"""Sessions: the devices, outputs and reports of a command or a Python call."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator, Sequence
from contextlib import closing, contextmanager
from pathlib import Path
from typing import ClassVar

from partitioner.host.stages import STAGES
from partitioner.readers import PLAIN, ReadOptions, is_table

from ..backend.exchange import Machine
from ..files import Outputs
from ..methods.driver import never
from ..methods.starts import Decomposition
from ..models.history import M
from ..operators.sources.protocols import DescribedSource
from ..operators.sparse.tuning import Budget
from ..options import Options
from ..parallel.mpi import Comm
from ..report.console import RunReporter
from ..report.displays import display
from ..report.metrics import Metrics
from ..report.progress import Display, StreamName
from .assembly import Tensor, bring_up, device_memory, open_tensor, watched
from .holding_out import HoldoutParams, HoldoutSource, all_observed, hold_out
from .observed_runs import observe
from .observing import ObservedParams, ObservedSource
from .run import Reporting, Run, RunObserver, RunParams


class Session:
    """The devices, outputs and reports of a command or call. Its methods are collective and are called in order.

    Attributes
    ----------
    outputs : Outputs
        The claimed files.
    metrics : Metrics
    display : Display
    machine : Machine
    reporter : RunReporter
    tensor : str
        Name of the tensor in metrics: its path, or "X" if it is in memory.
    source : DescribedSource
    """

    PROGRESS: ClassVar[StreamName] = "stdout"  # see `PlainDisplay`
    machine: Machine
    reporter: RunReporter
    source: DescribedSource

    def __init__(self, comm: Comm, options: Options) -> None:
        self.comm, self.options, self.tensor = comm, options, "X"
        self.metrics, self.outputs, self.display = Metrics(), Outputs(), Display()

    def bring_up(
        self, aborts: list[Callable[[], object]], quiet: bool, result: bool = False, enabled: bool = True
    ) -> None:
        """Connect the devices and the exchange, and create the display; see `display` and `RunReporter`."""
        self.machine = bring_up(self.options, self.comm)
        aborts.append(self.machine.exchange.abort)
        self.display = display(self.comm.rank, quiet, result, self.PROGRESS)
        self.reporter = RunReporter(self.comm, self.display, self.metrics, enabled)

    def read(self, tensor: Tensor, verify: bool = True, form: ReadOptions = PLAIN) -> DescribedSource:
        """Open the tensor and print a line about it; see `open_tensor`."""
        path = os.fspath(tensor) if isinstance(tensor, (str, os.PathLike)) else None
        self.tensor = path or self.tensor
        reading = None
        if self.reporter.enabled:
            reading = self.display.rows if path and is_table(path, form) else self.display.reading
        if getattr(tensor, "kind", None) == "sparse":  # the order of a file is not known yet
            self.machine.device.prepare(len(tensor.shape), self.options.dtype)  # type: ignore[union-attr]
        with self.reporter.compiling(), self.display.within("reading" if path else None), STAGES.of("read"):
            self.source = open_tensor(tensor, self.machine, self.options, reading, verify, form)
        self.reporter.source(Path(self.tensor).name, self.source)
        return self.source

    def observe(self, params: ObservedParams) -> ObservedSource | None:
        """Restrict the tensor to its observed elements, if not all are observed; see `observe`."""
        observed = observe(self.source, params, self.machine, self.options)
        if observed is not None:
            self.source = observed.source
            if self.reporter.enabled:  # counting rows reads all indices
                self.display.note(observed.note)
        return observed

    def observe_all(self, params: ObservedParams) -> ObservedSource:
        """See `observe`; without gaps and parameters, all elements of a dense tensor are observed."""
        observed = self.observe(params) or self.observe(all_observed(self.source, self.comm))
        assert observed is not None
        return observed

    def hold_out(self, params: ObservedParams, holdout: HoldoutParams) -> HoldoutSource:
        """Restrict the tensor to its observed elements without those that are held out; see `cp_als`."""
        observed = self.observe_all(params)
        split = hold_out(observed, holdout, self.comm, device_memory(self.machine, self.options))
        self.source = split.fitted.source
        self.display.note(split.note)
        return split

    def begin(
        self,
        method: Decomposition[M],
        params: RunParams,
        budget: Budget,
        observers: Sequence[RunObserver] = (),
        stop: Callable[[], bool] = never,
    ) -> Run[M]:
        """Begin a run of a method, which the reporter observes; `budget` has the seconds spent on choosing kernels."""
        own = [Reporting(self.reporter, self.tensor, budget)] if self.reporter.enabled else []
        run = Run(method, self.source, params, self.reporter, [*own, *observers], stop, self.machine.device)
        run.begin()
        return run

    def close(self) -> None:
        """Close the display and the metrics, and release the claims."""
        self.display.close()
        self.metrics.close()
        self.outputs.close()


@contextmanager
def opened(
    tensor: Tensor, comm: Comm, options: Options, deadline: float | None, form: ReadOptions = PLAIN
) -> Iterator[tuple[Machine, DescribedSource]]:
    """Connect the devices for a call without outputs and display, and open its tensor. Collective."""
    with closing(Session(comm, options)) as session, watched(comm, deadline) as aborts:
        session.bring_up(aborts, quiet=True, enabled=False)
        yield session.machine, session.read(tensor, form=form)
