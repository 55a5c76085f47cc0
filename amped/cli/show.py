"""The verbs that look at what exists: ``show`` at a model, ``info`` at a tensor."""

from __future__ import annotations

import argparse
from contextlib import closing
from dataclasses import dataclass, fields
from pathlib import Path
from typing import Any, ClassVar

from partitioner.errors import one_line
from partitioner.flags import flag, path, whole_number
from partitioner.readers import PLAIN
from partitioner.validate import whole

from ..errors import EXIT_INCOMPLETE
from ..files import Outputs
from ..models.history import AnyModel
from ..models.loading import cp_model, load
from ..models.record import recorded
from ..options import Options
from ..parallel.mpi import SingleComm, on_root
from ..report import components
from ..report.metrics import Metrics
from ..report.progress import Display, display, say
from ..runs.assembly import open_path
from ..runs.kinds import kind_of
from .job import VerbSession
from .requests import R, Request


@dataclass(frozen=True, kw_only=True, eq=False, repr=False)
class ModelRequest(Request):
    """What verbs take that look at a model."""

    POSITIONAL: ClassVar[dict[str, Any]] = {
        "type": path,
        "metavar": "MODEL",
        "help": "folder that cpd has written, its model.npz, or a ktensor's text",
    }
    COMPUTES: ClassVar[bool] = False

    @classmethod
    def of(cls: type[R], args: argparse.Namespace) -> R:
        given = vars(args)
        own = {field.name: given[field.name] for field in fields(cls) if field.name in given}
        return cls(options=Options(), form=PLAIN, **own)


@dataclass(frozen=True, kw_only=True, eq=False, repr=False)
class ShowRequest(ModelRequest):
    """What ``show`` takes."""

    top: int = flag(10, "labels of each mode, at most (10)", type=whole_number, metavar="K")
    export: Path | None = flag(
        None, "write the model as the Tensor Toolbox's ktensor, too", type=path, metavar="FILE.ktn"
    )

    def check(self) -> None:
        whole("--top", self.top, 1)


def show(request: ShowRequest, session: VerbSession) -> int:
    """Print the components of a model: their weights, shares, and the labels that have most of them."""
    told = on_root(session.comm, lambda: _told(request))
    if told is not None:
        say(told)
    return 0


def _told(request: ShowRequest) -> str:
    request.check()
    model = load(request.tensor)
    size, told = components.size_and_text(model, request.top)
    if request.export is not None:
        told += f"\n{_exported(model, request)}"
    return f"{_headline(request.tensor, size)}\n{told}"


def _exported(model: AnyModel, request: ShowRequest) -> str:
    """Write a model as text; return a line that says so."""
    assert request.export is not None
    model = cp_model(model, request.tensor, "a Tucker model: a ktensor has components")
    with closing(Outputs()) as outputs:
        outputs.file(request.export, False, "choose another name")
        model.export(request.export, replace=False)
    return f"written as text to {one_line(str(request.export))}"


def _headline(place: Path, what: str) -> str:
    """Return what a model is of, and how well it fits, from its record beside it if there is one."""
    record = recorded(place)
    line = f"{one_line(str(place))}: {what}"
    if record.get("tensor"):
        line += f" of {one_line(record['tensor'])}"
    for name, what in (("fits", "fit"), ("loglikelihood", "log-likelihood")):
        if numbers := record.get(name):
            iterations = record.get("iterations") or len(numbers)
            line += f"; {what} {numbers[-1]:.6g} after {iterations} iterations"
    return line


def info(request: Request, session: VerbSession) -> int:
    """Describe a tensor. Flags that say how to compute are checked, and change nothing here."""
    comm = session.comm
    with display(comm.rank, request.quiet) as shown:
        described, code = on_root(comm, lambda: _description(request, shown)) or ("", 0)
    if comm.rank == 0:
        say(described)
    return comm.bcast(code)


def _description(request: Request, shown: Display) -> tuple[str, int]:
    """Return what is said of a tensor, and the exit code."""
    request.check()
    with closing(request.open_metrics()) as metrics:
        described = _described(request, shown, metrics)
    return described, EXIT_INCOMPLETE if metrics.failed else 0


def _described(request: Request, shown: Display, metrics: Metrics) -> str:
    source = open_path(request.tensor, SingleComm(), shown.reading, not request.no_verify, request.form)
    facts, described = kind_of(source).info(request.tensor.name, source)
    metrics.event("info", tensor=str(request.tensor), **facts)
    return described
