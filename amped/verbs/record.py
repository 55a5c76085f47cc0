"""The record of a run: the file beside its model, which reports are made from."""

from __future__ import annotations

import shlex
from dataclasses import asdict, fields
from typing import Any

from partitioner.flags import flag_name

from ..assembly import AnySource
from ..checkpoint import Origin
from ..decomp.driver import Method
from ..report.metrics import versions
from ..report.record import run_facts
from .job import Job
from .runs import FACTS, RunRequest

PASSING = "metrics deadline no_verify force quiet checkpoint every resume report output".split()
"""Flags that make no other model."""


def recorded(job: Job, source: AnySource, origin: Origin, method: Method, seconds: float) -> dict[str, Any]:
    """Return the record of a run. Collective."""
    request = job.request
    assert isinstance(request, RunRequest)
    return {
        **run_facts(method, source, origin.seed, origin.init), **request.asked, "seconds": seconds,
        "tensor": str(request.tensor), **asdict(request.form),
        "command": command(request, job.comm.size, origin.seed),
        "seconds_by_kind": dict(job.metrics.totals), **_rank_facts(job, method), "versions": versions(),
        **({FACTS: origin.facts} if origin.facts else {}),
    }  # fmt: skip


def _rank_facts(job: Job, method: Method) -> dict[str, Any]:
    """Return what tells how evenly ranks were at work, and where the time went. Collective."""
    counts = job.comm.allgather([int(mode.nnz) for mode in method.operator.plan.modes])
    return {
        "stages": job.stages(), "seconds_by_rank": [dict(each) for each in job.metrics.by_rank],
        "nonzeros_by_rank": counts, "seconds_an_iteration": job.metrics.usual,
    }  # fmt: skip


def command(request: RunRequest, ranks: int, seed: int | None) -> str:
    """Return the command line that makes the same model again, with the seed that its run began from."""
    words = ["amped", request.NAME, str(request.tensor)]
    for given in (request, request.options, request.form):
        for each in fields(given):
            value = seed if each.name == "seed" else getattr(given, each.name)
            if each.metadata and each.name not in PASSING and value not in (None, each.default, (), False):
                words += _flag(flag_name(each), value, each.metadata.get("action") == "append")
    line = shlex.join(words)
    return line if ranks == 1 else f"mpirun -n {ranks} {line}"


def _flag(name: str, value: Any, repeated: bool) -> list[str]:
    """Return a flag as it is given; one that begins with a dash is taken for a flag where it stands alone."""
    if value is True:
        return [name]
    if repeated:
        return [word for each in value for word in _flag(name, each, False)]
    text = ",".join(map(str, value)) if isinstance(value, tuple) else str(value)
    return [f"{name}={text}"] if text.startswith("-") else [name, text]
