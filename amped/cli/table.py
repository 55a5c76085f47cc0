"""The verb ``table``: convert tables to a store."""

from __future__ import annotations

import argparse
import time
from dataclasses import MISSING, asdict, dataclass, replace
from pathlib import Path
from typing import Any, ClassVar

from partitioner.build import partition
from partitioner.errors import one_line
from partitioner.flags import byte_count, flag, path

from ..errors import EXIT_INCOMPLETE, InputError
from ..parallel.mpi import on_root
from ..report import text
from ..report.displays import display
from ..report.metrics import Metrics
from .job import VerbSession
from .requests import R, Request


@dataclass(frozen=True, kw_only=True, eq=False, repr=False)
class TableRequest(Request):
    """The flags of ``table``."""

    POSITIONAL: ClassVar[dict[str, Any]] = {
        "type": path,
        "nargs": "+",
        "metavar": "FILE",
        "help": ".csv, .tsv, .json (.gz, .zst) or .parquet; several files of one format form one table",
    }
    output: Path = flag(MISSING, "folder for the new store", type=path, metavar="STORE")
    memory: int | None = flag(None, "memory limit, e.g. 2G (70%% of the free memory)", type=byte_count, metavar="BYTES")

    @classmethod
    def of(cls: type[R], args: argparse.Namespace) -> R:
        first, *more = args.tensor
        request = super().of(argparse.Namespace(**vars(args) | {"tensor": first}))
        form = replace(request.form, more=tuple(map(str, more)))
        return replace(request, form=form)

    @property
    def inputs(self) -> dict[str, Path | None]:
        more = {f"FILE {number}": Path(name) for number, name in enumerate(self.form.more, 2)}
        return {**super().inputs, **more}

    def check(self) -> None:
        for file in self.inputs.values():
            if file is not None and not file.exists():
                raise InputError("no such file", path=file)
        if not self.form.key:
            raise InputError("table needs --key EXPR once per mode")
        super().check()


def table(request: TableRequest, session: VerbSession) -> int:
    """Convert tables to a store: rows with equal keys become one value, and the keys become labels."""
    comm, began = session.comm, time.perf_counter()
    with display(comm.rank, request.quiet, progress="stderr") as shown:
        metrics = on_root(comm, lambda: _opened(request)) or Metrics()
        rows = 0

        def read(done: int, total: int | None) -> None:
            nonlocal rows
            rows = done
            shown.rows(done, total)

        with shown.within("converting"):
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
        session.stop.saved = lambda: f"the store is in {store.path}"
        seconds, shape = time.perf_counter() - began, " x ".join(map(str, store.shape))
        shown.note(f"{one_line(request.tensor.name)}: {rows:,} rows, {shape}, {store.nnz:,} nonzeros")
        shown.note(f"{one_line(str(store.path))}: written in {seconds:.3g} s, {text.rate(rows / seconds)} rows/s")
        facts = {"rows": rows, "shape": store.shape, "nonzeros": store.nnz, "seconds": seconds}
        metrics.event("table", tensor=str(request.tensor), **(asdict(request.form) | facts))
        metrics.close()
        return EXIT_INCOMPLETE if comm.bcast(metrics.failed or shown.failed) else 0


def _opened(request: TableRequest) -> Metrics:
    request.check()
    return request.open_metrics()
