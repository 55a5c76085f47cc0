"""The verbs ``show``, which prints a model, and ``info``, which describes a tensor."""

from __future__ import annotations

import argparse
from collections.abc import Iterator, Mapping
from contextlib import closing, contextmanager
from dataclasses import dataclass, fields
from pathlib import Path
from typing import Any, ClassVar

from partitioner.errors import one_line
from partitioner.flags import flag, path, whole_number
from partitioner.readers import PLAIN, ReadOptions, is_dense, is_table, open_dense, read_sparse, with_zeros
from partitioner.tensors.dense import DenseTensor
from partitioner.tensors.sparse import SparseTensor
from partitioner.validate import whole

from ..errors import EXIT_INCOMPLETE, InputError
from ..files import Outputs
from ..models.align import observes_zeros
from ..models.history import AnyModel
from ..models.loading import cp_model, load
from ..models.record import model_file, recorded
from ..options import Options
from ..parallel.mpi import SingleComm, on_root
from ..report import components
from ..report.displays import display
from ..report.progress import Display, say
from ..report.text import figure
from ..runs.assembly import open_path
from ..runs.kinds import kind_of
from .job import VerbSession
from .requests import R, Request

QUERY = {"key", "value", "where", "missing", "encoding"}  # read options of tables only


@dataclass(frozen=True, kw_only=True, eq=False, repr=False)
class ModelRequest(Request):
    """The flags of verbs that read a model."""

    POSITIONAL: ClassVar[dict[str, Any]] = {
        "type": path,
        "metavar": "MODEL",
        "help": "output folder of cpd or tucker, its model.npz, or a ktensor in text",
    }
    COMPUTES: ClassVar[bool] = False

    @classmethod
    def of(cls: type[R], args: argparse.Namespace) -> R:
        values = vars(args)
        own = {field.name: values[field.name] for field in fields(cls) if field.name in values}
        return cls(options=Options(), form=PLAIN, **own)

    @property
    def inputs(self) -> dict[str, Path | None]:
        return {"MODEL": model_file(self.tensor)}


@dataclass(frozen=True, kw_only=True, eq=False, repr=False)
class WritingRequest(ModelRequest):
    """The flags of verbs that read a model and write files."""

    replace: bool = flag(False, "overwrite existing files", name="force")

    def claim(self, outputs: Outputs) -> None:
        for place in filter(None, self.outputs.values()):
            outputs.file(place, self.replace)


@contextmanager
def of_file(place: Path, advice: str = "") -> Iterator[None]:
    """Name the file in errors about X, and add advice to those about its labels."""
    try:
        yield
    except InputError as error:
        if not error.cause.startswith("X"):
            raise
        cause = error.cause.removeprefix("X: ").removeprefix("X ")
        raise InputError(cause + (advice if cause.startswith("labels") else ""), path=place) from None


def recorded_tensor(place: Path, record: Mapping[str, Any]) -> SparseTensor | DenseTensor:
    """Read a tensor with the read options in the record of a model."""
    names = {field.name for field in fields(ReadOptions)} - (set() if is_table(place) else QUERY)
    known = {name: record[name] for name in names if record.get(name) is not None}
    known["keep_zeros"] = bool(known.get("keep_zeros")) or observes_zeros(None, record.get("mask"))
    form = ReadOptions(**known | {"shape": tuple(known["shape"]) if "shape" in known else None})
    if is_dense(place):
        return open_dense(place, form)
    sparse = read_sparse(place, form)
    return with_zeros(sparse, place) if form.dense else sparse


@dataclass(frozen=True, kw_only=True, eq=False, repr=False)
class ShowRequest(ModelRequest):
    """The flags of ``show``."""

    top: int = flag(10, "maximum number of labels per mode (10)", type=whole_number, metavar="K")
    export: Path | None = flag(
        None, "also write the model as a ktensor of the Tensor Toolbox", type=path, metavar="FILE.ktn"
    )

    def check(self) -> None:
        whole("--top", self.top, 1)


def show(request: ShowRequest, session: VerbSession) -> int:
    """Print the components of a model: their weights, shares and top labels."""
    description = on_root(session.comm, lambda: _model_text(request))
    if description is not None:
        say(description)
    return 0


def _model_text(request: ShowRequest) -> str:
    """Return the description of a model, and export the model if requested."""
    request.check()
    model = load(request.tensor)
    size, description = components.size_and_text(model, request.top)
    if request.export is not None:
        description += f"\n{_exported(model, request)}"
    return f"{_headline(request.tensor, size)}\n{description}"


def _exported(model: AnyModel, request: ShowRequest) -> str:
    """Write a model as text; return a line with the file's name."""
    assert request.export is not None
    model = cp_model(model, request.tensor, "is a Tucker model: only CP models can be written as a ktensor")
    with closing(Outputs()) as outputs:
        outputs.file(request.export, False, "choose another name")
        model.export(request.export, replace=False)
    return f"written as text to {one_line(str(request.export))}"


def _headline(place: Path, size: str) -> str:
    """Return a line about a model; with its tensor and fit if it has a record."""
    record = recorded(place)
    line = f"{one_line(str(place))}: {size}"
    if record.get("tensor"):
        line += f" of {one_line(record['tensor'])}"
    for name, metric in (("fits", "fit"), ("loglikelihood", "log-likelihood"), ("objectives", "objective")):
        if numbers := record.get(name):
            iterations = record.get("iterations") or len(numbers)
            return f"{line}; {metric} {figure(numbers[-1])} after {iterations} iterations"
    return line


def info(request: Request, session: VerbSession) -> int:
    """Describe a tensor: shape, values and rows. Flags on how to compute are checked but have no effect."""
    comm = session.comm
    with display(comm.rank, request.quiet, progress="stderr") as shown:
        description, code = on_root(comm, lambda: _tensor_text(request, shown)) or ("", 0)
    if comm.rank == 0:
        say(description)
    return comm.bcast(code)


def _tensor_text(request: Request, shown: Display) -> tuple[str, int]:
    """Return the description of a tensor, and the exit code."""
    request.check()
    with closing(request.open_metrics()) as metrics:
        with shown.within("reading"):
            source = open_path(request.tensor, SingleComm(), shown.reading, not request.no_verify, request.form)
        facts, description = kind_of(source).info(request.tensor.name, source)
        metrics.event("info", tensor=str(request.tensor), **facts)
    return description, EXIT_INCOMPLETE if metrics.failed else 0
