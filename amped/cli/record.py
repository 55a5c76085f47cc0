"""The record of a run: the file beside its model, which reports are made from."""

from __future__ import annotations

import os
import shlex
from dataclasses import Field, asdict, fields
from pathlib import Path
from typing import Any

from partitioner.flags import flag_name

from ..methods.driver import Method, MethodState
from ..models.history import M
from ..report.metrics import versions
from ..runs.checkpoint import Origin
from ..runs.run import Run
from .job import Job
from .run_requests import FACTS, RunRequest

OF_ONE_RUN = ["seconds", "seconds_by_kind", "seconds_by_rank", "seconds_an_iteration", "stages", FACTS]
"""Parts of a record that differ between runs that make the same model: a model file leaves them out."""

PASSING = "metrics deadline no_verify force quiet checkpoint every resume report output starts".split()
"""Flags that make no other model: of several starts, that of the best one is recorded."""


def recorded(request: RunRequest[M], job: Job, run: Run[M]) -> dict[str, Any]:
    """Return the record of a run. Collective."""
    origin, method = run.origin, run.method
    return {
        **run.facts(), **request.asked, "seconds": run.seconds,
        "tensor": str(request.tensor), **asdict(request.form),
        "command": command(request, job.comm.size, origin, method.state),
        "seconds_by_kind": dict(job.metrics.totals), **_rank_facts(job, method), "versions": versions(),
        **({FACTS: origin.facts} if origin.facts else {}),
    }  # fmt: skip


def _rank_facts(job: Job, method: Method) -> dict[str, Any]:
    """Return what tells how evenly ranks were at work, and where the time went. Collective."""
    counts = job.comm.allgather([int(mode.nnz) for mode in method.operator.plan.modes])
    return {
        "stages": job.reporter.stages(), "seconds_by_rank": [dict(each) for each in job.metrics.by_rank],
        "nonzeros_by_rank": counts, "seconds_an_iteration": job.metrics.usual,
    }  # fmt: skip


def command(request: RunRequest[M], ranks: int, origin: Origin, state: MethodState) -> str | None:
    """Return the command line that makes the same model again, from the folder in which this one was run.

    It has the start that the run began from, perhaps before it was resumed, or the best of several. A run that was
    stopped between two iterations ended with the last one; there is no command for one that was stopped within one.
    """
    began: dict[str, Any] = {"init": origin.init}
    if origin.init in (None, request.random):
        began["seed"] = origin.seed or None  # without a flag it is 0
        if origin.seed:
            began["init"] = None  # one excludes the other
    if not state.converged and state.iterations < request.iterations:
        if state.mode or not state.iterations:
            return None
        began["max_iters"] = state.iterations
    words = ["amped", request.NAME, _name(request.tensor)]
    for given in (request, request.options, request.form):
        for each in fields(given):
            value = began.get(each.name, getattr(given, each.name))
            if each.metadata and each.name not in PASSING and not _is_default(each, value):
                words += _flag(flag_name(each), value, _repeated(each))
    line = shlex.join(words)
    return line if ranks == 1 else f"mpirun -n {ranks} {line}"


def _name(path: Path) -> str:
    """Return a path that is not taken for a flag."""
    text = str(path)
    return f".{os.sep}{text}" if text.startswith("-") else text


def _repeated(each: Field[Any]) -> bool:
    """Return whether a flag may be given several times."""
    return each.metadata.get("action") == "append"


def _is_default(each: Field[Any], value: Any) -> bool:
    """Return whether a flag has the value that it has if it is left out; a zero is a value as others are."""
    return value is None or value == each.default or (_repeated(each) and not value)


def _flag(name: str, value: Any, repeated: bool) -> list[str]:
    """Return a flag as it is given; a value that begins with a dash would be taken for a flag as a word of its own."""
    if value is True:
        return [name]
    if repeated:
        return [word for each in value for word in _flag(name, each, False)]
    text = ",".join(map(str, value)) if isinstance(value, tuple) else str(value)
    return [f"{name}={text}"] if text.startswith("-") else [name, text]
