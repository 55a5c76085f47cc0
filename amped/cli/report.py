"""The verb ``report``: the HTML report of an existing model."""

from __future__ import annotations

from contextlib import closing
from dataclasses import dataclass
from pathlib import Path
from typing import Any, ClassVar

from partitioner.errors import one_line
from partitioner.flags import flag, path
from partitioner.readers import is_table
from partitioner.tensors.dense import DenseTensor
from partitioner.tensors.sparse import SparseTensor

from ..errors import EXIT_INCOMPLETE, InputError
from ..files import Outputs
from ..models.align import aligned, observes_zeros, tensor_for
from ..models.history import AnyModel
from ..models.kruskal import MODEL
from ..models.loading import cp_model, load, load_with_record
from ..models.record import model_file
from ..parallel.mpi import on_root
from ..report import page
from ..report.changes import Other
from ..report.progress import PlainDisplay
from .job import VerbSession
from .run_requests import REPORT
from .show import WritingRequest, of_file, recorded_tensor

CHANGES = "changes.html"  # the report of two models
REFUSAL = "is a Tucker model: only CP models can be compared"


@dataclass(frozen=True, kw_only=True, eq=False, repr=False)
class ReportRequest(WritingRequest):
    """The flags of ``report``."""

    SECOND: ClassVar[dict[str, Any] | None] = {
        "type": path, "nargs": "?", "metavar": "OTHER", "help": "a second model: what changed from MODEL to it",
    }  # fmt: skip
    other: Path | None = None
    of_tensor: Path | None = flag(
        None, "tensor of MODEL, read as recorded: adds the largest residuals", type=path, name="tensor", metavar="T"
    )
    output: Path | None = flag(
        None, f"file to write (MODEL/{REPORT}; of two models MODEL/{CHANGES})", type=path, metavar="FILE.html"
    )

    title: str | None = flag(None, "title of the report (the name of the tensor, or of the models)", metavar="TEXT")

    @property
    def place(self) -> Path:
        """The file of the report."""
        if self.output is not None:
            return self.output
        name = REPORT if self.other is None else CHANGES
        if self.tensor.is_dir():
            return self.tensor / name
        if self.tensor.name == MODEL:
            return self.tensor.with_name(name)
        return self.tensor.with_suffix(".html") if self.other is None else self.tensor.with_suffix(f".{CHANGES}")

    @property
    def outputs(self) -> dict[str, Path | None]:
        return {"--output": self.place}

    @property
    def inputs(self) -> dict[str, Path | None]:
        other = None if self.other is None else model_file(self.other)
        return {**super().inputs, "OTHER": other, "--tensor": self.of_tensor}

    def check(self) -> None:
        page.check()
        super().check()
        page.check(self.output)


def report(request: ReportRequest, session: VerbSession) -> int:
    """Write an HTML report of a model: its components, and what changed from it to another model."""
    shown = PlainDisplay()
    if on_root(session.comm, lambda: _written(request)):
        shown.note(f"report in {one_line(str(request.place))}")
    return EXIT_INCOMPLETE if shown.failed else 0


def _written(request: ReportRequest) -> bool:
    request.check()
    with closing(Outputs()) as outputs:
        model = load_with_record(request.tensor)
        other = None if request.other is None else _other(model, request)
        request.claim(outputs)
        tensor = None if request.of_tensor is None else _compared(request.of_tensor, model)
        page.write(model, request.place, tensor, replace=request.replace, title=request.title, other=other)
    return True


def _other(first: AnyModel, request: ReportRequest) -> Other:
    """Read the second model, which is compared with the first one."""
    assert request.other is not None
    cp_model(first, request.tensor, REFUSAL)
    model = cp_model(load(request.other), request.other, REFUSAL)
    return Other(model, (str(request.tensor), str(request.other)))


def _compared(place: Path, model: AnyModel) -> SparseTensor | DenseTensor:
    """Read a tensor with the model's recorded read options; raise `InputError` if it does not match the model."""
    if is_table(place) and model.labels is not None:  # the model's may have been read from a store of the table
        with of_file(place):
            table = tensor_for(place, model.labels, keep_zeros=observes_zeros(None, model.run.get("mask")))
            return aligned(table, model.shape, model.labels)
    tensor = recorded_tensor(place, model.run)
    if tensor.shape != model.shape:
        sizes = (" x ".join(map(str, shape)) for shape in (tensor.shape, model.shape))
        raise InputError("has shape {}, the model {}".format(*sizes), path=place)
    if model.labels is not None and tensor.labels is not None and model.labels.checksum() != tensor.labels.checksum():
        raise InputError("has other labels than the model", path=place)
    return tensor
