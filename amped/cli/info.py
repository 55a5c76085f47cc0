"""The verb ``info``."""

from __future__ import annotations

from contextlib import closing

from ..errors import EXIT_INCOMPLETE
from ..operators.sources.dense import DenseSource
from ..parallel.mpi import SingleComm, on_root
from ..report import dense as dense_text
from ..report import text
from ..report.metrics import Metrics
from ..report.progress import Display, display, say
from ..runs.assembly import open_path
from .job import Session
from .requests import Request


def info(request: Request, session: Session) -> int:
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
