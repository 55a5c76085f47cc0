"""The four verbs of the command line, in terms of the library.

A verb checks all that can be known before the tensor is read, reads it, builds the engine, and only then makes files
or folders: a run that is refused leaves everything as it was.
"""

from __future__ import annotations

import argparse
import json
import os
import statistics
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from partitioner.jit import load_compiler
from partitioner.readers import read

from . import checkpoint, report
from .backend import choose
from .decomp import als
from .engine import Engine, Options
from .errors import InputError
from .exchange import connect
from .files import check_file, check_folder, factors_in, make_folders, read_npz, write_npz, write_text
from .initial import initial_factors
from .kruskal import KruskalTensor
from .metrics import Metrics, peak_resident_bytes, resident_bytes, versions
from .mpi import Comm, on_root, share, together
from .pace import first_limit, paced
from .placement import Plan, check_rank, make_plan
from .prediction import Speeds, forecast, measure
from .progress import Display, display, say
from .source import Source, open_source

MODEL, RUN = "model.npz", "run.json"


class Run:
    """What the verbs share: the ranks, the device, the display and the metrics; a context manager."""

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

    def __enter__(self) -> Run:
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

    def begin(self, engine: Engine, source: Source) -> None:
        """Open the metrics: nothing is left to be refused."""
        path, append = self.args.metrics, getattr(self.args, "resume", False)
        self.metrics = on_root(self.comm, lambda: Metrics(path, append)) or self.metrics
        everyone = (
            engine.plan.device_bytes | {"host": engine.plan.host_bytes},
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


def cpd(args: argparse.Namespace, comm: Comm) -> int:
    """Decompose a tensor by CP-ALS."""
    folder = comm.bcast(args.output or _fresh_name(Path(f"{tensor_stem(args.tensor)}-rank{args.rank}")))
    with Run(args, comm, lambda: _check_cpd(args, folder)) as run:
        source = run.open()
        speeds = run.speeds(source)
        engine = run.build(source)
        foreseen = comm.allgather(forecast(engine.plan, speeds, engine.backend))
        facts = checkpoint.facts_of(source, engine.rank) if args.checkpoint is not None else {}
        state = _start_or_resume(run, engine, source, facts)
        on_root(comm, lambda: make_folders(f for f in (folder, args.checkpoint) if f is not None))
        run.begin(engine, source)
        expected = max(each.seconds for each in foreseen)
        seconds = _iterate(run, engine, state, facts, expected)
        record = _record(run, engine, state, seconds)
        if args.stop.signal is not None and args.checkpoint is not None:  # that command will write the model
            result = f"checkpoint in {args.checkpoint}: the same command with --resume goes on"
        else:
            on_root(comm, lambda: _write_model(folder, als.model(engine, state), record))
            result = f"model in {folder / MODEL}"
        memory = run.memory_line(engine)
        run.metrics.event("end", **record)
        run.display.close()
        run.display.note(report.time_line(run.metrics.totals, seconds) + f"; {memory}")
        run.display.note(report.forecast_line(foreseen, True, run.metrics.iterations))
        run.display.note(f"{report.end_line(state, args.stop.signal)}; {result}")
    code: int = args.stop.exit_code
    return code


def _check_cpd(args: argparse.Namespace, folder: Path) -> None:
    if args.max_iters < 1:
        raise InputError(f"--max-iters {args.max_iters}: at least 1")
    if not args.tol >= 0:
        raise InputError(f"--tol {args.tol}: at least 0")
    if args.every < 1:
        raise InputError(f"--every {args.every}: at least 1")
    if args.resume and args.checkpoint is None:
        raise InputError("--resume needs --checkpoint DIR")
    _check_start(args)
    # Going on with a run replaces what it wrote when it last ended.
    there = checkpoint.names_in(args.checkpoint) if args.checkpoint is not None else []
    for name in (MODEL, RUN):
        check_file(folder / name, args.force or (args.resume and bool(there)))
    if there and not (args.resume or args.force):
        advice = "exists already; --resume goes on from it, --force replaces it"
        raise InputError(advice, path=args.checkpoint / there[0])
    if args.checkpoint is not None:
        check_folder(args.checkpoint)


def _check_start(args: argparse.Namespace) -> None:
    check_rank(args.rank)
    if args.seed < 0:
        raise InputError(f"--seed {args.seed}: at least 0")
    if args.init not in (None, "nvecs"):
        factors_in(read_npz(args.init), args.init)


def _fresh_name(wanted: Path) -> Path:
    number, name = 1, wanted
    while name.exists():
        number += 1
        name = wanted.with_name(f"{wanted.name}-{number}")
    return name


def tensor_stem(path: str | os.PathLike[str]) -> str:
    """Return a tensor's file name without the endings that say its format."""
    name = Path(os.path.abspath(path)).name
    for ending in (".gz", ".tns", ".npz"):
        name = name.removesuffix(ending)
    return name


def _start_or_resume(run: Run, engine: Engine, source: Source, facts: dict[str, Any]) -> als.State:
    args, comm = run.args, run.comm

    def load() -> checkpoint.Checkpoint | None:
        if not args.resume:
            return None
        found, damages = checkpoint.load_newest(args.checkpoint, not args.no_verify)
        if found is not None:
            checkpoint.check(found, facts, args.checkpoint)
            for damage in damages:
                print(f"amped: {damage}; going on from {found.name}", file=sys.stderr)
        return found

    found = on_root(comm, load)  # rank 0's: the others may see another file system
    kept = comm.bcast(None if found is None else (found.state, found.seed))
    if kept is None:
        run.start(engine, source)
        return als.State(np.ones(engine.rank))
    state, args.seed = kept
    for mode in range(engine.order):
        engine.set_factor(mode, share(comm, found.factors[mode] if found else None))
    run.display.note(f"resumed after {report.progress(state)} from {args.checkpoint}")
    return state


def _iterate(run: Run, engine: Engine, state: als.State, facts: dict[str, Any], expected: float) -> float:
    """Run the iterations, of `expected` seconds, with their reports and checkpoints; return seconds in all."""
    args, comm = run.args, run.comm
    saver = checkpoint.Saver(args.checkpoint, engine, state, facts, args.seed)
    steps = als.iterate(engine, state, args.max_iters, args.tol, lambda: args.stop.agreed(comm))
    begin = last = time.perf_counter()
    with args.stop.listening():
        for _ in paced(steps, len(state.fits), first_limit(expected), args.deadline):
            by_rank = comm.allgather(engine.clock.collect())
            now = time.perf_counter()
            number, change = len(state.fits), state.fits[-1] - state.fits[-2] if len(state.fits) > 1 else None
            run.display.iteration(number, args.max_iters, state.fits[-1], change)
            split = run.metrics.spans(by_rank)
            run.metrics.iterations.append(now - last)
            run.metrics.event("iteration", iteration=number, fit=state.fits[-1], seconds=now - last, split=split)
            last = now
            if args.stop.agreed(comm):
                break
            if number % args.every == 0:
                saver.save()
        saver.finish()
    return time.perf_counter() - begin


def _record(run: Run, engine: Engine, state: als.State, seconds: float) -> dict[str, Any]:
    return {
        "fits": state.fits,
        "iterations": len(state.fits),
        "converged": state.converged,
        "seconds": seconds,
        "ranks": run.comm.size,
        "device": engine.backend.name,
        "device_description": engine.backend.description,
        "precision": run.args.precision,
        "seed": run.args.seed,
        "init": None if run.args.init is None else str(run.args.init),
        "tensor": str(run.args.tensor),
        "rank": engine.rank,
        "kernels": engine.kernels,
        "seconds_by_kind": dict(run.metrics.totals),
        "versions": versions(),
    }


def _write_model(folder: Path, model: KruskalTensor, record: dict[str, Any]) -> None:
    model.save(folder / MODEL)
    write_text(folder / RUN, json.dumps(record, indent=1) + "\n")


def mttkrp(args: argparse.Namespace, comm: Comm) -> int:
    """Compute MTTKRPs from the factor matrices that a decomposition would start from."""
    with Run(args, comm, lambda: _check_mttkrp(args)) as run:
        source = run.open()
        modes = together(comm, lambda: _modes(args.mode, len(source.shape)))
        engine = run.build(source)
        run.start(engine, source)
        run.begin(engine, source)
        results = {}
        for mode in modes:
            whole = _timed_mttkrp(run, engine, mode, source.nnz)
            if comm.rank == 0 and args.output is not None:
                results[f"mode_{mode}"] = whole
        if args.output is not None:
            on_root(comm, lambda: write_npz(args.output, results))
        run.display.note(run.memory_line(engine))
    return 0


def _check_mttkrp(args: argparse.Namespace) -> None:
    if args.repeat < 1:
        raise InputError(f"--repeat {args.repeat}: at least 1")
    _check_start(args)
    if args.output is not None:
        check_file(args.output, args.force)
        if not args.output.parent.is_dir():
            raise InputError("its folder does not exist", path=args.output)


def _timed_mttkrp(run: Run, engine: Engine, mode: int, nonzeros: int) -> NDArray[Any]:
    """Compute one mode as often as asked, report the median time, and return the whole result."""
    seconds = []
    for _ in range(run.args.repeat):
        begin = time.perf_counter()
        rows = engine.mttkrp(mode)
        engine.synchronize()
        seconds.append(max(run.comm.allgather(time.perf_counter() - begin)))
        split = run.metrics.spans(run.comm.allgather(engine.clock.collect()))
        run.metrics.event("mttkrp", mode=mode, seconds=seconds[-1], split=split)
    whole = engine.gathered(mode, rows)
    engine.clock.collect()
    median = statistics.median(seconds)
    norm = np.linalg.norm(whole.astype(np.float64))
    rate = nonzeros / median / 1e6
    run.display.note(f"mode {mode}: {median * 1e3:.3f} ms, {rate:,.0f} million nonzeros/s, norm {norm:.9g}")
    return whole


def _modes(text: str, order: int) -> list[int]:
    if text == "all":
        return list(range(order))
    if not (text.isascii() and text.isdigit()) or int(text) >= order:
        raise InputError(f"--mode {text}: expected all or a mode from 0 to {order - 1}")
    return [int(text)]


def plan(args: argparse.Namespace, comm: Comm) -> int:
    """Say what a run would need and take, and how it would be balanced; nothing is allocated for it or computed."""
    ranks = comm.size if args.ranks is None else args.ranks
    with Run(args, comm, lambda: _check_plan(args.rank, ranks)) as run:
        source = run.open()
        cuts = [source.cut(mode, ranks) for mode in range(len(source.shape))]
        loading = source.loading(ranks, run.options.dtype, run.backend.name == "cpu")

        options = run.options

        def make(part: int) -> Plan:
            where = cuts, part, args.rank, options.dtype, source.value_range, run.backend, loading
            # A plan for other ranks than those started is a plan for one node.
            sharing = comm.local_size if ranks == comm.size else ranks
            memory = options.device_memory
            return make_plan(
                *where, kernel=options.kernel, deterministic=options.deterministic, gather=options.gather,
                placement=options.placement, memory=memory, local_ranks=sharing,
            )  # fmt: skip

        speeds = run.speeds(source)

        def describe() -> str:
            plans = [make(part) for part in range(ranks)]
            foreseen = [forecast(each, speeds, run.backend) for each in plans]
            return report.plan_text(plans, run.backend) + "\n" + report.forecast_line(foreseen, ranks == comm.size)

        text = on_root(comm, describe)
    if text is not None:
        say(text)
    return 0


def _check_plan(rank: int, ranks: int) -> None:
    check_rank(rank)
    if ranks < 1:
        raise InputError(f"--ranks {ranks}: at least 1")


def info(args: argparse.Namespace, comm: Comm) -> int:
    """Describe a tensor."""
    with display(comm.rank, args.quiet) as shown:
        text = on_root(comm, lambda: _description(args.tensor, shown))
    if text is not None:
        say(text)
    return 0


def _description(path: Path, shown: Display) -> str:
    tensor = read(path, progress=shown.reading)
    facts = (tensor.shape, tensor.nnz, tensor.norm(), tensor.duplicates, tensor.zeros)
    lines = [
        report.tensor_line(path.name, *facts),
        f"values from {tensor.values.min():g} to {tensor.values.max():g}; "
        f"{tensor.duplicates:,} duplicates summed, {tensor.zeros:,} zeros dropped",
        report.skew_table(report.skew(tensor)),
    ]
    return "\n".join(lines)
