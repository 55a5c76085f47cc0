"""The verbs of the command line, in terms of the library.

A verb checks all that can be known before the tensor is read, reads it, places it, and only then makes files or
folders: a run that is refused leaves everything as it was.
"""

from __future__ import annotations

import statistics
import time
from collections.abc import Sequence
from contextlib import closing
from dataclasses import asdict
from typing import Any

import numpy as np
from numpy.typing import NDArray

from partitioner.coo import ValueRange
from partitioner.flags import shown
from partitioner.labels import named
from partitioner.shards import Cut

from . import assembly, requests
from .assembly import AnySource, Job, Session, place, setting_for, start
from .compression import core_setting
from .decomp import als, apr
from .decomp.constraints import Constraints
from .decomp.prediction import Forecast, foretell, hopeless
from .decomp.tucker import check_ranks
from .errors import EXIT_INCOMPLETE, InputError
from .files import write_npz
from .operators.base import Operator
from .operators.dense_core import make_core_plan
from .operators.dense_plan import make_dense_plan
from .operators.dense_source import DenseSource
from .operators.lengths import check_lengths
from .operators.limits import check_result
from .operators.placement import Loading, Plan, Setting, make_plan
from .operators.source import Source
from .parallel.mpi import SingleComm, on_root, together
from .report import dense as dense_text
from .report import text
from .report.metrics import Metrics
from .report.progress import Display, display, say


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
            results |= named(source.labels)
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
    return (
        None
        if request.counts or request.core
        else dense_text.advice(source, request.rank, request.options.dtype.itemsize)
    )


def _tell_dense(job: Job, source: DenseSource, setting: Setting, ranks: int) -> None:
    """Say what a run of a dense tensor would need. Collective."""
    if setting.ttmc:
        cores = on_root(job.comm, lambda: [make_core_plan(source, part, ranks, setting) for part in range(ranks)])
        if cores is not None:
            _tell(job, source, cores, None)
            say(dense_text.core_plan_text(cores, job.machine.device))
        return
    plans = on_root(job.comm, lambda: [make_dense_plan(source, part, ranks, setting) for part in range(ranks)])
    if plans is not None:
        _tell(job, source, plans, None)
        say(dense_text.plan_text(plans, job.machine.device))


def _setting(job: Job, request: requests.Plan, source: AnySource) -> Setting:
    """Return what the plans of a method have in common."""
    machine, options, order = job.machine, request.options, len(source.shape)
    if request.core is not None:
        ranks = request.core
        return core_setting(source, together(job.comm, lambda: check_ranks(source.shape, ranks)), machine, options)
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
    if setting.ttmc:
        return None, "of Tucker decompositions it is not foretold"
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
