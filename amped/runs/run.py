"""A run of a decomposition, used by both the Python functions and the command line.

A run starts or resumes, iterates, keeps the best of several starts, writes checkpoints, and reports to observers.
"""

from __future__ import annotations

import sys
import time
from collections.abc import Callable, Sequence
from pathlib import Path
from signal import Signals
from typing import TYPE_CHECKING, Any, Generic, NamedTuple, cast

import numpy as np

from partitioner.errors import one_line
from partitioner.host.stages import STAGES
from partitioner.tensors.device_arrays import is_on_gpu, on_host

from ..backend.byte_count import ByteCount
from ..backend.device import Device
from ..backend.exchange import Machine
from ..errors import InputError, warn
from ..methods import driver
from ..methods.driver import Method, Spans, StopRule, never
from ..methods.initial import Init
from ..methods.starts import Decomposition, best_of
from ..models.history import AnyModel, M, M_co
from ..operators.sources.protocols import DescribedSource
from ..operators.sparse.tuning import Budget
from ..parallel.mpi import on_root, share
from ..parallel.progress import LOADING_SECONDS
from ..parallel.step_timeout import first_limit
from ..report import logs, text
from ..report.console import RunReporter
from ..report.record import init_name, run_facts
from . import checkpoint
from .assembly import begin
from .saver import Saver

if TYPE_CHECKING:
    from ..models.kruskal import KruskalTensor


class CheckpointParams(NamedTuple):
    """The folder for checkpoints, and whether the run resumes from it."""

    folder: Path
    check: Callable[[checkpoint.Origin, Path], None]  # raises `InputError` if the start differs
    every: int | None = None  # iterations; see `Saver`
    resume: bool = False
    verify: bool = True  # checksums


class RunParams(NamedTuple):
    """The parameters of a run of any method."""

    max_iters: int
    tol: float
    seed: int = 0  # of the first start
    init: Init | None = None  # on rank 0
    starts: int = 1
    deadline: float | None = None
    checkpoint: CheckpointParams | None = None
    first_limit: float = LOADING_SECONDS  # see `StopRule`
    init_name: str | None = None  # in records; by default from `init`
    random: str | None = None  # name of the random start in records, if it has one
    patience: int | None = None  # see `StopRule`
    forecast: bool = False  # see `StopRule`
    on_device: bool = False  # whether factor matrices of models stay on the device

    @property
    def rule(self) -> StopRule:
        """The stopping rule."""
        return StopRule(self.max_iters, self.tol, self.first_limit, self.deadline, self.patience, self.forecast)


class RunObserver:
    """Observes a run on all ranks; subclasses override some of its methods, which are collective."""

    def began(self, run: Run[AnyModel]) -> None:
        """Called when the first factor matrices are set and all input is valid."""

    def iterated(self, run: Run[AnyModel], spans: Spans, seconds: float) -> None:
        """Called after each iteration, with this rank's spans and the seconds of the iteration."""

    def ended(self, run: Run[AnyModel], record: dict[str, Any], signal: Signals | None, result: str) -> None:
        """Called at the end; `result` is a text about the written files, if any."""


class Reporting(RunObserver):
    """Reports a run to the console and to metrics."""

    def __init__(self, reporter: RunReporter, tensor: str, budget: Budget) -> None:
        self._reporter, self._tensor, self._budget = reporter, tensor, budget

    def began(self, run: Run[AnyModel]) -> None:
        method, checkpoint = run.method, run.params.checkpoint
        folder = checkpoint.folder if checkpoint else None
        self._reporter.began(self._tensor, run.source, method.operator, method.rank, self._budget.spent, folder)

    def iterated(self, run: Run[AnyModel], spans: Spans, seconds: float) -> None:
        self._reporter.iteration(run.method, spans, seconds, run.rule)

    def ended(self, run: Run[AnyModel], record: dict[str, Any], signal: Signals | None, result: str) -> None:
        reporter, operator = self._reporter, run.method.operator
        memory = reporter.memory(operator.machine, operator)
        stages = reporter.stages()
        reporter.metrics.event("stages", seconds=stages)
        if reporter.comm.rank == 0:
            logs.info(text.stages_line(stages))
        reporter.metrics.event("end", **record)
        reporter.end(run.method, run.rule, run.seconds, memory, signal, result)


class Run(Generic[M_co]):
    """A decomposition of a placed tensor. Its methods are collective and are called in the order of their definition.

    Parameters
    ----------
    method : Decomposition
    source : DescribedSource
    params : RunParams
    reporter : RunReporter
        Reports the starts, and the checkpoint from which the run resumes.
    observers : sequence of RunObserver
    stop : callable
        Called between modes, iterations and starts; returns whether to stop. Collective.
    device : Device, optional
        Where models are left that stay on a device; by default that of the method, which may be a CPU because the GPU
        lacks the method.
    """

    def __init__(
        self,
        method: Decomposition[M_co],
        source: DescribedSource,
        params: RunParams,
        reporter: RunReporter,
        observers: Sequence[RunObserver] = (),
        stop: Callable[[], bool] = never,
        device: Device | None = None,
    ) -> None:
        self._device = device or method.operator.machine.device
        self.method, self.source, self.params, self.seconds = method, source, params, 0.0
        self.rule = params.rule
        self._comm, self._reporter, self._observers, self._stop = reporter.comm, reporter, observers, stop
        self._resumed, self._exchanged = False, list[int]()

    def begin(self) -> None:
        """Set the factor matrices and the state, from the first start or a checkpoint."""
        params, method = self.params, self.method
        operator = method.operator
        self._reporter.machine(operator.machine, operator.options, operator.distribution)
        name = self._comm.bcast(init_name(params.init) if params.init_name is None else params.init_name)
        if name is not None and params.starts > 1:
            raise InputError(f"starts {params.starts}: init gives one start")
        facts: dict[str, object] = {}
        if params.checkpoint is not None:
            facts = checkpoint.facts_of(self.source, method.rank, method.name) | method.facts
        self.origin = checkpoint.Origin(facts, params.seed, name, vars(method.operator.options).copy())
        self._resumed = params.checkpoint is not None and params.checkpoint.resume and self._resume(params.checkpoint)
        if not self._resumed:
            begin(method, self.source, params.seed, params.init)
        for observer in self._observers:
            observer.began(self)

    def _resume(self, where: CheckpointParams) -> bool:
        """Continue from the newest checkpoint, if there is one; return whether there is."""
        method, comm, source, origin = self.method, self._comm, self.source, self.origin

        def load() -> checkpoint.Checkpoint | None:
            saved, damages = checkpoint.load_newest(where.folder, where.verify)
            if saved is not None:
                checkpoint.check(saved, origin.facts, method.state, where.folder, source.labels)
                where.check(self._without_name(saved.origin), where.folder / saved.name)
                for damage in damages:
                    print(f"amped: {damage}; resuming from {one_line(saved.name)}", file=sys.stderr)
            return saved

        saved = on_root(comm, load)  # other ranks may have another file system
        state = comm.bcast(None if saved is None else (saved.state, saved.origin.seed, saved.origin.init))
        if state is None:
            self._reporter.display.note(
                f"no checkpoint in {one_line(str(where.folder))}: the run starts from the beginning"
            )
            return False
        method.state, seed, init = state
        for mode in range(len(source.shape)):
            method.operator.set_factor(mode, share(comm, saved.factors[mode] if saved else None))
        self._reporter.display.note(f"resumed after {text.progress(method.state)} from {one_line(str(where.folder))}")
        self.origin = origin._replace(seed=seed, init=init or origin.init)
        return True

    def _without_name(self, origin: checkpoint.Origin) -> checkpoint.Origin:
        """Return an origin whose start is None if it is random, also if the record names it."""
        return origin._replace(init=None) if origin.init == self.params.random else origin

    @property
    def seeded(self) -> bool:
        """Whether the run started from random factor matrices."""
        return self._without_name(self.origin).init is None

    def iterate(self) -> bool:
        """Iterate from each start and keep the best; return whether the last checkpoint failed, on rank 0."""
        params, where, began = self.params, self.params.checkpoint, time.perf_counter()
        folder, every = (where.folder, where.every) if where else (None, None)
        saver = Saver(folder, self.method, self.origin, every, self._resumed, self.source.labels)
        self._traffic.take()  # loading is not part of an iteration
        with self._reporter.compiling(), STAGES.of("iterate"), saver:
            best, merits = best_of(
                self.method,
                params.starts,
                self._start,
                lambda: driver.run(self.method, self.rule, [self._iterated], self._stop, saver),
                self._stop,
            )
        if params.starts > 1:
            self.origin = self.origin._replace(seed=params.seed + best)
            self._reporter.best(len(merits), self.origin.seed)
        self.seconds = time.perf_counter() - began
        self._reporter.settle()
        return saver.failed

    def _start(self, number: int) -> None:
        """Set the factor matrices of a start, except of the first one."""
        seed = self.params.seed + number
        self._reporter.start(number, self.params.starts, seed)
        if number:
            begin(self.method, self.source, seed)

    def _iterated(self, method: Method, spans: Spans, seconds: float) -> None:
        self._exchanged.append(self._traffic.take())
        for observer in self._observers:
            observer.iterated(self, spans, seconds)

    @property
    def _traffic(self) -> ByteCount:
        return self.method.operator.machine.exchange.traffic

    def exchange_bytes(self) -> list[list[int]]:
        """Return for each iteration the bytes that each rank sent and received."""
        return [list(of_ranks) for of_ranks in zip(*self._comm.allgather(self._exchanged), strict=True)]

    def model(self) -> M_co:
        """Return this rank's model, with the tensor's labels."""
        model = self._model_on_device() if self.params.on_device else self.method.model()
        return model.labelled(self.source.labels)

    def _model_on_device(self) -> M_co:
        """Return the model with factor matrices in device memory, or in host memory if that does not suffice."""
        method, operator, device = self.method, self.method.operator, self._device
        method.on_device, model = operator.whole, None  # on a grid, matrices are gathered in host memory
        try:
            model = method.model()
            if not device.on_host:  # some methods arrange their matrices in host memory, or compute them there
                model.factors = [each if is_on_gpu(each) else device.to_device(each) for each in model.factors]
        except MemoryError:
            if model is None and not operator.whole:
                raise
            warn("output 'device': memory for a copy of the factor matrices is missing; they are in host memory")
            method.on_device = False
            model = method.model() if operator.whole else model  # on a grid, gathering takes all ranks
        finally:
            method.on_device = False
        device.synchronize()  # the caller may use another stream
        assert model is not None
        return model

    def final_model(self) -> M_co:
        """Return the model at the end, with the tensor's labels: that of rank 0 on all ranks. Collective."""
        return agreed(self.model(), self.method.operator.machine)

    def facts(self) -> dict[str, object]:
        """Return the facts of the run for its record; the seed is that of the best start."""
        return run_facts(self.method, self.source, self.origin.seed, self.origin.init)

    def end(self, record: dict[str, Any], signal: Signals | None = None, result: str = "") -> None:
        """Notify the observers of the end."""
        for observer in self._observers:
            observer.ended(self, record, signal, result)


def agreed(model: M, machine: Machine) -> M:
    """Return rank 0's model on all ranks if each computes everything: they may differ in rounding. Collective."""
    if machine.others is None:
        return model
    result = cast("KruskalTensor", model)  # only CP-ALS computes everything on all ranks
    result.weights = machine.agreed(result.weights)
    for mode, factor in enumerate(result.factors):
        rows = machine.agreed(np.ascontiguousarray(on_host(factor)))
        if not is_on_gpu(factor):
            result.factors[mode] = rows
        elif machine.everyone.rank:
            factor.set(rows)
    machine.device.synchronize()  # the caller may use another stream
    return model


def step_limit(method: Method) -> float:
    """Return the time limit of a step in the first iteration, from the bytes that it reads. Collective."""
    operator = method.operator
    slowest = operator.plan.read_bytes / operator.machine.device.least_speed
    return first_limit(max(operator.machine.everyone.allgather(slowest)))
