"""The verbs of the command line, in terms of the library.

A verb checks all that can be known before the tensor is read, reads it, places it, and only then makes files or
folders: a run that is refused leaves everything as it was.
"""

from __future__ import annotations

import json
import os
import statistics
import sys
import time
from collections.abc import Sequence
from contextlib import closing
from dataclasses import asdict, replace
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from partitioner.flags import shown
from partitioner.shards import Cut

from . import checkpoint, requests
from .assembly import Job, Reporter, Session, check_room, decomposition, place, setting_for, solving_bytes, start
from .decomp import driver
from .decomp.als import CpAls
from .errors import InputError
from .files import make_folders, write_npz, write_text
from .models.kruskal import MODEL, KruskalTensor, named_labels
from .operators.lengths import check_lengths
from .operators.placement import Setting, make_plan
from .operators.prediction import Forecast, Speeds, forecast, measure
from .operators.source import Source, open_source
from .operators.sparse import SparseOperator
from .parallel.mpi import SingleComm, on_root, share, together
from .parallel.pace import first_limit
from .parallel.stopping import StopRequest
from .report import text
from .report.metrics import Metrics, versions
from .report.progress import Display, display, say
from .requests import RUN


def cpd(request: requests.Cpd, session: Session) -> int:
    """Decompose a tensor by CP-ALS."""
    comm, stop = session.comm, session.stop
    stem = f"{tensor_stem(request.tensor)}-rank{request.rank}"
    folder = comm.bcast(request.output or _fresh_name(Path(stem)))
    with Job(request, session, lambda: request.check_into(folder)) as job:
        source = job.open()
        check_room(source, request.rank, job.machine, request.options)
        speeds = measure(job.machine, source.shape, request.rank, request.options)  # before its memory is full
        method = decomposition(source, request.rank, job.machine, request.options)
        job.say_machine()
        foreseen = comm.allgather(forecast(method.operator.plan, speeds))
        origin, resumed = _start_or_resume(job, request, method, source)
        on_root(comm, lambda: make_folders(f for f in (folder, request.checkpoint) if f is not None))
        job.begin(method.operator, source)
        saver = checkpoint.Saver(request.checkpoint, method, origin, request.every or 1, resumed)
        limit = first_limit(max(each.seconds for each in foreseen))
        rule = driver.Rule(request.max_iters, request.tol, limit, request.deadline)
        began = time.perf_counter()
        with saver, stop.listening():
            driver.run(method, rule, [Reporter(job, request.max_iters)], lambda: stop.agreed(comm), saver)
        seconds = time.perf_counter() - began
        record = _record(job, replace(request, seed=origin.seed), method, seconds)
        if stop.signal is not None and request.checkpoint is not None:  # that command will write the model
            result = f"checkpoint in {request.checkpoint}: the same command with --resume goes on"
        else:
            on_root(comm, lambda: _write_model(folder, method.model().labelled(source.labels), record))
            result = f"model in {folder / MODEL}"
        _close(job, method, stop, record, foreseen, result)
    return stop.exit_code


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


def _start_or_resume(job: Job, request: requests.Cpd, method: CpAls, source: Source) -> tuple[checkpoint.Origin, bool]:
    """Put factor matrices and state in place; return the origin of checkpoints, and whether the run goes on."""
    comm, folder, options = job.comm, request.checkpoint, asdict(request.options)
    if folder is None:
        start(method.operator, source, request.seed, request.init)
        return checkpoint.Origin({}, request.seed, options), False
    facts = checkpoint.facts_of(source, request.rank, method.name)

    def load() -> checkpoint.Checkpoint | None:
        if not request.resume:
            return None
        found, damages = checkpoint.load_newest(folder, not request.no_verify)
        if found is not None:
            checkpoint.check(found, facts, method.state, folder)
            for damage in damages:
                print(f"amped: {damage}; going on from {found.name}", file=sys.stderr)
        return found

    found = on_root(comm, load)  # rank 0's: the others may see another file system
    kept = comm.bcast(None if found is None else (found.state, found.origin.seed))
    if kept is None:
        start(method.operator, source, request.seed, request.init)
        return checkpoint.Origin(facts, request.seed, options), False
    method.state, seed = kept
    for mode in range(method.operator.order):
        method.operator.set_factor(mode, share(comm, found.factors[mode] if found else None))
    job.display.note(f"resumed after {text.progress(method.state)} from {folder}")
    return checkpoint.Origin(facts, seed, options), True


def _record(job: Job, request: requests.Cpd, method: CpAls, seconds: float) -> dict[str, Any]:
    state, device = method.state, job.machine.device
    return {
        "fits": state.series["fit"], "iterations": state.iterations, "converged": state.converged, "seconds": seconds,
        "ranks": job.comm.size, "device": device.name, "device_description": device.description,
        "precision": request.options.precision, "seed": request.seed, "init": request.init,
        "tensor": str(request.tensor), **asdict(request.form), "rank": request.rank, "kernels": method.operator.kernels,
        "seconds_by_kind": dict(job.metrics.totals), "versions": versions(),
    }  # fmt: skip


def _write_model(folder: Path, model: KruskalTensor, record: dict[str, Any]) -> None:
    model.save(folder / MODEL)
    write_text(folder / RUN, json.dumps(record, indent=1) + "\n")


def _close(
    job: Job, method: CpAls, stop: StopRequest, record: dict[str, Any], foreseen: Sequence[Forecast], result: str
) -> None:
    """Say how the run went."""
    memory = job.memory_line(method.operator)
    job.metrics.event("end", **record)
    job.display.close()
    job.display.note(text.time_line(job.metrics.totals, record["seconds"]) + f"; {memory}")
    job.display.note(text.forecast_line(foreseen, True, job.metrics.iterations))
    job.display.note(f"{text.end_line(method.state, stop.signal)}; {result}")


def mttkrp(request: requests.Mttkrp, session: Session) -> int:
    """Compute MTTKRPs from the factor matrices that a decomposition would start from."""
    comm, output = session.comm, request.output
    with Job(request, session, request.check) as job:
        source = job.open()
        modes = together(comm, lambda: _modes(request.mode, len(source.shape)))
        operator = place(source, request.rank, job.machine, request.options)
        job.say_machine()
        start(operator, source, request.seed, request.init)
        job.begin(operator, source)
        results = {}
        for at, mode in enumerate(modes):
            whole = _timed_mttkrp(job, operator, [mode] * request.repeat + modes[at + 1 :], request.repeat)
            if comm.rank == 0 and output is not None:
                results[f"mode_{mode}"] = whole
        if output is not None:
            results |= named_labels(source.labels)
            on_root(comm, lambda: write_npz(output, results))
        job.display.note(job.memory_line(operator))
    return 0


def _timed_mttkrp(job: Job, operator: SparseOperator, modes: Sequence[int], repeat: int) -> NDArray[Any]:
    """Compute the first of the `modes` to come `repeat` times, report the median, and return the whole result."""
    seconds, mode = [], modes[0]
    for turn in range(repeat):
        begin = time.perf_counter()
        rows = operator.mttkrp(mode, then=modes[turn + 1 :])
        operator.synchronize()
        seconds.append(max(job.comm.allgather(time.perf_counter() - begin)))
        split = job.metrics.spans(job.comm.allgather(operator.clock.collect()))
        job.metrics.event("mttkrp", mode=mode, seconds=seconds[-1], split=split)
    whole = operator.gathered(mode, rows)
    operator.clock.collect()
    median = statistics.median(seconds)
    norm = np.linalg.norm(whole.astype(np.float64))
    rate = operator.plan.modes[mode].cut.nonzeros[-1] / median / 1e6
    job.display.note(f"mode {mode}: {median * 1e3:.3f} ms, {rate:,.0f} million nonzeros/s, norm {norm:.9g}")
    return whole


def _modes(wanted: str, order: int) -> list[int]:
    modes = {str(mode): [mode] for mode in range(order)} | {"all": list(range(order))}
    if wanted not in modes:
        raise InputError(f"--mode {shown(wanted)}: expected all or a mode from 0 to {order - 1}")
    return modes[wanted]


def plan(request: requests.Plan, session: Session) -> int:
    """Say what a run would need and take, and how it would be balanced; nothing is allocated for it or computed."""
    ranks = session.comm.size if request.ranks is None else request.ranks
    with Job(request, session, request.check) as job:
        source = job.open()
        setting = setting_for(
            source, request.rank, job.machine, request.options, solving_bytes(job.machine, request.options)
        )
        if ranks != session.comm.size:  # other ranks than those started: all on one node
            setting = setting._replace(memory=request.options.device_memory or job.machine.device.memory(ranks))
        check_lengths(source, setting, session.comm, ranks)
        cuts = [source.cut(mode, ranks) for mode in range(len(source.shape))]
        speeds = measure(job.machine, source.shape, request.rank, request.options)
        job.open_metrics()
        told = on_root(session.comm, lambda: _plans(job, request, source, cuts, speeds, setting))
    if told is not None:
        say(told)
    return 0


def _plans(  # six parameters: what `plan` has found out
    job: Job, request: requests.Plan, source: Source, cuts: Sequence[Cut], speeds: Speeds, setting: Setting
) -> str:
    """Make the plans of all ranks that the modes are cut for; record them, and return them as text."""
    machine, options, ranks = job.machine, request.options, cuts[0].heads.size
    here = ranks == job.comm.size
    loading = source.loading(ranks, options.dtype, machine.device.on_host)
    plans = [make_plan(cuts, part, setting._replace(overlaps=False), loading) for part in range(ranks)]
    foreseen = [forecast(each, speeds) for each in plans]
    job.metrics.event(
        "plan", tensor=str(request.tensor), shape=source.shape, nonzeros=source.nnz, rank=request.rank, ranks=ranks,
        options=asdict(options), planned_bytes=[p.planned_bytes for p in plans], seconds=[f.seconds for f in foreseen],
    )  # fmt: skip
    return text.plan_text(plans, machine.device) + "\n" + text.forecast_line(foreseen, here)


def info(request: requests.Request, session: Session) -> int:
    """Describe a tensor. Flags that say how to compute are checked, and change nothing here."""
    comm = session.comm
    with display(comm.rank, request.quiet) as shown:
        described = on_root(comm, lambda: _description(request, shown))
    if described is not None:
        say(described)
    return 0


def _description(request: requests.Request, shown: Display) -> str:
    request.check()
    source = open_source(request.tensor, SingleComm(), shown.reading, not request.no_verify, request.form)
    tensor = source.tensor()
    assert tensor is not None
    modes, (low, high, _) = text.skew(tensor), source.value_range
    repaired = {"duplicates": source.duplicates, "zeros": source.zeros}
    with closing(Metrics(request.metrics)) as metrics:
        facts = {"shape": source.shape, "nonzeros": source.nnz, "norm": source.norm, **repaired}
        metrics.event("info", tensor=str(request.tensor), **facts, values=(low, high), modes=modes)
    lines = [
        text.tensor_line(request.tensor.name, source.shape, source.nnz, source.norm, **repaired),
        f"values from {low:g} to {high:g}; {source.duplicates:,} duplicates summed, {source.zeros:,} zeros dropped",
        text.skew_table(modes),
    ]
    return "\n".join(lines)
