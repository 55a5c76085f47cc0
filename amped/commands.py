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
from collections.abc import Sequence
from contextlib import closing
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from partitioner.shards import Cut

from . import checkpoint
from .assembly import Job
from .decomp import als
from .errors import InputError
from .files import check_file, check_folder, factors_in, make_folders, read_npz, write_npz, write_text
from .models.kruskal import KruskalTensor
from .operators.placement import check_rank, make_plan
from .operators.prediction import Speeds, forecast
from .operators.source import Source, open_source
from .operators.sparse import Engine
from .parallel.mpi import Comm, SingleComm, on_root, share, together
from .parallel.pace import first_limit, paced
from .report import text as report
from .report.metrics import Metrics, versions
from .report.progress import Display, display, say

MODEL, RUN = "model.npz", "run.json"


def cpd(args: argparse.Namespace, comm: Comm) -> int:
    """Decompose a tensor by CP-ALS."""
    folder = comm.bcast(args.output or _fresh_name(Path(f"{tensor_stem(args.tensor)}-rank{args.rank}")))
    with Job(args, comm, lambda: _check_cpd(args, folder)) as job:
        source = job.open()
        speeds = job.speeds(source)
        engine = job.build(source)
        foreseen = comm.allgather(forecast(engine.plan, speeds, engine.backend))
        facts = checkpoint.facts_of(source, engine.rank) if args.checkpoint is not None else {}
        state = _start_or_resume(job, engine, source, facts)
        on_root(comm, lambda: make_folders(f for f in (folder, args.checkpoint) if f is not None))
        job.begin(engine, source)
        expected = max(each.seconds for each in foreseen)
        seconds = _iterate(job, engine, state, facts, expected)
        record = _record(job, engine, state, seconds)
        if args.stop.signal is not None and args.checkpoint is not None:  # that command will write the model
            result = f"checkpoint in {args.checkpoint}: the same command with --resume goes on"
        else:
            on_root(comm, lambda: _write_model(folder, als.model(engine, state), record))
            result = f"model in {folder / MODEL}"
        memory = job.memory_line(engine)
        job.metrics.event("end", **record)
        job.display.close()
        job.display.note(report.time_line(job.metrics.totals, seconds) + f"; {memory}")
        job.display.note(report.forecast_line(foreseen, True, job.metrics.iterations))
        job.display.note(f"{report.end_line(state, args.stop.signal)}; {result}")
    code: int = args.stop.exit_code
    return code


def _check_cpd(args: argparse.Namespace, folder: Path) -> None:
    if args.max_iters < 1:
        raise InputError(f"--max-iters {args.max_iters}: at least 1")
    if not args.tol >= 0:
        raise InputError(f"--tol {args.tol}: at least 0")
    if args.every is not None and args.every < 1:
        raise InputError(f"--every {args.every}: at least 1")
    for flag in ("every", "resume"):
        if getattr(args, flag) and args.checkpoint is None:
            raise InputError(f"--{flag} needs --checkpoint DIR")
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
        checkpoint.check_free(args.checkpoint)


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


def _start_or_resume(job: Job, engine: Engine, source: Source, facts: dict[str, Any]) -> als.State:
    args, comm = job.args, job.comm

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
        job.start(engine, source)
        return als.State(np.ones(engine.rank))
    state, args.seed = kept
    for mode in range(engine.order):
        engine.set_factor(mode, share(comm, found.factors[mode] if found else None))
    job.display.note(f"resumed after {report.progress(state)} from {args.checkpoint}")
    return state


def _iterate(job: Job, engine: Engine, state: als.State, facts: dict[str, Any], expected: float) -> float:
    """Run the iterations, of `expected` seconds, with their reports and checkpoints; return seconds in all."""
    args, comm = job.args, job.comm
    saving = checkpoint.Saver(args.checkpoint, engine, state, facts, args.seed)
    steps = als.iterate(engine, state, args.max_iters, args.tol, lambda: args.stop.agreed(comm))
    begin = last = time.perf_counter()
    with saving as saver, args.stop.listening():
        for _ in paced(steps, len(state.fits), first_limit(expected), args.deadline):
            by_rank = comm.allgather(engine.clock.collect())
            now = time.perf_counter()
            number, change = len(state.fits), state.fits[-1] - state.fits[-2] if len(state.fits) > 1 else None
            job.display.iteration(number, args.max_iters, state.fits[-1], change)
            split = job.metrics.spans(by_rank)
            job.metrics.iterations.append(now - last)
            job.metrics.event("iteration", iteration=number, fit=state.fits[-1], seconds=now - last, split=split)
            last = now
            if args.stop.agreed(comm):
                break
            if number % (args.every or 1) == 0:
                saver.save()
        saver.finish()
    return time.perf_counter() - begin


def _record(job: Job, engine: Engine, state: als.State, seconds: float) -> dict[str, Any]:
    return {
        "fits": state.fits,
        "iterations": len(state.fits),
        "converged": state.converged,
        "seconds": seconds,
        "ranks": job.comm.size,
        "device": engine.backend.name,
        "device_description": engine.backend.description,
        "precision": job.args.precision,
        "seed": job.args.seed,
        "init": None if job.args.init is None else str(job.args.init),
        "tensor": str(job.args.tensor),
        "rank": engine.rank,
        "kernels": engine.kernels,
        "seconds_by_kind": dict(job.metrics.totals),
        "versions": versions(),
    }


def _write_model(folder: Path, model: KruskalTensor, record: dict[str, Any]) -> None:
    model.save(folder / MODEL)
    write_text(folder / RUN, json.dumps(record, indent=1) + "\n")


def mttkrp(args: argparse.Namespace, comm: Comm) -> int:
    """Compute MTTKRPs from the factor matrices that a decomposition would start from."""
    with Job(args, comm, lambda: _check_mttkrp(args)) as job:
        source = job.open()
        modes = together(comm, lambda: _modes(args.mode, len(source.shape)))
        engine = job.build(source)
        job.start(engine, source)
        job.begin(engine, source)
        results = {}
        for mode in modes:
            whole = _timed_mttkrp(job, engine, mode, source.nnz)
            if comm.rank == 0 and args.output is not None:
                results[f"mode_{mode}"] = whole
        if args.output is not None:
            on_root(comm, lambda: write_npz(args.output, results))
        job.display.note(job.memory_line(engine))
    return 0


def _check_mttkrp(args: argparse.Namespace) -> None:
    if args.repeat < 1:
        raise InputError(f"--repeat {args.repeat}: at least 1")
    _check_start(args)
    if args.output is not None:
        check_file(args.output, args.force)
        if not args.output.parent.is_dir():
            raise InputError("its folder does not exist", path=args.output)


def _timed_mttkrp(job: Job, engine: Engine, mode: int, nonzeros: int) -> NDArray[Any]:
    """Compute one mode as often as asked, report the median time, and return the whole result."""
    seconds = []
    for _ in range(job.args.repeat):
        begin = time.perf_counter()
        rows = engine.mttkrp(mode)
        engine.synchronize()
        seconds.append(max(job.comm.allgather(time.perf_counter() - begin)))
        split = job.metrics.spans(job.comm.allgather(engine.clock.collect()))
        job.metrics.event("mttkrp", mode=mode, seconds=seconds[-1], split=split)
    whole = engine.gathered(mode, rows)
    engine.clock.collect()
    median = statistics.median(seconds)
    norm = np.linalg.norm(whole.astype(np.float64))
    rate = nonzeros / median / 1e6
    job.display.note(f"mode {mode}: {median * 1e3:.3f} ms, {rate:,.0f} million nonzeros/s, norm {norm:.9g}")
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
    with Job(args, comm, lambda: _check_plan(args.rank, ranks)) as job:
        source = job.open()
        cuts = [source.cut(mode, ranks) for mode in range(len(source.shape))]
        speeds = job.speeds(source)
        job.open_metrics()
        text = on_root(comm, lambda: _plans(job, source, cuts, ranks, speeds))
    if text is not None:
        say(text)
    return 0


def _plans(job: Job, source: Source, cuts: Sequence[Cut], ranks: int, speeds: Speeds) -> str:
    """Make the plans of so many ranks; record them, and return them as text."""
    options, backend, here = job.options, job.backend, ranks == job.comm.size
    loading = source.loading(ranks, options.dtype, backend.name == "cpu")
    plans = [
        make_plan(
            cuts, part, job.args.rank, options.dtype, source.value_range, backend, loading,
            kernel=options.kernel, deterministic=options.deterministic, gather=options.gather,
            placement=options.placement, memory=options.device_memory,
            local_ranks=job.comm.local_size if here else ranks,  # other ranks than those started: all on one node
        )
        for part in range(ranks)
    ]  # fmt: skip
    foreseen = [forecast(each, speeds, backend) for each in plans]
    job.metrics.event(
        "plan", tensor=str(job.args.tensor), shape=source.shape, nonzeros=source.nnz, rank=job.args.rank, ranks=ranks,
        options=vars(options), planned_bytes=[p.planned_bytes for p in plans], seconds=[f.seconds for f in foreseen],
    )  # fmt: skip
    return report.plan_text(plans, backend) + "\n" + report.forecast_line(foreseen, here)


def _check_plan(rank: int, ranks: int) -> None:
    check_rank(rank)
    if ranks < 1:
        raise InputError(f"--ranks {ranks}: at least 1")


def info(args: argparse.Namespace, comm: Comm) -> int:
    """Describe a tensor. Flags that say how to compute change nothing here."""
    with display(comm.rank, args.quiet) as shown:
        text = on_root(comm, lambda: _description(args, shown))
    if text is not None:
        say(text)
    return 0


def _description(args: argparse.Namespace, shown: Display) -> str:
    if args.metrics is not None:
        check_file(args.metrics, args.force)
    source = open_source(args.tensor, SingleComm(), shown.reading, not args.no_verify)
    tensor = source.tensor()
    assert tensor is not None
    modes, (low, high, _) = report.skew(tensor), source.value_range
    repaired = {"duplicates": source.duplicates, "zeros": source.zeros}
    with closing(Metrics(args.metrics)) as metrics:
        facts = {"shape": source.shape, "nonzeros": source.nnz, "norm": source.norm, **repaired}
        metrics.event("info", tensor=str(args.tensor), **facts, values=(low, high), modes=modes)
    lines = [
        report.tensor_line(args.tensor.name, source.shape, source.nnz, source.norm, **repaired),
        f"values from {low:g} to {high:g}; {source.duplicates:,} duplicates summed, {source.zeros:,} zeros dropped",
        report.skew_table(modes),
    ]
    return "\n".join(lines)
