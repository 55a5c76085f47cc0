"""What the verbs of the command line share: the ranks, the device, the display and the metrics."""

from __future__ import annotations

import argparse
from collections.abc import Callable
from pathlib import Path

from partitioner.jit import load_compiler

from .backend import choose
from .decomp.initial import initial_factors
from .files import check_file
from .operators.prediction import Speeds, measure
from .operators.source import Source, open_source
from .operators.sparse import Engine, Options
from .parallel.exchange import connect
from .parallel.mpi import Comm, on_root, together
from .report import text as report
from .report.metrics import Metrics, peak_resident_bytes, resident_bytes, versions
from .report.progress import Display, display


class Job:
    """A run of a verb; a context manager."""

    def __init__(self, args: argparse.Namespace, comm: Comm, check: Callable[[], None]) -> None:
        """Check the options, with `check` for those of the verb alone, and bring up the device. Collective."""
        self.args, self.comm = args, comm
        self.metrics = Metrics()
        self.options = together(comm, lambda: self._checked_options(check))
        self.backend = together(comm, lambda: choose(args.device, comm, args.threads))
        self.exchange = connect(self.backend, comm)
        args.watchdog.aborts.append(getattr(self.exchange, "abort", bool))
        load_compiler()
        self._resting = resident_bytes()
        self._room = args.device_memory or self.backend.memory(comm.local_size)
        self.display: Display = display(comm.rank, args.quiet)

    def _checked_options(self, check: Callable[[], None]) -> Options:
        args = self.args
        if self.comm.rank == 0:
            check()
            if args.metrics is not None and not getattr(args, "resume", False):
                check_file(args.metrics, args.force)
        return Options(
            args.device,
            args.precision,
            args.placement,
            args.kernel,
            args.deterministic,
            args.device_memory,
            args.threads,
            args.gather,
        )

    def __enter__(self) -> Job:
        return self

    def __exit__(self, kind: object, error: BaseException | None, trace: object) -> None:
        self.display.close()
        self.metrics.close()
        if isinstance(error, MemoryError):
            raise MemoryError(report.out_of_memory(error, self._room)) from None

    def open(self) -> Source:
        """Open the tensor and say what it is."""
        source = open_source(self.args.tensor, self.comm, self.display.reading, not self.args.no_verify)
        facts = (source.shape, source.nnz, source.norm, source.duplicates, source.zeros)
        self.display.note(report.tensor_line(Path(self.args.tensor).name, *facts))
        return source

    def build(self, source: Source) -> Engine:
        """Make the engine and say what it runs on."""
        engine = Engine(source, self.args.rank, self.comm, self.options, self.backend, self.exchange)
        devices = self.comm.allgather(engine.backend.description)
        text = f"{self.comm.size} rank{'s' * (self.comm.size > 1)}: {', '.join(dict.fromkeys(devices))}"
        over = f"; exchange over {engine.exchange.name}" if self.comm.size > 1 else ""
        self.display.note(f"{text}{over}; {self.args.precision}")
        return engine

    def speeds(self, source: Source) -> Speeds:
        """Measure what the machine does in a second, before its memory is full."""
        how = self.args.rank, self.options.dtype, self.options.kernel
        return measure(self.backend, self.exchange, self.comm, source.shape, *how)

    def start(self, engine: Engine, source: Source) -> None:
        """Put the factor matrices to start from in place."""
        args = self.args
        factors = initial_factors(source, args.rank, self.comm, engine.plan.dtype, args.seed, args.init)
        for mode, factor in enumerate(factors):
            engine.set_factor(mode, factor)

    def open_metrics(self) -> None:
        """Open the file of metrics, if there is to be one: nothing is left to be refused."""
        path, append = self.args.metrics, getattr(self.args, "resume", False)
        self.metrics = on_root(self.comm, lambda: Metrics(path, append)) or self.metrics

    def begin(self, engine: Engine, source: Source) -> None:
        """Open the metrics, and say in them what will run."""
        self.open_metrics()
        everyone = (
            engine.plan.planned_bytes,
            engine.backend.description,
            engine.kernels,
        )
        planned, devices, kernels = zip(*self.comm.allgather(everyone), strict=True)
        self.metrics.event(
            "start", tensor=str(self.args.tensor), shape=source.shape, nonzeros=source.nnz, norm=source.norm,
            rank=engine.rank, ranks=self.comm.size, devices=devices, kernels=kernels, options=vars(engine.options),
            versions=versions(), planned_bytes=planned,
        )  # fmt: skip

    def memory_line(self, engine: Engine) -> str:
        """Return the memory used and planned, each of the rank that used most; collective."""
        device = engine.backend.peak_bytes()
        mine = {"host": (peak_resident_bytes() - self._resting, engine.plan.host_bytes)}
        if device is not None:
            mine["device"] = device, sum(engine.plan.device_bytes.values())
        by_rank = self.comm.allgather(mine)
        self.metrics.event("memory", used_and_planned_bytes=by_rank)
        most = {place: max(ranks[place] for ranks in by_rank) for place in mine}
        texts = (f"{place} {report.human(used)} ({report.human(plan)} planned)" for place, (used, plan) in most.items())
        return "memory of a rank: " + ", ".join(texts)
