"""The one place where a run is put together: options become ranks, device, exchange, tensor and operator."""

from __future__ import annotations

import os
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import asdict
from pathlib import Path
from typing import Any, NamedTuple, Protocol

from numpy.typing import NDArray

from partitioner.coo import SparseTensor, ValueRange
from partitioner.dense import DenseTensor
from partitioner.device import wake
from partitioner.jit import load_compiler
from partitioner.readers import PLAIN, Form, is_dense, is_table, read_sparse, with_zeros
from partitioner.readers.negative import first_negative
from partitioner.stages import STAGES

from .backend.base import Device
from .backend.blas import callers_blas
from .backend.choose import choose
from .backend.exchange import Machine, connect
from .backend.providers import dense_kernels, ttm_kernels
from .decomp import als, apr
from .decomp.constraints import NONE, Constraints
from .decomp.driver import Method, Spans
from .decomp.initial import Init, initial_factors
from .decomp.poisson import Poisson
from .decomp.tucker import Tucker
from .errors import EXIT_INCOMPLETE, InputError
from .files import Outputs
from .operators.base import Operator, Placed
from .operators.dealt import Progress
from .operators.dense import DenseOperator
from .operators.dense_source import DenseSource, of_array, open_dense_source
from .operators.held import Room
from .operators.lengths import check_lengths
from .operators.placement import Setting, Solving, check_options, nothing
from .operators.source import Described, Source, TensorSource, open_source
from .operators.sparse import SparseOperator
from .operators.tuning import Budget
from .options import Options
from .parallel.mpi import Comm, on_root, together
from .parallel.recorder import HERE, LOADING_SECONDS
from .parallel.stopping import StopRequest
from .parallel.watchdog import Watchdog
from .report import text
from .report.dense import source_line
from .report.metrics import Metrics, peak_resident_bytes, resident_bytes, versions
from .report.progress import Display, display
from .requests import Request

Tensor = SparseTensor | DenseTensor | NDArray[Any] | str | os.PathLike[str] | None
AnySource = Source | DenseSource


def bring_up(options: Options, comm: Comm) -> Machine:
    """Bring up the device and what carries rows between ranks; refuse options that the device has not. Collective."""
    wake(options.device, comm.local_rank)
    load_compiler()  # meanwhile
    device = together(comm, lambda: choose(options.device, comm, options.threads))
    together(comm, lambda: _check_options(options, device))
    return connect(device, comm)


def _check_options(options: Options, device: Device) -> None:
    """Raise `InputError` unless the device can do what is asked for with a tensor of some kind."""
    others = {kernel.name for family in (dense_kernels, ttm_kernels) for kernel in family(device)}
    if options.kernel == "auto" or options.kernel not in others:
        check_options(options, device)


def open_tensor(tensor: Tensor, machine: Machine, options: Options) -> AnySource:
    """Return where elements come from: a tensor in rank 0's memory, or the file or store that it names. Collective."""
    comm, room = machine.comm, room_of(machine, options)
    held = isinstance(tensor, (SparseTensor, DenseTensor))
    path, dense = comm.bcast((None if tensor is None or held else os.fspath(tensor), isinstance(tensor, DenseTensor)))  # type: ignore[arg-type]
    if path is not None:
        return open_path(path, comm, room=room)
    if dense:
        return of_array(tensor if isinstance(tensor, DenseTensor) else None, comm)
    return TensorSource(tensor if isinstance(tensor, SparseTensor) else None, comm, room=room)


def open_path(
    path: str | os.PathLike[str],
    comm: Comm,
    progress: Progress | None = None,
    verify: bool = True,
    form: Form = PLAIN,
    room: Room | None = None,
) -> AnySource:
    """Open the tensor in a file or store, whatever kind it is of. Collective."""
    if is_dense(path):
        return open_dense_source(path, comm, form)
    if not form.dense:
        return open_source(path, comm, progress, verify, form, room)

    def whole() -> DenseTensor:
        return with_zeros(read_sparse(path, form, progress=progress), path)

    return of_array(on_root(comm, whole), comm, path)


NO_VALUES = ValueRange(0.0, 0.0, 0.0)  # of dense tensors, whose plans do not depend on them


def room_of(machine: Machine, options: Options) -> Room:
    """Return where a tensor may be held while it is loaded."""
    if options.placement == "stream":  # its shards are made on the host
        return Room(machine, 0)
    return Room(machine, options.device_memory or machine.device.memory(machine.comm.local_size))


def setting_for(
    source: Described,
    rank: int | Sequence[int],
    machine: Machine,
    options: Options,
    solving: Solving = nothing,
    asked: Poisson | None = None,
) -> Setting:
    """Return what plans have in common for factor matrices of `rank` columns, with the memory that there is now."""
    memory = options.device_memory or machine.device.memory(machine.comm.local_size)
    ranks = (rank,) * len(source.shape) if isinstance(rank, int) else tuple(rank)
    ahead = solving is not nothing and machine.device.queues and asked is None
    values = NO_VALUES if isinstance(source, DenseSource) else source.value_range
    overlaps = machine.exchange.overlaps
    return Setting(
        ranks,
        options,
        machine.device,
        values,
        memory,
        overlaps,
        solving,
        ahead,
        asked is not None,
        asked.rows if asked else None,
    )


def solving_bytes(machine: Machine, options: Options, order: int) -> Solving:
    """Return what a decomposition of a tensor of so many modes takes on the device beside an MTTKRP."""
    return als.solving_bytes(machine, options.dtype, order)


def place(
    source: AnySource,
    rank: int,
    machine: Machine,
    options: Options,
    solving: Solving = nothing,
    budget: Budget | None = None,
) -> Operator:
    """Place a tensor for factor matrices of `rank` columns; choose kernels within a budget. Collective."""
    return _placed(source, machine, setting_for(source, rank, machine, options, solving), budget)


def _placed(source: AnySource, machine: Machine, setting: Setting, budget: Budget | None) -> Operator:
    """Place a tensor as plans say, once memory has room for what is as long as a mode. Collective."""
    if isinstance(source, DenseSource):
        check_lengths(source, setting, machine.comm)
        return DenseOperator(source, machine, setting)
    return placed_sparse(source, machine, setting, budget)


def placed_sparse(source: Source, machine: Machine, setting: Setting, budget: Budget | None) -> SparseOperator:
    check_lengths(source, setting, machine.comm)
    return SparseOperator(source, machine, setting, budget)


def decomposition(
    source: AnySource,
    rank: int,
    machine: Machine,
    options: Options,
    budget: Budget | None = None,
    constraints: Constraints = NONE,
) -> als.CpAls:
    """Place a tensor and return the method that decomposes it, without factor matrices yet. Collective."""
    solving = als.solving_bytes(machine, options.dtype, len(source.shape), constraints)
    setting = setting_for(source, rank, machine, options, solving)
    return als.CpAls(_placed(source, machine, setting, budget), constraints)


def refuse_dense(source: AnySource) -> Source:
    """Raise `InputError` if a tensor is dense: its zeros are no absent counts."""
    if isinstance(source, DenseSource):
        raise InputError("a dense tensor: loss 'poisson' (CP-APR) takes sparse ones alone", path=source.path)
    return source


def refuse_negative(source: Source, comm: Comm) -> None:
    """Raise `InputError` if a tensor has negative values, which a Poisson model has not. Collective."""
    if source.value_range.low >= 0:
        return

    def told() -> None:
        cause = f"a value is {source.value_range.low:g}: counts are not negative (loss 'poisson')"
        raise InputError(cause, path=source.path, line=first_negative(source.path))

    on_root(comm, told)


def counts(
    source: AnySource, rank: int, machine: Machine, options: Options, asked: Poisson, budget: Budget | None = None
) -> apr.CpApr:
    """Place a tensor of counts and return the method that decomposes it, without factor matrices yet. Collective.

    Raises
    ------
    InputError
        If a value is negative, or the device does not have the method.
    """
    source = refuse_dense(source)
    refuse_negative(source, machine.comm)
    solving = apr.solving_bytes(machine, asked, len(source.shape))
    setting = setting_for(source, rank, machine, options, solving, asked)
    return apr.CpApr(placed_sparse(source, machine, setting, budget), asked)


def begin(method: Method, source: Described, seed: int = 0, init: Init | None = None) -> None:
    """Put the factor matrices to start from in place, as the method wants them. Collective."""
    operator = method.operator
    comm, dtype = operator.machine.comm, operator.options.dtype
    found = method.found if isinstance(method, Tucker) else None
    if isinstance(method, Tucker) and (found is not None or (isinstance(init, str) and init == "random")):
        init = None
    if found is not None:
        factors = list(found)
    else:
        factors = initial_factors(source, operator.ranks, comm, dtype, seed, init)
    how = comm.bcast(init if init is None or isinstance(init, str) else "matrices")
    for mode, factor in enumerate(together(comm, lambda: method.started(factors, how))):
        operator.set_factor(mode, factor)


def start(operator: Operator, source: Described, seed: int = 0, init: Init | None = None) -> None:
    """Put factor matrices in place as they are: random ones, or those given. Collective."""
    rank, comm, dtype = operator.ranks[0], operator.machine.comm, operator.options.dtype
    for mode, factor in enumerate(initial_factors(source, rank, comm, dtype, seed, init, as_is=True)):
        operator.set_factor(mode, factor)


@contextmanager
def watched(comm: Comm, deadline: float | None) -> Iterator[list[Callable[[], object]]]:
    """End the job if a call of the Python interface does not go on; give the list of what to call then. Collective.

    Afterwards the caller's linear algebra has as many threads as before.
    """
    with callers_blas(), _watched(comm, deadline) as aborts:
        yield aborts


@contextmanager
def _watched(comm: Comm, deadline: float | None) -> Iterator[list[Callable[[], object]]]:
    if comm.size == 1 and deadline is None:  # nobody to wait for, and perhaps a notebook that is not to be ended
        yield []
    else:
        with HERE.limited(deadline or LOADING_SECONDS), Watchdog(comm, deadline) as watchdog:
            yield watchdog.aborts


@contextmanager
def opened(tensor: Tensor, comm: Comm, options: Options, deadline: float | None) -> Iterator[tuple[Machine, AnySource]]:
    """Bring up what a call of the Python interface computes with, and open its tensor; see `watched`. Collective."""
    with watched(comm, deadline) as aborts:
        machine = bring_up(options, comm)
        aborts.append(machine.exchange.abort)
        with STAGES.of("read"):
            source = open_tensor(tensor, machine, options)
        yield machine, source


class Planned(Protocol):
    """What is placed on devices by a plan."""

    @property
    def plan(self) -> Any:
        """Has `device_bytes`, by use, and `host_bytes`."""


class Session(NamedTuple):
    """What a command line runs in: its ranks, who asks it to stop, and what ends it if it hangs."""

    comm: Comm
    stop: StopRequest
    watchdog: Watchdog


class Job:
    """A run of a verb; a context manager."""

    def __init__(self, request: Request, session: Session) -> None:
        self.request, self.comm, self._aborts = request, session.comm, session.watchdog.aborts
        self.metrics, self.outputs, self.display = Metrics(), Outputs(), Display()
        self._room, self._began, self._budget = 0, time.perf_counter(), Budget()
        STAGES.collect()  # of calls before

    def __enter__(self) -> Job:
        """Check what can be known before the tensor is read, claim what will be written, bring up the device."""
        try:
            self.place = on_root(self.comm, self._claim)
            self.machine = bring_up(self.request.options, self.comm)
        except BaseException:
            self._let_go()
            raise
        self._aborts.append(self.machine.exchange.abort)
        self._resting = resident_bytes()
        self._room = self.request.options.device_memory or self.machine.device.memory(self.comm.local_size)
        self.display = display(self.comm.rank, self.request.quiet)
        return self

    def _claim(self) -> Path | None:
        self.request.check()
        place = self.request.claim(self.outputs)
        self.metrics = self.request.open_metrics()  # perhaps in a folder that has just been made for the result
        return place

    def _let_go(self) -> None:
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

    def open(self) -> AnySource:
        """Open the tensor and say what it is."""
        request = self.request
        room, verify = room_of(self.machine, request.options), not request.no_verify
        with STAGES.of("read"):
            telling = self.display.rows if is_table(request.tensor, request.form) else self.display.reading
            source = open_path(request.tensor, self.comm, telling, verify, request.form, room)
        self.display.note(source_line(Path(request.tensor).name, source))
        return source

    def budget(self, repeats: int) -> Budget:
        """Return what may be spent on choosing kernels, where each mode will be computed so many times at most."""
        self._budget = Budget(repeats, self._began)
        return self._budget

    def say_machine(self) -> None:
        """Say what the tensor was placed on. Collective."""
        devices = self.comm.allgather(self.machine.device.description)
        ranks = f"{self.comm.size} rank{'s' * (self.comm.size > 1)}: {', '.join(dict.fromkeys(devices))}"
        over = f"; exchange over {self.machine.exchange.name}" if self.comm.size > 1 else ""
        self.display.note(f"{ranks}{over}; {self.request.options.precision}")

    def begin(self, operator: Placed, source: Described, rank: int | list[int] | None = None) -> None:
        """Say in the metrics what will run: nothing is left to be refused."""
        mine = operator.plan.planned_bytes, self.machine.device.description, operator.kernels, self._budget.spent
        planned, devices, kernels, choosing = zip(*self.comm.allgather(mine), strict=True)
        self.metrics.event(
            "start", tensor=str(self.request.tensor), shape=source.shape, nonzeros=source.nnz, norm=source.norm,
            rank=operator.ranks[0] if rank is None else rank, ranks=self.comm.size, devices=devices, kernels=kernels,
            choosing=choosing, options=asdict(operator.options), versions=versions(), planned_bytes=planned,
        )  # fmt: skip

    def memory_line(self, operator: Planned) -> str:
        """Return the memory used and planned, each of the rank that used most; collective."""
        used, plan = self.machine.device.peak_bytes(), operator.plan
        mine = {"host": (peak_resident_bytes() - self._resting, plan.host_bytes)}
        if used is not None:
            mine["device"] = used, sum(plan.device_bytes.values())
        by_rank = self.comm.allgather(mine)
        self.metrics.event("memory", used_and_planned_bytes=by_rank)
        return text.memory_line(by_rank)

    def tell_stages(self) -> None:
        """Say in the metrics how long what is done once has taken, by stage, on its slowest rank. Collective."""
        by_rank = self.comm.allgather(STAGES.collect())
        seconds = {stage: max(each.get(stage, 0.0) for each in by_rank) for mine in by_rank for stage in mine}
        self.metrics.event("stages", seconds=seconds)


class Reporter:
    """Tells display and metrics of each iteration; see `Observer`."""

    def __init__(self, job: Job, max_iters: int) -> None:
        self._job, self._of = job, max_iters

    def __call__(self, method: Method, spans: Spans, seconds: float) -> None:
        metrics, state = self._job.metrics, method.state
        by_rank = self._job.comm.allgather(spans)
        self._job.display.iteration(state.iterations, self._of, text.iteration_facts(state, method.change()))
        split = metrics.spans(by_rank)
        metrics.iterations.append(seconds)
        latest = {name: numbers[-1] for name, numbers in state.series.items()}
        metrics.event("iteration", iteration=state.iterations, **latest, seconds=seconds, split=split)
