"""The steps that ``cpd`` and ``tucker`` share: start or resume, iterate, write the model, and report."""

from __future__ import annotations

import json
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any

from partitioner.errors import one_line
from partitioner.host.signals import NOTHING
from partitioner.host.stages import STAGES

from ..errors import InputError
from ..files import TakenError, write_text
from ..models.history import AnyModel, M
from ..models.record import MODEL, RUN
from ..parallel.mpi import on_root
from ..parallel.stopping import StopRequest
from ..runs import checkpoint
from ..runs.run import CheckpointParams, Run, RunParams, step_limit
from ..runs.starting import AlsChoice
from .job import Job, VerbSession
from .record import OF_ONE_RUN, recorded
from .run_requests import PlacedMethod, RunRequest

Show = Callable[[Job, M, Path], None]
"""Prints a model and its folder, on rank 0."""


def _show(job: Job, model: AnyModel, place: Path) -> None:
    """Show the components on a terminal."""
    job.reporter.model(model)


def decompose(request: RunRequest[M], session: VerbSession, show: Show[M] = _show) -> int:
    """Decompose a tensor, write the model, and show it with `show`; return the exit code. Collective."""
    comm, stop = session.comm, session.stop
    stop.saved = lambda: _saved(request)
    checkpoint.check_hosts(request.checkpoint if request.resume else None, comm)
    with Job(request, session) as job:
        request.prepare(job.machine.device)  # compiles while the tensor is read
        source = job.open()
        with job.reporter.loading():
            placed = request.place(job, source)
        params = _params(request, placed, step_limit(placed.method))
        run = job.begin(placed.method, params, job.kernel_budget, stop=lambda: stop.agreed(comm))
        with stop.listening():
            failed = run.iterate()
            record = recorded(request, job, run)
            model, place, result = _save(job, request, run, stop, record, failed)
            run.end(record, stop.signal, result)
            stop.agreed(comm)  # a signal may have arrived since
            stop.saved = lambda: result
            stop.report(comm)
        if model is not None:
            failed |= stop.signal is None and request.write_report(job, model, job.source, record, place)
            if place is not None:
                show(job, model, place)
                _warn(job, model, placed.choice)
        return job.exit_code(stop.exit_code, failed)


def _warn(job: Job, model: AnyModel, choice: AlsChoice | None) -> None:
    """Print a warning if a short run from another start had a higher fit."""
    if choice is not None and (warning := choice.exceeded(model)) is not None:
        job.display.note(f"warning: {warning}")


def _params(request: RunRequest[M], placed: PlacedMethod[M], limit: float) -> RunParams:
    """Return the parameters of a run; a computed start replaces the one that the request names."""
    checkpoints = None
    if (folder := request.checkpoint) is not None:
        check = partial(_check_start, request)
        checkpoints = CheckpointParams(folder, check, request.every, request.resume, not request.no_verify)
    start = request.start if placed.start is None else placed.start
    params = RunParams(
        request.iterations, request.tolerance, request.first_seed, start,
        request.start_count, request.deadline, checkpoints, limit, request.init, request.random,
        request.iterations_without_improvement,
    )  # fmt: skip
    return params if placed.choice is None else placed.choice.begun(params)


def _save(
    job: Job,
    request: RunRequest[M],
    run: Run[M],
    stop: StopRequest,
    record: dict[str, Any],
    failed: bool,
) -> tuple[M | None, Path | None, str]:
    """Write the model, unless a stopped run has a checkpoint; return the model, its folder, and a text about both."""
    has_checkpoint = request.checkpoint is not None and not job.comm.bcast(failed)
    if stop.signal is not None and has_checkpoint:  # the resumed run will write the model
        return None, None, f"checkpoint in {request.checkpoint}: the same command with --resume continues"
    with STAGES.of("write"), stop.shielded():
        model = run.model()
        model.run = {name: each for name, each in record.items() if name not in OF_ONE_RUN}  # reproducible bytes
        place = on_root(job.comm, lambda: _write_model(job, model, record))
    return model, place, f"model in {one_line(str(place / MODEL))}" if place else ""


def _saved(request: RunRequest[M]) -> str:
    """Return what was saved by a run that ends before it has written its model, as text."""
    names = [] if request.checkpoint is None else checkpoint.names_in(request.checkpoint)
    return f"nothing was saved since {request.checkpoint}/{names[0]}" if names else NOTHING


def _check_start(request: RunRequest[M], origin: checkpoint.Origin, path: Path) -> None:
    """Raise `InputError` if a flag differs from the start of the run that wrote the checkpoint."""
    wrong_seed = request.seed is not None and (bool(origin.init) or request.seed != origin.seed)
    wrong_init = request.init is not None and origin.init not in (request.start, "")
    if wrong_seed or wrong_init:
        name, value = ("seed", request.seed) if wrong_seed else ("init", request.init)
        random = f"--seed {origin.seed}" if wrong_seed else "a random start"
        start = f"--init {origin.init}" if origin.init else random
        cause = f"its run began with {start}, not --{name} {value}: leave out --{name}, or --resume"
        raise InputError(cause, path=path)


def _write_model(job: Job, model: AnyModel, record: dict[str, Any]) -> Path:
    """Write the model and its record; return their folder, a new one if the names were taken during the run."""

    def write(folder: Path) -> Path:
        replaced = job.outputs.replaced
        model.save(folder / MODEL, replace=folder / MODEL in replaced)
        write_text(folder / RUN, json.dumps(record, indent=1) + "\n", folder / RUN in replaced)
        return folder

    assert job.place is not None
    try:
        return write(job.place)
    except TakenError as error:
        job.display.note(f"{error}: the model is written to another folder")
        return write(job.outputs.fresh(job.place, MODEL))
