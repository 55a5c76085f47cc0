"""The four verbs of the command line, in terms of the library."""

from __future__ import annotations

import argparse
import json
import os
import statistics
import time
from pathlib import Path
from typing import Any

import numpy as np

from partitioner.jit import load_compiler
from partitioner.readers import read

from . import checkpoint, report
from .backend import Backend, choose
from .decomp import als
from .engine import Engine, Options
from .errors import EXIT_STOPPED, InputError
from .exchange import connect
from .initial import initial_factors
from .kruskal import KruskalTensor, write_npz
from .metrics import Metrics, peak_resident_bytes, resident_bytes, versions
from .mpi import Comm, on_root, together
from .placement import Plan, make_plan
from .progress import Display, display
from .source import Source, open_source

MODEL, RUN = "model.npz", "run.json"


class Run:
    """What the verbs share: the ranks, the display, the metrics, and the order in which things are checked."""

    def __init__(self, args: argparse.Namespace, comm: Comm) -> None:
        self.args, self.comm = args, comm
        self.display: Display = display(comm.rank, args.quiet)
        self.metrics = Metrics()
        self.backend: Backend = together(comm, lambda: choose(args.device, comm, args.threads))
        self.exchange = connect(self.backend, comm)
        load_compiler()
        self._resting = resident_bytes()

    def options(self) -> Options:
        """Return the engine's options as given on the command line."""
        args = self.args
        return Options(
            args.device,
            args.precision,
            args.placement,
            args.kernel,
            args.deterministic,
            args.device_memory,
            args.threads,
        )

    def open_metrics(self) -> None:
        """Open the metrics file; collective, so that a bad path ends all ranks."""
        path, append = self.args.metrics, getattr(self.args, "resume", False)

        def make() -> Metrics:
            if path is not None and not append:
                check_new(path, self.args.force)
            return Metrics(path, append)

        self.metrics = on_root(self.comm, make) or Metrics()

    def open(self) -> Source:
        """Open the tensor and say what it is."""
        source = open_source(self.args.tensor, self.comm, self.display.reading)
        facts = (source.shape, source.nnz, source.norm, source.duplicates, source.zeros)
        self.display.note(report.tensor_line(Path(self.args.tensor).name, *facts))
        return source

    def build(self, source: Source) -> Engine:
        """Make the engine and say what it runs on."""
        engine = Engine(source, self.args.rank, self.comm, self.options(), self.backend, self.exchange)
        devices = self.comm.allgather(engine.backend.description)
        text = f"{self.comm.size} rank{'s' * (self.comm.size > 1)}: {', '.join(dict.fromkeys(devices))}"
        over = f"; exchange over {engine.exchange.name}" if self.comm.size > 1 else ""
        self.display.note(f"{text}{over}; {self.args.precision}")
        planned = self.comm.allgather(engine.plan.device_bytes | {"host": engine.plan.host_bytes})
        self.metrics.event(
            "start", tensor=str(self.args.tensor), shape=source.shape, nonzeros=source.nnz, norm=source.norm,
            rank=engine.rank, ranks=self.comm.size, devices=devices, options=vars(engine.options),
            versions=versions(), planned_bytes=planned,
        )  # fmt: skip
        return engine

    def start(self, engine: Engine, source: Source) -> None:
        """Put the factor matrices to start from in place, and choose kernels."""
        args = self.args
        factors = initial_factors(source, args.rank, self.comm, engine.plan.dtype, args.seed, args.init)
        for mode, factor in enumerate(factors):
            engine.set_factor(mode, factor)
        engine.tune()
        self.metrics.event("kernels", kernels=self.comm.allgather(engine.kernels))

    def memory_line(self, engine: Engine) -> str:
        """Return the memory used and planned, each of the rank that used most; collective."""
        device = engine.backend.peak_bytes()
        mine = {"host": (peak_resident_bytes() - self._resting, engine.plan.host_bytes)}
        if device is not None:
            mine["device"] = device, sum(engine.plan.device_bytes.values())
        by_rank = self.comm.allgather(mine)
        self.metrics.event("memory", used_and_planned_bytes=by_rank)
        most = {place: max(ranks[place] for ranks in by_rank) for place in mine}
        texts = (
            f"{place} {report.human(used)} ({report.human(planned)} planned)" for place, (used, planned) in most.items()
        )
        return "memory of a rank: " + ", ".join(texts)


def cpd(args: argparse.Namespace, comm: Comm) -> int:
    """Decompose a tensor by CP-ALS."""
    run = Run(args, comm)
    together(comm, lambda: _check_counts(args))
    folder = _model_folder(args, comm)
    run.open_metrics()
    if args.checkpoint is not None:
        on_root(comm, lambda: _check_checkpoint_folder(args))
    source = run.open()
    engine = run.build(source)
    state = _start_or_resume(run, engine, source)
    seconds, stopped = _iterate(run, engine, state, source)
    memory = run.memory_line(engine)
    if comm.rank == 0:
        _write_model(run, folder, engine, als.model(engine, state), state, seconds)
    run.display.close()
    run.display.note(report.time_line(run.metrics.totals, seconds) + f"; {memory}")
    change = "converged" if state.converged else "stopped by a signal" if stopped else "not converged"
    fit = f"fit {state.fits[-1]:.6f}" if state.fits else "no fit"
    run.display.note(f"{fit} after {len(state.fits)} iterations ({change}); model in {folder / MODEL}")
    run.metrics.close()
    return EXIT_STOPPED if stopped else 0


def _check_counts(args: argparse.Namespace) -> None:
    if args.max_iters < 1:
        raise InputError(f"--max-iters {args.max_iters}: at least 1")
    if not args.tol >= 0:
        raise InputError(f"--tol {args.tol}: at least 0")
    if args.every < 1:
        raise InputError(f"--every {args.every}: at least 1")
    if args.resume and args.checkpoint is None:
        raise InputError("--resume needs --checkpoint DIR")


def _model_folder(args: argparse.Namespace, comm: Comm) -> Path:
    """Make the folder of the model before any work; the name is the user's, or one that does not exist yet."""

    def make() -> Path:
        folder = args.output or _fresh_name(Path(f"{tensor_stem(args.tensor)}-rank{args.rank}"))
        for name in (MODEL, RUN):
            check_new(folder / name, args.force)
        make_folder(folder)
        return Path(folder)

    folder = comm.bcast(on_root(comm, make))
    assert folder is not None
    return folder


def _fresh_name(wanted: Path) -> Path:
    number, name = 1, wanted
    while name.exists():
        number += 1
        name = wanted.with_name(f"{wanted.name}-{number}")
    return name


def tensor_stem(path: str | os.PathLike[str]) -> str:
    """Return a tensor's file name without the endings that say its format."""
    name = Path(path).resolve().name
    for ending in (".gz", ".tns", ".npz"):
        name = name.removesuffix(ending)
    return name


def _check_checkpoint_folder(args: argparse.Namespace) -> None:
    if not args.resume:
        check_new(args.checkpoint / checkpoint.FILE, args.force, "--resume goes on from it, --force replaces it")
    make_folder(args.checkpoint)


def _start_or_resume(run: Run, engine: Engine, source: Source) -> als.State:
    args, comm = run.args, run.comm
    found = together(comm, lambda: checkpoint.load(args.checkpoint)) if args.resume else None
    if found is None:
        run.start(engine, source)
        return als.State(np.ones(engine.rank))
    facts = checkpoint.facts_of(engine, source.nnz)
    together(comm, lambda: checkpoint.check(found, facts, args.checkpoint))
    for mode, factor in enumerate(found.factors):
        engine.set_factor(mode, factor)
    engine.tune()
    run.display.note(f"resumed after iteration {len(found.state.fits)} from {args.checkpoint}")
    return found.state


def _iterate(run: Run, engine: Engine, state: als.State, source: Source) -> tuple[float, bool]:
    """Run the iterations with their reports and checkpoints; return seconds, and whether a signal ended them."""
    args, comm = run.args, run.comm
    facts = checkpoint.facts_of(engine, source.nnz) | {"seed": args.seed}
    stopped, saved = False, len(state.fits)
    begin = last = time.perf_counter()
    for _ in als.iterate(engine, state, args.max_iters, args.tol):
        by_rank = comm.allgather((engine.clock.collect(), bool(args.stop_signals)))
        now = time.perf_counter()
        number, change = len(state.fits), state.fits[-1] - state.fits[-2] if len(state.fits) > 1 else None
        run.display.iteration(number, args.max_iters, state.fits[-1], change)
        split = run.metrics.spans([spans for spans, _ in by_rank])
        run.metrics.event("iteration", iteration=number, fit=state.fits[-1], seconds=now - last, split=split)
        last = now
        stopped = any(flag for _, flag in by_rank)
        if args.checkpoint is not None and (stopped or number % args.every == 0):
            _checkpoint(args.checkpoint, engine, state, facts)
            saved = number
        if stopped:
            break
    if args.checkpoint is not None and saved < len(state.fits):
        _checkpoint(args.checkpoint, engine, state, facts)
    return time.perf_counter() - begin, stopped


def _checkpoint(folder: Path, engine: Engine, state: als.State, facts: dict[str, Any]) -> None:
    together(engine.comm, lambda: checkpoint.save(folder, engine, state, facts))


def _write_model(
    run: Run, folder: Path, engine: Engine, model: KruskalTensor, state: als.State, seconds: float
) -> None:
    model.save(folder / MODEL)
    record = {
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
    write_text(folder / RUN, json.dumps(record, indent=1) + "\n")
    run.metrics.event("end", **record)


def mttkrp(args: argparse.Namespace, comm: Comm) -> int:
    """Compute MTTKRPs from the factor matrices that a decomposition would start from."""
    run = Run(args, comm)
    if args.output is not None:
        on_root(comm, lambda: check_new(args.output, args.force))
        on_root(comm, lambda: probe_folder(args.output.parent))
    run.open_metrics()
    source = run.open()
    modes = together(comm, lambda: _modes(args.mode, len(source.shape)))
    if args.repeat < 1:
        raise InputError(f"--repeat {args.repeat}: at least 1")
    engine = run.build(source)
    run.start(engine, source)
    results = {}
    for mode in modes:
        seconds = []
        for _ in range(args.repeat):
            begin = time.perf_counter()
            rows = engine.mttkrp(mode)
            engine.backend.synchronize()
            seconds.append(max(comm.allgather(time.perf_counter() - begin)))
            split = run.metrics.spans(comm.allgather(engine.clock.collect()))
            run.metrics.event("mttkrp", mode=mode, seconds=seconds[-1], split=split)
        whole = engine.gathered(mode, rows)
        median = statistics.median(seconds)
        rate = source.nnz / median / 1e6
        norm = np.linalg.norm(whole.astype(np.float64))
        run.display.note(f"mode {mode}: {median * 1e3:.3f} ms, {rate:,.0f} million nonzeros/s, norm {norm:.9g}")
        if comm.rank == 0 and args.output is not None:
            results[f"mode_{mode}"] = whole
    if args.output is not None:
        on_root(comm, lambda: write_npz(args.output, results))
    run.display.close()
    run.display.note(run.memory_line(engine))
    run.metrics.close()
    return 0


def _modes(text: str, order: int) -> list[int]:
    if text == "all":
        return list(range(order))
    if not text.isdigit() or int(text) >= order:
        raise InputError(f"--mode {text}: expected all or a mode from 0 to {order - 1}")
    return [int(text)]


def plan(args: argparse.Namespace, comm: Comm) -> int:
    """Say what a run would need and how it would be balanced; nothing is allocated or computed."""
    run = Run(args, comm)
    ranks = args.ranks or comm.size
    if ranks < 1:
        raise InputError(f"--ranks {ranks}: at least 1")
    options = run.options()
    source = run.open()
    backend = run.backend
    cuts = [source.cut(mode, ranks) for mode in range(len(source.shape))]

    def make(part: int) -> Plan:
        return make_plan(
            cuts,
            part,
            args.rank,
            options.dtype,
            backend,
            placement=options.placement,
            memory=options.device_memory,
            loading=source.loading(ranks, options.dtype),
        )

    plans = together(comm, lambda: [make(part) for part in range(ranks)])
    run.display.close()
    if comm.rank == 0:
        print(report.plan_text(plans, backend.description), flush=True)
    return 0


def info(args: argparse.Namespace, comm: Comm) -> int:
    """Describe a tensor."""
    run = Run(args, comm)

    def describe() -> str:
        tensor = read(args.tensor, progress=run.display.reading)
        facts = (tensor.shape, tensor.nnz, tensor.norm(), tensor.duplicates, tensor.zeros)
        return "\n".join(
            [
                report.tensor_line(Path(args.tensor).name, *facts),
                f"values from {tensor.values.min():g} to {tensor.values.max():g}; "
                f"{tensor.duplicates:,} duplicates summed, {tensor.zeros:,} zeros dropped",
                report.skew_table(report.skew(tensor)),
            ]
        )

    text = on_root(comm, describe)
    run.display.close()
    if comm.rank == 0:
        print(text, flush=True)
    return 0


def check_new(path: Path, force: bool, advice: str = "--force replaces it") -> None:
    """Refuse to overwrite a file."""
    if path.exists() and not force:
        raise InputError(f"exists already; {advice}", path=path)


def make_folder(folder: Path) -> None:
    """Make a folder, and find out now whether files can be written there."""
    try:
        folder.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise InputError(f"cannot make the folder: {error.strerror}", path=folder) from None
    probe_folder(folder)


def probe_folder(folder: Path) -> None:
    """Raise `InputError` unless a file can be written in `folder`."""
    probe = folder / f".amped-{os.getpid()}.probe"
    try:
        probe.write_bytes(b"amped")
        probe.unlink()
    except OSError as error:
        raise InputError(f"cannot write there: {error.strerror}", path=folder) from None


def write_text(path: Path, text: str) -> None:
    """Write a file that appears under its name only when it is whole."""
    draft = path.with_name(f".{path.name}.{os.getpid()}.part")
    try:
        draft.write_text(text)
        os.replace(draft, path)
    except OSError as error:
        raise InputError(f"cannot write: {error.strerror}", path=path) from None
    finally:
        draft.unlink(missing_ok=True)
