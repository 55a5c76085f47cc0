"""The verbs that decompose a tensor: start or resume, iterate, write the model, and say how it went."""

from __future__ import annotations

import json
import sys
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any

from partitioner.errors import one_line
from partitioner.host.signals import NOTHING
from partitioner.host.stages import STAGES

from ..errors import InputError
from ..files import TakenError, write_text
from ..methods import als, apr
from ..methods.driver import Model
from ..methods.initial import Init
from ..methods.starts import Restartable
from ..methods.tucker import shown
from ..models.kruskal import MODEL, KruskalTensor
from ..models.record import RUN
from ..operators.sources.protocols import DescribedSource
from ..parallel.mpi import on_root
from ..parallel.stopping import StopRequest
from ..report import page
from ..runs import checkpoint
from ..runs.assembly import counts, decomposition
from ..runs.compression import compressed, cp_start
from ..runs.run import CheckpointParams, Reporting, Run, RunParams, step_limit
from .job import Job, VerbSession
from .record import OF_ONE_RUN, recorded
from .run_requests import CpdRequest, RunRequest, TuckerRequest

COMPARED = 1 << 27  # nonzeros times components of what is soon computed


Tell = Callable[[Job, Model, Path], None]
"""Prints a model and the folder that it is in, on rank 0."""


def cpd(request: CpdRequest, session: VerbSession) -> int:
    """Decompose a tensor: CP-ALS, or CP-APR for counts."""
    return decompose(request, session)


def tucker(request: TuckerRequest, session: VerbSession) -> int:
    """Compress a tensor: Tucker decompositions by HOOI, HOSVD or ST-HOSVD."""
    return decompose(request, session)


def _show(job: Job, model: Model, place: Path) -> None:
    """Show a person what the components are."""
    job.teller.model(model)


def decompose(request: CpdRequest | TuckerRequest, session: VerbSession, tell: Tell = _show) -> int:
    """Decompose a tensor, write the model and show it by `tell`; return the exit code. Collective."""
    comm, stop = session.comm, session.stop
    stop.saved = lambda: _saved(request)
    checkpoint.check_hosts(request.checkpoint if request.resume else None, comm)
    with Job(request, session) as job:
        _prepare(request, job)  # while the tensor is read
        source = job.open()
        with job.teller.loading():
            method, start = _placed(request, job, source)
        reporting = Reporting(job.teller, str(request.tensor), job.kernel_budget)
        params = _params(request, start, step_limit(method))
        run = Run(method, source, params, job.teller, [reporting], lambda: stop.agreed(comm))
        run.begin()
        with stop.listening():
            failed = run.iterate()
            record = recorded(request, job, run)
            model, place, result = _save(job, request, run, stop, record, failed)
            run.end(record, stop.signal, result)
            stop.agreed(comm)  # perhaps by now
            stop.saved = lambda: result
            stop.tell(comm)
        if model is not None:
            failed |= stop.signal is None and _report(job, model, source, record, place)
            if place is not None:
                tell(job, model, place)
        return job.exit_code(stop.exit_code, failed)


def _params(request: RunRequest, start: Init | None, limit: float) -> RunParams:
    """Return how a run proceeds; `start` replaces the start that was named."""
    saved = None
    if (folder := request.checkpoint) is not None:
        check = partial(_check_start, request)
        saved = CheckpointParams(folder, check, request.every or 1, request.resume, not request.no_verify)
    return RunParams(
        request.iterations, request.tolerance, request.first_seed, request.start if start is None else start,
        request.how_often, request.deadline, saved, limit, request.init,
    )  # fmt: skip


def _save(
    job: Job,
    request: RunRequest,
    run: Run,
    stop: StopRequest,
    record: dict[str, Any],
    failed: bool,
) -> tuple[Model | None, Path | None, str]:
    """Write the model, unless the run is to go on from a checkpoint; return it, its folder, and what was saved."""
    kept = request.checkpoint is not None and not job.comm.bcast(failed)
    if stop.signal is not None and kept:  # that command will write the model
        return None, None, f"checkpoint in {request.checkpoint}: the same command with --resume goes on"
    with STAGES.of("write"), stop.shielded():
        model = run.model()
        model.run = {name: each for name, each in record.items() if name not in OF_ONE_RUN}  # the same bytes each time
        place = on_root(job.comm, lambda: _write_model(job, model, record))
    return model, place, f"model in {one_line(str(place / MODEL))}" if place else ""


def _saved(request: RunRequest) -> str:
    """Return what is there of a run that ends before it has written anything."""
    there = [] if request.checkpoint is None else checkpoint.names_in(request.checkpoint)
    return f"nothing was saved since {request.checkpoint}/{there[0]}" if there else NOTHING


def _prepare(request: CpdRequest | TuckerRequest, job: Job) -> None:
    """Begin to compile what the method needs, and return at once; that of Tucker depends on the tensor's order."""
    device, dtype = job.machine.device, request.options.dtype
    if isinstance(request, TuckerRequest):
        return
    if request.counts:
        apr.prepare(device, dtype)
    else:
        als.prepare(device, request.rank, dtype, bool(request.wanted.nonnegative))


def _placed(request: CpdRequest | TuckerRequest, job: Job, source: DescribedSource) -> tuple[Restartable, Init | None]:
    """Place the tensor; return the method, and the start if one was computed. Collective."""
    machine, options, seed = job.machine, request.options, request.first_seed
    if isinstance(request, TuckerRequest):
        found = compressed(source, machine, options, request.compression, seed)
        job.display.note(f"ranks {shown(found.operator.ranks)}")
        return found, None
    if request.counts:
        asked = request.poisson()
        budget = job.budget(request.max_iters * asked.inner_iters)
        return counts(source, request.rank, machine, options, asked, budget, request.init), None
    constraints, budget = request.wanted.of(len(source.shape)), job.budget(request.max_iters)
    start = cp_start(source, machine, options, request.rank, seed) if request.init == "tucker" else None
    return decomposition(source, request.rank, machine, options, budget, constraints, request.init), start


def _check_start(request: RunRequest, origin: checkpoint.Origin, path: Path) -> None:
    """Raise `InputError` if a flag names another start than the one from which the checkpoint's run began."""
    wrong_seed = request.seed is not None and (bool(origin.init) or request.seed != origin.seed)
    wrong_init = request.init is not None and origin.init not in (request.init, "")
    if wrong_seed or wrong_init:
        name, given = ("seed", request.seed) if wrong_seed else ("init", request.init)
        random = f"--seed {origin.seed}" if wrong_seed else "a random start"
        start = f"--init {origin.init}" if origin.init else random
        cause = f"its run began with {start}, not --{name} {given}: leave out --{name}, or --resume"
        raise InputError(cause, path=path)


def _write_model(job: Job, model: Model, record: dict[str, Any]) -> Path:
    """Write the model and its record; return where: in another folder if something has taken the names meanwhile."""

    def write(folder: Path) -> Path:
        replaced = job.outputs.replaced
        model.save(folder / MODEL, replace=folder / MODEL in replaced)
        write_text(folder / RUN, json.dumps(record, indent=1) + "\n", folder / RUN in replaced)
        return folder

    assert job.place is not None
    try:
        return write(job.place)
    except TakenError as error:
        job.display.note(f"{error}: the model goes elsewhere")
        return write(job.outputs.fresh(job.place, MODEL))


def _report(job: Job, model: Model, source: DescribedSource, record: dict[str, Any], place: Path | None) -> bool:
    """Write the requested report, if any, of a model at `place`; return whether it failed. Collective."""
    request = job.request
    if not isinstance(request, CpdRequest) or request.report is None:
        return False
    assert isinstance(model, KruskalTensor)
    # A small tensor is compared with its model once more: values that this explains least, deviances.
    tensor = source.tensor() if source.nnz * model.rank <= COMPARED else None
    if place is None:
        return False
    path = request.report_at(place)
    try:
        page.write(model, path, tensor, record, replace=path in job.outputs.replaced)
    except Exception as error:  # whatever it is, the model is written
        told = error if isinstance(error, InputError) else f"{path}: {error or type(error).__name__}"
        print(f"amped: {one_line(str(told))}; the model is written, its report is not", file=sys.stderr)
        return True
    job.display.note(f"report in {one_line(str(path))}")
    return False
