"""The verb ``compare``: matched components of two models, and the labels that gained or lost."""

from __future__ import annotations

from contextlib import closing
from dataclasses import dataclass
from pathlib import Path
from typing import Any, ClassVar

from partitioner.flags import flag, path, whole_number
from partitioner.validate import whole

from ..files import Outputs, check_table, write_text
from ..models.dataframe import csv_text, from_one
from ..models.kruskal import KruskalTensor
from ..models.loading import cp_model, load
from ..models.record import model_file
from ..parallel.mpi import on_root
from ..report.figures import check_picture
from ..report.progress import say
from .job import VerbSession
from .show import WritingRequest


@dataclass(frozen=True, kw_only=True, eq=False, repr=False)
class CompareRequest(WritingRequest):
    """The flags of ``compare``."""

    SECOND: ClassVar[dict[str, Any] | None] = {"type": path, "metavar": "OTHER", "help": "the second model"}
    other: Path
    top: int = flag(5, "maximum number of labels per mode (5)", type=whole_number, metavar="K")
    output: Path | None = flag(None, "also write the changes as a table", type=path, metavar="FILE.csv")
    plot: Path | None = flag(None, "also draw both models: .png, .svg or .pdf", type=path, metavar="FILE")

    @property
    def outputs(self) -> dict[str, Path | None]:
        return {"--output": self.output, "--plot": self.plot}

    @property
    def inputs(self) -> dict[str, Path | None]:
        return {**super().inputs, "OTHER": model_file(self.other)}

    def check(self) -> None:
        whole("--top", self.top, 1)
        if self.plot is not None:
            check_picture(self.plot)
        super().check()
        check_table(self.output)


def compare(request: CompareRequest, session: VerbSession) -> int:
    """Compare two models: which components match, and which labels gained or lost."""
    description = on_root(session.comm, lambda: _compared(request))
    if description is not None:
        say(description)
    return 0


def _compared(request: CompareRequest) -> str:
    """Return the comparison as text, and write the requested files."""
    request.check()
    first, second = map(_loaded, (request.tensor, request.other))
    with closing(Outputs()) as outputs:
        request.claim(outputs)
        comparison = first.compare(second, request.top)
        if request.output is not None:
            write_text(
                request.output, csv_text(from_one(comparison.change_columns(), "first", "second")), request.replace
            )
        if request.plot is not None:
            comparison.plot(request.plot, request.top)
    return str(comparison)


def _loaded(place: Path) -> KruskalTensor:
    return cp_model(load(place), place, "is a Tucker model: only CP models can be compared")
