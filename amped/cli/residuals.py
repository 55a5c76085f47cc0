"""The verb ``residuals``: where a model fits a tensor worst."""

from __future__ import annotations

from contextlib import closing
from dataclasses import dataclass
from pathlib import Path
from typing import Any, ClassVar

from partitioner.flags import flag, path, whole_number
from partitioner.readers import is_table
from partitioner.validate import whole

from ..files import Outputs, check_table, write_text
from ..models.align import UNKNOWN
from ..models.dataframe import csv_text
from ..models.kruskal import KruskalTensor
from ..models.loading import cp_model, load_with_record
from ..models.residuals import KINDS, Residuals
from ..parallel.mpi import on_root
from ..report.progress import say
from .job import VerbSession
from .show import WritingRequest, of_file, recorded_tensor


@dataclass(frozen=True, kw_only=True, eq=False, repr=False)
class ResidualsRequest(WritingRequest):
    """The flags of ``residuals``."""

    SECOND: ClassVar[dict[str, Any] | None] = {
        "type": path,
        "metavar": "TENSOR",
        "help": "the tensor or table to compare with, read as recorded in the model",
    }
    other: Path
    top: int = flag(10, "maximum number of findings, and of elements in the table (10)", type=whole_number, metavar="K")
    kind: str = flag("deviance", "residuals of a Poisson model (deviance)", choices=KINDS)
    unknown: str = flag("error", "nonzeros whose labels the model lacks (error)", choices=UNKNOWN)
    output: Path | None = flag(None, "also write the elements as a table", type=path, metavar="FILE.csv")
    slices: Path | None = flag(None, "also write the misfit of all slices as a table", type=path, metavar="FILE.csv")

    @property
    def outputs(self) -> dict[str, Path | None]:
        return {"--output": self.output, "--slices": self.slices}

    @property
    def inputs(self) -> dict[str, Path | None]:
        return {**super().inputs, "TENSOR": self.other}

    def check(self) -> None:
        whole("--top", self.top, 1)
        super().check()
        check_table(self.output)
        check_table(self.slices)


def residuals(request: ResidualsRequest, session: VerbSession) -> int:
    """Show where a model fits a tensor worst: unusual and absent elements, groups and slices."""
    description = on_root(session.comm, lambda: _described(request))
    if description is not None:
        say(description)
    return 0


def _described(request: ResidualsRequest) -> str:
    """Return the findings as text, and write the requested tables."""
    request.check()
    model = cp_model(load_with_record(request.tensor), request.tensor, "is a Tucker model: residuals need CP models")
    with closing(Outputs()) as outputs:
        request.claim(outputs)
        found = _found(request, model)
        tables = ((request.output, found.columns(first_finding=1)), (request.slices, found.slice_columns()))
        for target, columns in tables:
            if target is not None:
                write_text(target, csv_text(columns), request.replace)
    return str(found)


def _found(request: ResidualsRequest, model: KruskalTensor) -> Residuals:
    how: dict[str, Any] = {"unknown": request.unknown, "kind": request.kind}
    table = is_table(request.other) and model.labels is not None
    with of_file(request.other, "; --unknown drop leaves them out"):
        other = request.other if table else recorded_tensor(request.other, model.run)
        return model.residuals(other, request.top, **how)
