"""The record of a run: the file next to its model, from which reports are made."""

from __future__ import annotations

import os
import shlex
from dataclasses import Field, asdict, fields
from pathlib import Path
from typing import Any

from partitioner.flags import flag_name, on_or_off

from ..files import relative
from ..methods.driver import Method, MethodState, StopRule
from ..models.history import M
from ..report.metrics import versions
from ..runs.checkpoint import Origin
from ..runs.run import Run
from ..runs.starting import SHORT_RUNS
from .job import Job
from .run_requests import FACTS, RunRequest

OF_ONE_RUN = [
    "seconds",
    "seconds_by_kind",
    "seconds_by_rank",
    "exchange_bytes",
    "seconds_an_iteration",
    "stages",
    FACTS,
]
"""Parts of a record that differ between runs with the same model; model files leave them out."""

UNRELATED = "metrics deadline no_verify force quiet checkpoint every resume report output starts".split()
"""Flags that do not affect the model. The seed of the best start is recorded instead of `starts`."""


def recorded(request: RunRequest[M], job: Job, run: Run[M]) -> dict[str, object]:
    """Return the record of a run. Collective."""
    origin, method = run.origin, run.method
    return {
        **run.facts(), **request.facts_of_verb, "seconds": run.seconds,
        "tensor": relative(request.tensor), **asdict(request.form),
        "command": command(request, job.comm.size, origin, method.state, run.rule),
        "seconds_by_kind": dict(job.metrics.totals), **_rank_facts(job, method),
        "exchange_bytes": run.exchange_bytes(), "versions": versions(),
        **({FACTS: origin.facts} if origin.facts else {}),
    }  # fmt: skip


def _rank_facts(job: Job, method: Method) -> dict[str, object]:
    """Return the times of stages and ranks, and the nonzeros of each rank. Collective."""
    counts = job.comm.allgather([int(mode.nnz) for mode in method.operator.plan.modes])
    return {
        "stages": job.reporter.stages(), "seconds_by_rank": [dict(each) for each in job.metrics.by_rank],
        "nonzeros_by_rank": counts, "seconds_an_iteration": job.metrics.usual,
    }  # fmt: skip


def command(
    request: RunRequest[M], ranks: int, origin: Origin, state: MethodState, rule: StopRule | None = None
) -> str | None:
    """Return the command line that reproduces the model from the same working folder; None if there is none.

    It names the original start of a resumed run, or the best of several starts. For a run that was stopped between
    iterations it limits the iterations; a run that was stopped within an iteration cannot be reproduced.
    """
    rule = rule or StopRule(request.iterations, request.tolerance)
    changes: dict[str, Any] = {"init": None if origin.init == SHORT_RUNS else origin.init}
    if origin.init in (None, request.random):
        chosen = rule.forecast and (request.seed is not None or request.start_count > 1)
        changes["seed"] = origin.seed if chosen else origin.seed or None  # 0 is the default
        if origin.seed:
            changes["init"] = None  # --init and --seed exclude each other
    if request.checkpoint is not None and request.max_iters is request.tol is None:
        changes["max_iters"] = rule.max_iters  # the default without checkpoints may be another one
    if request.checkpoint is not None:
        changes |= request.set_by_checkpoint
    if not state.converged and state.iterations < rule.max_iters:
        if state.mode or not state.iterations or rule.forecast:
            return None
        changes["max_iters"] = state.iterations
    words = ["amped", request.NAME, _name(request.tensor)]
    for group in (request, request.options, request.form):
        for each in fields(group):
            value = changes.get(each.name, getattr(group, each.name))
            if each.metadata and each.name not in UNRELATED and not _is_default(each, value):
                named = value if each.metadata.get("type") is not on_or_off else "on" if value else "off"
                words += _flag(flag_name(each), named, _repeated(each))
    line = shlex.join(words)
    return line if ranks == 1 else f"mpirun -n {ranks} {line}"


def _name(path: Path) -> str:
    """Return a path in a form that cannot be mistaken for a flag, relative to the working folder if it is in it."""
    text = relative(path)
    return f".{os.sep}{text}" if text.startswith("-") else text


def _repeated(each: Field[Any]) -> bool:
    """Return whether a flag may be repeated."""
    return each.metadata.get("action") == "append"


def _is_default(each: Field[Any], value: object) -> bool:
    """Return whether a flag has its default value."""
    return value is None or value == each.default or (_repeated(each) and not value)


def _flag(name: str, value: Any, repeated: bool) -> list[str]:
    """Return the words of a flag; a value that begins with a dash is attached with "=", so that it is not a flag."""
    if value is True:
        return [name]
    if repeated:
        return [word for each in value for word in _flag(name, each, False)]
    text = ",".join("all" if each is None else str(each) for each in value) if isinstance(value, tuple) else str(value)
    text = relative(value) if isinstance(value, Path) else text
    return [f"{name}={text}"] if text.startswith("-") else [name, text]
