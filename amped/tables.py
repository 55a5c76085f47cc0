"""Tables in: the verb ``table``, and data frames in Python."""

from __future__ import annotations

import argparse
import signal
import time
from collections.abc import Sequence
from dataclasses import MISSING, asdict, dataclass, replace
from pathlib import Path
from typing import Any, ClassVar

from partitioner.build import partition
from partitioner.coo import SparseTensor
from partitioner.flags import byte_count, flag, path
from partitioner.readers import Form, collect

from . import requests
from .assembly import Session
from .errors import EXIT_INCOMPLETE, InputError
from .parallel.mpi import on_root
from .report.metrics import Metrics
from .report.progress import display


@dataclass(frozen=True, kw_only=True, eq=False, repr=False)
class Table(requests.Request):
    """What ``table`` takes."""

    POSITIONAL: ClassVar[dict[str, Any]] = {
        "type": path,
        "nargs": "+",
        "metavar": "FILE",
        "help": ".csv, .tsv, .json (.gz, .zst) or .parquet; several of one kind are one table",
    }
    output: Path = flag(MISSING, "folder of the store to make", type=path, metavar="STORE")
    memory: int | None = flag(
        None, "use no more of this machine, e.g. 2G (70%% of what is free)", type=byte_count, metavar="BYTES"
    )

    @classmethod
    def of(cls: type[requests.R], args: argparse.Namespace) -> requests.R:
        first, *more = args.tensor
        whole = vars(args) | {"tensor": first}
        request = super().of(argparse.Namespace(**whole))
        form = replace(request.form, more=tuple(map(str, more)))
        return replace(request, form=form)

    @property
    def inputs(self) -> dict[str, Path | None]:
        more = {f"FILE {number}": Path(name) for number, name in enumerate(self.form.more, 2)}
        return {**super().inputs, **more}

    def check(self) -> None:
        if not self.form.key:
            raise InputError("table needs --key EXPR, once for each mode")
        super().check()


def table(request: Table, session: Session) -> int:
    """Make a store of a table: rows of equal keys become one value, and keys labels."""
    comm, began = session.comm, time.perf_counter()
    for number in (signal.SIGTERM, signal.SIGUSR1):  # as Ctrl-C: remove the unfinished store
        signal.signal(number, signal.default_int_handler)
    with display(comm.rank, request.quiet) as shown:
        metrics = on_root(comm, lambda: _opened(request)) or Metrics()
        rows = 0

        def read(done: int, total: int | None) -> None:
            nonlocal rows
            rows = done
            shown.rows(done, total)

        store = partition(
            request.tensor,
            request.output,
            ranks=comm,
            memory=request.memory,
            force=request.force,
            progress=read,
            device="cuda" if request.options.device == "cuda" else "cpu",
            form=request.form,
        )
        seconds, shape = time.perf_counter() - began, " x ".join(map(str, store.shape))
        shown.note(f"{request.tensor.name}: {rows:,} rows, {shape}, {store.nnz:,} nonzeros")
        shown.note(f"{store.path}: written in {seconds:.3g} s, {rows / seconds / 1e6:.3g} million rows/s")
        facts = {"rows": rows, "shape": store.shape, "nonzeros": store.nnz, "seconds": seconds}
        metrics.event("table", tensor=str(request.tensor), **(asdict(request.form) | facts))
        metrics.close()
        return EXIT_INCOMPLETE if comm.bcast(metrics.failed or shown.failed) else 0


def _opened(request: Table) -> Metrics:
    request.check()
    return request.open_metrics()


def from_frame(
    frame: Any,
    keys: Sequence[str] | str,
    value: str | None = None,
    *,
    where: str | None = None,
    missing: str = "drop",
) -> SparseTensor:
    """Return the tensor of a table in memory: rows of equal keys are one nonzero.

    Parameters
    ----------
    frame : pandas, Polars or Arrow table, or DuckDB relation
        Anything else with ``__arrow_c_stream__``, too. Its columns are read where they are.
    keys : sequence of str
        For each mode a column, or an expression of DuckDB's SQL, as ``"hour(time)"``. Their values become ``labels``.
    value : str, optional
        A column, or expression, that is summed; or an aggregate, as ``"avg(delay)"``. By default rows are counted.
    where : str, optional
        The condition of the rows that are read.
    missing : {"drop", "keep"}
        Whether rows that lack a key are left out, and told of, or get a missing label: NaN, NaT or None.

    Returns
    -------
    SparseTensor
        With `labels`: numbers, dates and times in their order, and bins of time without rows, too; strings in
        alphabetical order, categories in theirs. Under ``mpirun`` each rank that calls this has its own.

    Raises
    ------
    InputError
        If it is no table, an expression is wrong, or no row has all keys.

    Warns
    -----
    InputWarning
        Of rows that are left out, and of keys that look like identifiers.

    Examples
    --------
    >>> X = from_frame(flights, ["carrier", "dest", "hour(time_hour)"])  # doctest: +SKIP
    >>> model = cp_als(X, rank=10, nonnegative=True)  # doctest: +SKIP
    >>> model.labels[1][model.factors[1][:, 0].argmax()]  # doctest: +SKIP
    """
    from partitioner.readers.database import is_frame
    from partitioner.readers.table import TablePart

    if not is_frame(frame):
        kinds = "a pandas, Polars or Arrow table, or a DuckDB relation"
        raise InputError(f"frame is of type {type(frame).__name__}: expected {kinds}")
    part = TablePart(frame, Form(key=keys, value=value, where=where, missing=missing))  # type: ignore[arg-type]
    tensor = SparseTensor.from_columns(*collect("the table", part), part.lengths, path="the table")
    tensor.labels = part.outcome.labels
    return tensor
