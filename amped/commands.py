"""The verbs of the command line, in terms of the library.

A verb checks all that can be known before the tensor is read, reads it, places it, and only then makes files or
folders: a run that is refused leaves everything as it was.
"""

from __future__ import annotations

import json
import statistics
import sys
import time
from collections.abc import Sequence
from contextlib import closing
from dataclasses import asdict
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from partitioner.coo import ValueRange
from partitioner.flags import shown
from partitioner.shards import Cut
from partitioner.stages import STAGES

from . import assembly, checkpoint, requests
from .assembly import AnySource, Job, Reporter, Session, begin, counts, decomposition, place, setting_for, start
from .decomp import als, apr, driver
from .decomp.constraints import Constraints
from .decomp.prediction import Forecast, foretell, hopeless
from .decomp.starts import Restartable, best_of
from .errors import EXIT_INCOMPLETE, InputError
from .files import TakenError, write_npz, write_text
from .models.kruskal import MODEL, KruskalTensor, named_labels
from .operators.base import Operator
from .operators.dense_plan import make_dense_plan
from .operators.dense_source import DenseSource
from .operators.lengths import check_lengths
from .operators.limits import check_result
from .operators.placement import Loading, Plan, Setting, make_plan
from .operators.source import Source
from .parallel.mpi import SingleComm, on_root, share, together
from .parallel.pace import first_limit
from .parallel.stopping import StopRequest
from .report import dense as dense_text
from .report import text
from .report.metrics import Metrics, versions
from .report.progress import Display, display, say
from .requests import FACTS, RUN

SERIES = {"fit": "fits", "objective": "objectives"}  # names in `RUN`, where they are others


def cpd(request: requests.Cpd, session: Session) -> int:
    """Decompose a tensor: CP-ALS, or CP-APR for counts."""
    comm, stop = session.comm, session.stop
    checkpoint.check_hosts(request.checkpoint if request.resume else None, comm)
    with Job(request, session) as job:
        _prepare(job, request)  # while the tensor is read
        source = job.open()
        method = _method(job, request, source)
        job.say_machine()
        origin, resumed = _start_or_resume(job, request, method, source)
        job.begin(method.operator, source)
        saver = checkpoint.Saver(request.checkpoint, method, origin, request.every or 1, resumed)
        slowest = method.operator.plan.read_bytes / job.machine.device.least_speed
        limit = first_limit(max(comm.allgather(slowest)))
        rule = driver.Rule(request.max_iters, request.tolerance, limit, request.deadline)
        began = time.perf_counter()
        with STAGES.of("iterate"), saver, stop.listening():
            best, merits = best_of(
                method,
                request.starts,
                lambda number: _next_start(job, method, source, number),
                lambda: driver.run(method, rule, [Reporter(job, request.max_iters)], lambda: stop.agreed(comm), saver),
                lambda: stop.agreed(comm),
            )
        if request.starts > 1:
            origin = origin._replace(seed=request.seed + best)
            job.display.note(f"best of {len(merits)} starts: seed {origin.seed}")
        record = _record(job, origin, method, time.perf_counter() - began)
        saved = request.checkpoint is not None and not comm.bcast(saver.failed)
        if stop.signal is not None and saved:  # that command will write the model
            result = f"checkpoint in {request.checkpoint}: the same command with --resume goes on"
        else:
            with STAGES.of("write"):
                model = method.model().labelled(source.labels)
                result = on_root(comm, lambda: _write_model(job, model, record)) or ""
        _close(job, method, stop, rule, record, result)
        return job.exit_code(stop.exit_code, saver.failed)


def _prepare(job: Job, request: requests.Cpd) -> None:
    """Begin to compile what the method needs, and return at once."""
    device, dtype = job.machine.device, request.options.dtype
    if request.counts:
        apr.prepare(device, dtype)
    else:
        als.prepare(device, request.rank, dtype, bool(request.wanted.nonnegative))


def _method(job: Job, request: requests.Cpd, source: AnySource) -> Restartable:
    """Place the tensor; return the method that was asked for. Collective."""
    if request.counts:
        asked = request.poisson()
        budget = job.budget(request.max_iters * asked.inner_iters)
        return counts(source, request.rank, job.machine, request.options, asked, budget)
    constraints, budget = request.wanted.of(len(source.shape)), job.budget(request.max_iters)
    return decomposition(source, request.rank, job.machine, request.options, budget, constraints)


def _next_start(job: Job, method: driver.Method, source: AnySource, number: int) -> None:
    """Put the factor matrices of a start in place, unless it is the first, whose are."""
    request = job.request
    assert isinstance(request, requests.Cpd)
    seed = request.seed + number
    if request.starts > 1:
        job.display.note(f"start {number + 1} of {request.starts}: seed {seed}")
        job.metrics.event("seed", seed=seed)
    if number:
        begin(method, source, seed)


def _start_or_resume(
    job: Job, request: requests.Cpd, method: driver.Method, source: AnySource
) -> tuple[checkpoint.Origin, bool]:
    """Put factor matrices and state in place; return the origin of checkpoints, and whether the run goes on."""
    comm, folder, options = job.comm, request.checkpoint, asdict(request.options)
    if folder is None:
        begin(method, source, request.seed, request.init)
        return checkpoint.Origin({}, request.seed, request.init, options), False
    facts = checkpoint.facts_of(source, request.rank, method.name) | method.facts

    def load() -> checkpoint.Checkpoint | None:
        if not request.resume:
            return None
        found, damages = checkpoint.load_newest(folder, not request.no_verify)
        if found is not None:
            checkpoint.check(found, facts, method.state, folder)
            _check_start(request, found.origin, folder / found.name)
            for damage in damages:
                print(f"amped: {damage}; going on from {found.name}", file=sys.stderr)
        return found

    found = on_root(comm, load)  # rank 0's: the others may see another file system
    kept = comm.bcast(None if found is None else (found.state, found.origin.seed, found.origin.init))
    if kept is None:
        begin(method, source, request.seed, request.init)
        return checkpoint.Origin(facts, request.seed, request.init, options), False
    method.state, seed, init = kept
    for mode in range(method.operator.order):
        method.operator.set_factor(mode, share(comm, found.factors[mode] if found else None))
    job.display.note(f"resumed after {text.progress(method.state)} from {folder}")
    return checkpoint.Origin(facts, seed, init or request.init, options), True


def _check_start(request: requests.Cpd, origin: checkpoint.Origin, path: Path) -> None:
    """Raise `InputError` if a start is asked for that is not the one from which the checkpoint's run began."""
    for name, given, began in (("seed", request.seed or None, origin.seed), ("init", request.init, origin.init)):
        if given is not None and began not in (given, ""):
            start = "a random start" if began is None else f"--{name} {began}"
            cause = f"its run began with {start}, not --{name} {given}: leave out --{name}, or --resume"
            raise InputError(cause, path=path)


def _record(job: Job, origin: checkpoint.Origin, method: driver.Method, seconds: float) -> dict[str, Any]:
    request, state, device = job.request, method.state, job.machine.device
    assert isinstance(request, requests.Cpd)
    return {
        **{SERIES.get(name, name): numbers for name, numbers in state.series.items()},
        "method": method.name, "loss": request.loss, "norm": method.norm, **method.facts,
        "iterations": state.iterations, "converged": state.converged, "seconds": seconds,
        "ranks": job.comm.size, "device": device.name, "device_description": device.description,
        "precision": request.options.precision, "seed": origin.seed, "init": origin.init,
        "tensor": str(request.tensor), **asdict(request.form), "rank": method.operator.ranks[0],
        "kernels": method.operator.kernels,
        "seconds_by_kind": dict(job.metrics.totals), "versions": versions(),
        **({FACTS: origin.facts} if origin.facts else {}),
    }  # fmt: skip


def _write_model(job: Job, model: KruskalTensor, record: dict[str, Any]) -> str:
    """Write the model and its record; return where: in another folder if something has taken the names meanwhile."""

    def write(folder: Path) -> str:
        replaced = job.outputs.replaced
        model.save(folder / MODEL, replace=folder / MODEL in replaced)
        write_text(folder / RUN, json.dumps(record, indent=1) + "\n", folder / RUN in replaced)
        return f"model in {folder / MODEL}"

    assert job.place is not None
    try:
        return write(job.place)
    except TakenError as error:
        job.display.note(f"{error}: the model goes elsewhere")
        return write(job.outputs.fresh(job.place, MODEL))


def _close(
    job: Job,
    method: driver.Method,
    stop: StopRequest,
    rule: driver.Rule,
    record: dict[str, Any],
    result: str,
) -> None:
    """Say how the run went."""
    memory = job.memory_line(method.operator)
    job.tell_stages()
    job.metrics.event("end", **record)
    job.display.close()
    job.display.note(text.time_line(job.metrics.totals, record["seconds"]) + f"; {memory}")
    if job.metrics.iterations:
        job.display.note(f"iterations took {statistics.median(job.metrics.iterations) * 1e3:.3g} ms")
    fits = method.state.series.get("fit", [])
    if (warning := text.low_fit(method.state.converged, fits, rule.tol)) is not None:
        job.display.note(f"warning: {warning}")
    job.display.note(f"{text.end_line(method.state, stop.signal, rule)}; {result}")


def mttkrp(request: requests.Mttkrp, session: Session) -> int:
    """Compute MTTKRPs from the factor matrices that a decomposition would start from."""
    comm, output = session.comm, request.output
    with Job(request, session) as job:
        source = job.open()
        modes = together(comm, lambda: _modes(request.mode, len(source.shape)))
        operator = place(source, request.rank, job.machine, request.options, budget=job.budget(request.repeat))
        job.say_machine()
        start(operator, source, request.seed, request.init)
        job.begin(operator, source)
        results = {}
        for at, mode in enumerate(modes):
            turns = [mode] * request.repeat + modes[at + 1 :]
            whole = _timed_mttkrp(job, operator, source.value_range, turns, request.repeat)
            if comm.rank == 0 and output is not None:
                results[f"mode_{mode}"] = whole
        if output is not None:
            results |= named_labels(source.labels)
            on_root(comm, lambda: write_npz(output, results, output in job.outputs.replaced))
        job.display.note(job.memory_line(operator))
        return job.exit_code()


def _timed_mttkrp(job: Job, operator: Operator, values: ValueRange, modes: Sequence[int], repeat: int) -> NDArray[Any]:
    """Compute the first of the `modes` to come `repeat` times, report the median, and return the whole result."""
    seconds, mode = [], modes[0]
    for turn in range(repeat):
        if turn:
            operator.forget()
        begin = time.perf_counter()
        rows = operator.mttkrp(mode, then=modes[turn + 1 :])
        operator.synchronize()
        seconds.append(max(job.comm.allgather(time.perf_counter() - begin)))
        split = job.metrics.spans(job.comm.allgather(operator.clock.collect()))
        job.metrics.event("mttkrp", mode=mode, seconds=seconds[-1], split=split)
    whole = operator.gathered(mode, rows)
    together(job.comm, lambda: check_result(operator, mode, whole, values))
    operator.clock.collect()
    median = statistics.median(seconds)
    norm = np.linalg.norm(whole.astype(np.float64))
    rate = operator.plan.modes[mode].cut.nonzeros[-1] / median / 1e6
    job.display.note(
        f"mode {mode}: {median * 1e3:.3f} ms, {rate:,.0f} million {operator.plan.counted}/s, norm {norm:.9g}"
    )
    return whole


def _modes(wanted: str, order: int) -> list[int]:
    modes = {str(mode): [mode] for mode in range(order)} | {"all": list(range(order))}
    if wanted not in modes:
        raise InputError(f"--mode {shown(wanted)}: expected all or a mode from 0 to {order - 1}")
    return modes[wanted]


def plan(request: requests.Plan, session: Session) -> int:
    """Say what a run would need and take, and how it would be balanced.

    Nothing is allocated for it or computed, but for what tells how long an iteration takes.
    """
    comm, ranks = session.comm, session.comm.size if request.ranks is None else request.ranks
    with Job(request, session) as job:
        source = job.open()
        setting = _setting(job, request, source)
        if ranks != comm.size:  # other ranks than those started: all on one node
            setting = setting._replace(memory=request.options.device_memory or job.machine.device.memory(ranks))
        check_lengths(source, setting, comm, elsewhere=True)
        if isinstance(source, DenseSource):
            _tell_dense(job, source, setting, ranks)
            return job.exit_code()
        cuts = [source.cut(mode, ranks) for mode in range(len(source.shape))]
        loading = source.loading(ranks, request.options.dtype, job.machine.device.on_host)
        alone = setting._replace(overlaps=False)
        plans = on_root(comm, lambda: [make_plan(cuts, part, alone, loading) for part in range(ranks)])
        constraints = request.wanted.of(len(source.shape))
        forecast, doubt = _forecast(job, source, setting, cuts, loading, constraints)
        if plans is not None:
            _tell(job, source, plans, None if doubt or forecast is None else forecast.seconds)
            lines = [text.plan_text(plans, job.machine.device), text.forecast_line(forecast, doubt)]
            say("\n".join(filter(None, [*lines, _advice(source, request)])))
        return job.exit_code()


def _advice(source: AnySource, request: requests.Plan) -> str | None:
    """Return a line where a tensor that is sparse would better be dense."""
    return None if request.counts else dense_text.advice(source, request.rank, request.options.dtype.itemsize)


def _tell_dense(job: Job, source: DenseSource, setting: Setting, ranks: int) -> None:
    """Say what a run of a dense tensor would need. Collective."""
    plans = on_root(job.comm, lambda: [make_dense_plan(source, part, ranks, setting) for part in range(ranks)])
    if plans is not None:
        _tell(job, source, plans, None)
        say(dense_text.plan_text(plans, job.machine.device))


def _setting(job: Job, request: requests.Plan, source: AnySource) -> Setting:
    """Return what the plans of a method have in common."""
    machine, options, order = job.machine, request.options, len(source.shape)
    asked = request.poisson() if request.counts else None
    if asked:
        assembly.refuse_dense(source)
        solving = apr.solving_bytes(machine, asked, order)
    else:
        solving = als.solving_bytes(machine, options.dtype, order, request.wanted.of(order))
    return setting_for(source, request.rank, machine, options, solving, asked)


def _forecast(
    job: Job, source: Source, setting: Setting, cuts: Sequence[Cut], loading: Loading, constraints: Constraints
) -> tuple[Forecast | None, str | None]:
    """Return what an iteration will take, if that can be foretold, and why it is not told, if so. Collective."""
    comm, ranks = job.comm, cuts[0].heads.size
    if setting.phi:
        return None, "of CP-APR, outer iterations have as many updates as it takes"
    if ranks != comm.size:
        return None, f"{ranks} ranks are not started here"
    mine = together(comm, lambda: make_plan(cuts, comm.rank, setting, loading))
    if doubt := hopeless(mine, job.machine, constraints):
        return None, doubt
    forecast = foretell(source, mine, job.machine, setting, constraints)
    return forecast, forecast.doubt


def _tell(job: Job, source: AnySource, plans: Sequence[Plan], seconds: float | None) -> None:
    """Record plans, and the seconds that an iteration will take, if they are told."""
    request = job.request
    assert isinstance(request, requests.Plan)
    job.metrics.event(
        "plan", tensor=str(request.tensor), shape=source.shape, nonzeros=source.nnz, rank=request.rank,
        ranks=len(plans), options=asdict(request.options), planned_bytes=[p.planned_bytes for p in plans],
        seconds=seconds,
    )  # fmt: skip


def info(request: requests.Request, session: Session) -> int:
    """Describe a tensor. Flags that say how to compute are checked, and change nothing here."""
    comm = session.comm
    with display(comm.rank, request.quiet) as shown:
        described, code = on_root(comm, lambda: _description(request, shown)) or ("", 0)
    if comm.rank == 0:
        say(described)
    return comm.bcast(code)


def _description(request: requests.Request, shown: Display) -> tuple[str, int]:
    """Return what is said of a tensor, and the exit code."""
    request.check()
    with closing(request.open_metrics()) as metrics:
        described = _described(request, shown, metrics)
    return described, EXIT_INCOMPLETE if metrics.failed else 0


def _described(request: requests.Request, shown: Display, metrics: Metrics) -> str:
    source = assembly.open_path(request.tensor, SingleComm(), shown.reading, not request.no_verify, request.form)
    if isinstance(source, DenseSource):
        values = source.value_range[:2]
        facts = {"shape": source.shape, "nonzeros": source.facts.nonzeros, "norm": source.norm, "values": values}
        metrics.event("info", tensor=str(request.tensor), dense=True, **facts)
        return dense_text.description(request.tensor.name, source)
    tensor = source.tensor()
    assert tensor is not None
    modes, (low, high, _) = text.skew(tensor), source.value_range
    repaired = {"duplicates": source.duplicates, "zeros": source.zeros}
    facts = {"shape": source.shape, "nonzeros": source.nnz, "norm": source.norm, **repaired}
    metrics.event("info", tensor=str(request.tensor), **facts, values=(low, high), modes=modes)
    lines = [
        text.tensor_line(request.tensor.name, source.shape, source.nnz, source.norm, **repaired),
        f"values from {low:g} to {high:g}; {source.duplicates:,} duplicates summed, {source.zeros:,} zeros dropped",
        text.skew_table(modes),
        dense_text.advice(source, None),
    ]
    return "\n".join(filter(None, lines))
