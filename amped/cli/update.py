"""The verb ``update``: a model with new slices or elements."""

from __future__ import annotations

import json
import time
from collections.abc import Iterator
from contextlib import closing
from dataclasses import dataclass, fields
from pathlib import Path
from typing import Any, ClassVar

from partitioner.errors import one_line
from partitioner.flags import flag, path, real_number, whole_number
from partitioner.host.signals import NOTHING
from partitioner.readers import PLAIN, ReadOptions, is_dense, is_table, open_dense, read_sparse, with_zeros
from partitioner.tensors.interop import AnyTensor
from partitioner.tensors.labels import mode_names, mode_number

from ..api.updating import updated
from ..errors import EXIT_INCOMPLETE, InputError
from ..files import Outputs, write_text
from ..models.align import observes_zeros, tensor_for
from ..models.kruskal import KruskalTensor
from ..models.loading import cp_model, load_with_record
from ..models.record import MODEL, RUN, model_file
from ..parallel.mpi import on_root
from ..report.displays import display
from ..report.metrics import Metrics, versions
from ..runs.update_files import FILE
from .job import VerbSession
from .requests import Request
from .show import ModelRequest

RECORDED = "no_values", "compact", "dense", "value", "where", "missing", "index_base", "keep_zeros", "encoding"
"""Options for reading new data that are those of the model's tensor, unless they are given."""


def _mode(text: str) -> int | str:
    """Parse the number or the name of a mode."""
    return int(text) if text.isdecimal() else text


@dataclass(frozen=True, kw_only=True, eq=False, repr=False)
class UpdateRequest(Request):
    """The flags of ``update``."""

    POSITIONAL: ClassVar[dict[str, Any]] = ModelRequest.POSITIONAL
    SECOND: ClassVar[dict[str, Any] | None] = {
        "type": path,
        "nargs": "+",
        "metavar": "NEW",
        "help": "new data, one update per file: a tensor, or a table with the model's keys; read as the model's tensor",
    }
    other: list[Path]
    mode: int | str | None = flag(
        None, "mode whose slices grow: its number, from 0, or name (none: new elements only)", type=_mode, metavar="N"
    )
    elements: str = flag(
        "add", "elements that the model knows: added to the earlier ones, or in their place (add)",
        choices=("add", "replace"),
    )  # fmt: skip
    forgetting: float = flag(1.0, "factor of the weights of earlier slices per update (1)", type=real_number)
    sweeps: int = flag(2, "times that each matrix is solved per update (2)", type=whole_number, metavar="K")
    step: int | None = flag(
        None, "update with K slices of the mode after the other (all slices of a file)", type=whole_number, metavar="K"
    )
    output: Path | None = flag(None, "folder for model.npz and run.json (MODEL-updated)", type=path, metavar="DIR")
    checkpoint: Path | None = flag(None, "folder for a checkpoint", type=path, metavar="DIR")
    every: int | None = flag(None, "updates between checkpoints (1)", type=whole_number, metavar="K")
    resume: bool = flag(False, "continue from the checkpoint, if there is one")

    @property
    def outputs(self) -> dict[str, Path | None]:
        files = {} if self.output is None else {MODEL: self.output / MODEL, RUN: self.output / RUN}
        saved = None if self.checkpoint is None else self.checkpoint / FILE
        return {**super().outputs, **files, "--checkpoint": saved}

    @property
    def inputs(self) -> dict[str, Path | None]:
        new = {f"NEW {number}": file for number, file in enumerate(self.other, 1)}
        return {"MODEL": model_file(self.tensor), **new}

    def check(self) -> None:
        if self.checkpoint is None:
            for name, value in (("every", self.every), ("resume", self.resume)):
                if value:
                    raise InputError(f"--{name} needs --checkpoint DIR")
        if self.form.key:
            raise InputError("--key: the keys of a table are those of the model")
        for file in self.other:
            if not file.exists():
                raise InputError("no such file", path=file)
        super().check()

    def claim(self, outputs: Outputs) -> Path:
        """See `Request`; returns the folder of the model."""
        if self.output is None:
            name = self.tensor.parent.name if self.tensor.name == MODEL else self.tensor.stem
            return outputs.fresh(Path(f"{name or 'model'}-updated"), MODEL)
        outputs.folder(self.output)
        for name in (MODEL, RUN):
            outputs.file(self.output / name, self.force)
        return self.output

    def arguments(self) -> dict[str, Any]:
        """Return the arguments of `KruskalTensor.update`."""
        names = "elements", "forgetting", "sweeps", "step", "checkpoint", "resume", "deadline"
        return {name: getattr(self, name) for name in names} | {"every": self.every or 1, **vars(self.options)}


def update(request: UpdateRequest, session: VerbSession) -> int:
    """Update a CP model with new slices, elements or labels, without the earlier data."""
    comm, began = session.comm, time.perf_counter()
    with display(comm.rank, request.quiet, progress="stderr") as shown, closing(Outputs()) as outputs:
        place, model, metrics = on_root(comm, lambda: _opened(request, outputs)) or (None, None, Metrics())
        _tell_saved(request, session)
        mode = comm.bcast(on_root(comm, lambda: _mode_number(request.mode, model)))
        found = _updated(request, model, mode)
        seconds = time.perf_counter() - began
        opened = None if place is None or model is None else (place, model)
        record = on_root(comm, lambda: opened and _written(request, *opened, found, seconds, outputs))
        if record and opened:
            metrics.event("update", **record)
            session.stop.saved = lambda: f"model in {opened[0] / MODEL}"
            count, shapes = record["updates"], (" x ".join(map(str, each.shape)) for each in (opened[1], found))
            before, after = shapes
            shown.note(f"{one_line(str(request.tensor))}: {before}, after {count} update{'s' * (count != 1)} {after}")
            shown.note(f"model in {one_line(str(opened[0] / MODEL))}, {seconds:.3g} s")
        metrics.close()
        return EXIT_INCOMPLETE if comm.bcast(metrics.failed or shown.failed) else 0


def _written(
    request: UpdateRequest, place: Path, model: KruskalTensor, found: KruskalTensor, seconds: float, outputs: Outputs
) -> dict[str, Any]:
    """Write the updated model and its record, which is returned."""
    record, replaced = _record(request, model, found, seconds), outputs.replaced
    found.run = {name: each for name, each in record.items() if name != "seconds"}
    found.save(place / MODEL, replace=place / MODEL in replaced)
    write_text(place / RUN, json.dumps(record, indent=1) + "\n", place / RUN in replaced)
    return record


def _tell_saved(request: UpdateRequest, session: VerbSession) -> None:
    """Let a stopped run name its checkpoint."""
    if (folder := request.checkpoint) is not None:
        remedy = f"checkpoint in {folder}: the same command with --resume continues"
        session.stop.saved = lambda: remedy if (folder / FILE).exists() else NOTHING


def _mode_number(mode: int | str | None, model: KruskalTensor | None) -> int | None:
    """Return the number of a mode."""
    if model is None or not isinstance(mode, str):
        return None if isinstance(mode, str) else mode
    return mode_number(mode_names(model.labels, len(model.shape)), mode, "--mode")


def _updated(request: UpdateRequest, model: KruskalTensor | None, mode: int | None) -> KruskalTensor:
    """Return the updated model; errors about new data name their file. Collective."""
    current: Path | None = None

    def new() -> Iterator[AnyTensor]:
        nonlocal current
        assert model is not None
        for file in request.other:
            current = file
            yield _new(request, model, file)

    try:
        return updated(model, iter(()) if model is None else new(), mode, **request.arguments())
    except InputError as error:
        if current is None or error.path is not None or not error.cause.startswith("X"):
            raise
        raise InputError(error.cause, path=current) from None


def _opened(request: UpdateRequest, outputs: Outputs) -> tuple[Path, KruskalTensor, Metrics]:
    """Check the request; return the folder for the result, the model and the metrics. Called on rank 0."""
    request.check()
    loaded = load_with_record(request.tensor)
    advice = "decompose all data again with amped tucker --init MODEL"
    model = cp_model(loaded, request.tensor, f"is a Tucker model: only CP models can be updated; {advice}")
    place = request.claim(outputs)
    return place, model, request.open_metrics()


def _new(request: UpdateRequest, model: KruskalTensor, file: Path) -> AnyTensor:
    """Read new data with the options of the model's tensor, unless the request has others."""
    known = {name: model.run[name] for name in RECORDED if model.run.get(name) is not None}
    given = {each.name: getattr(request.form, each.name) for each in fields(ReadOptions)}
    given = {name: value for name, value in given.items() if value != getattr(PLAIN, name)}
    form = ReadOptions(**known | given)
    zeros = form.keep_zeros or request.elements == "replace" or observes_zeros(None, model.run.get("mask"))
    if is_table(file):
        return tensor_for(file, model.labels, given.get("value"), given.get("where"), zeros)
    form = ReadOptions(**known | given | {"keep_zeros": zeros, "value": None, "where": None})
    if is_dense(file):
        return open_dense(file, form)
    sparse = read_sparse(file, form)
    return with_zeros(sparse, file) if form.dense else sparse


def _record(request: UpdateRequest, model: KruskalTensor, found: KruskalTensor, seconds: float) -> dict[str, Any]:
    """Return the record of the updates."""
    kept = {name: model.run[name] for name in RECORDED if model.run.get(name) is not None}
    names = "mode", "elements", "forgetting", "sweeps", "step"
    return {
        **kept, **found.run, "model": str(request.tensor), "new": list(map(str, request.other)),
        **{name: getattr(request, name) for name in names}, "precision": request.options.precision,
        "rank": found.rank, "seconds": seconds, "versions": versions(),
    }  # fmt: skip
