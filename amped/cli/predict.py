"""The verb ``predict``: the values of a model at the coordinates in a file."""

from __future__ import annotations

import csv
import io
import sys
from collections.abc import Iterator, Sequence
from contextlib import closing
from dataclasses import MISSING, dataclass
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from partitioner.errors import one_line
from partitioner.flags import flag, path, whole_number
from partitioner.readers import ReadOptions, is_dense, is_table, open_part, read, settle
from partitioner.sorting.tables import Pile
from partitioner.tensors.labels import as_labels, mode_names

from ..errors import EXIT_INCOMPLETE, InputError
from ..files import Outputs, write_npz, write_whole
from ..models.coordinates import ElementPlaces, coordinates_of
from ..models.kruskal import MODEL, KruskalTensor
from ..models.loading import load
from ..models.tucker import TuckerTensor
from ..parallel.mpi import on_root
from ..report.progress import PlainDisplay, say
from .job import VerbSession
from .show import ModelRequest

BLOCK = 1 << 16  # lines that are formatted at once
ARCHIVE, TABLES = ".npz", (".csv", ".tsv")


@dataclass(frozen=True, kw_only=True, eq=False, repr=False)
class PredictRequest(ModelRequest):
    """The flags of ``predict``."""

    at: Path = flag(
        MISSING,
        "coordinates: text or .npz with indices, with or without values; or a table with the model's keys",
        type=path,
        metavar="FILE",
    )
    output: Path | None = flag(
        None, "file to write: text, .npz, or .csv with labels (standard output)", type=path, metavar="FILE"
    )
    index_base: int | None = flag(
        None, "lowest index in FILE (default: 1; in .npz 0)", type=whole_number, choices=(0, 1), metavar="0|1"
    )
    replace: bool = flag(False, "overwrite an existing file", name="force")

    @property
    def outputs(self) -> dict[str, Path | None]:
        return {"--output": self.output}

    @property
    def inputs(self) -> dict[str, Path | None]:
        return {"MODEL": self.tensor / MODEL if self.tensor.is_dir() else self.tensor, "--at": self.at}

    def claim(self, outputs: Outputs) -> None:
        if self.output is not None:
            outputs.file(self.output, self.replace)


class ReadCoordinates(NamedTuple):
    """ReadCoordinates of a file.

    Attributes
    ----------
    coordinates : ElementPlaces
        In the model.
    shown : list of (n,) arrays
        Indices or labels, one array per mode, as in the file.
    values : (n,) array, optional
        The file's own values.
    base : int, optional
        The lowest index in the file; None for labels.
    """

    coordinates: ElementPlaces
    shown: list[NDArray[Any]]
    values: NDArray[Any] | None
    base: int | None


AnyKind = KruskalTensor | TuckerTensor


def predict(request: PredictRequest, session: VerbSession) -> int:
    """Evaluate a model at the coordinates in a file."""
    shown = PlainDisplay()
    if (note := on_root(session.comm, lambda: _predicted(request))) is not None:
        shown.note(note)
    return EXIT_INCOMPLETE if shown.failed else 0


def _predicted(request: PredictRequest) -> str | None:
    """Print or write predictions; return a line about the written file."""
    request.check()
    model = load(request.tensor)
    with closing(Outputs()) as outputs:
        request.claim(outputs)
        elements = _elements(request, model)
        predicted = elements.coordinates.values(model.predict_at(elements.coordinates.columns))
        names = mode_names(model.labels, len(model.shape))
        if request.output is None:
            for text in _lines(elements, predicted, names, "," if elements.base is None else " "):
                say(text.removesuffix("\n"))
            return None
        _write(request, model, elements, predicted, names)
    note = f"{predicted.size:,} predictions in {one_line(str(request.output))}"
    if elements.values is not None:
        error = np.sqrt(np.nanmean(np.square(predicted - elements.values)))
        note += f"; RMSE {error:.6g} against the values in {one_line(str(request.at))}"
    return note


def _elements(request: PredictRequest, model: AnyKind) -> ReadCoordinates:
    """Read the elements of the file."""
    labels, place = model.labels, request.at
    try:
        if is_table(place):
            if labels is None or labels.names is None:
                raise InputError("is a table, but the model has no names of key columns")
            missing = labels.query.missing if labels.query else "drop"
            table = read(place, keys=labels.names, where="true", missing=missing)
            assert table.labels is not None
            shown = [own[column] for own, column in zip(table.labels, table.columns, strict=True)]  # type: ignore[union-attr]
            return ReadCoordinates(coordinates_of(table, model.shape, labels), shown, None, None)
        if is_dense(place):
            raise InputError("is a dense tensor: expected coordinates")
        columns, values, base = _indices(place, len(model.shape), request.index_base)
        shown = [column.astype(np.int64) + base for column in columns]
        numbered = model.run.get("compact") is True and labels is not None  # labels are the original indices
        given: Any = tuple(map(as_labels, shown)) if numbered else columns.T
        return ReadCoordinates(coordinates_of(given, model.shape, labels), shown, values, base)
    except InputError as error:
        raise InputError(error.cause, path=place, line=error.line) from None


def _indices(place: Path, order: int, base: int | None) -> tuple[NDArray[np.int32], NDArray[Any] | None, int]:
    """Read a file's indices, (order, n), in its order, its values if it has any, and its lowest index."""
    causes = list[InputError]()
    for no_values in (False, True):
        try:
            part = open_part(place, form=ReadOptions(no_values=no_values, index_base=base))
        except InputError as error:
            causes.append(error)
            continue
        if part.order == order:
            pile = Pile(order, part.dtype, sys.maxsize, part.expected)
            part.fill(pile)
            outcome = settle(place, [part.outcome])
            columns, values = pile.take()
            return columns, None if no_values else values, outcome.base
        causes.append(InputError(f"has elements of {part.order} modes, the model {order}"))
    raise causes[-1] if "modes, the model" in causes[-1].cause else causes[0]


def _lines(elements: ReadCoordinates, predicted: NDArray[Any], names: Sequence[str], separator: str) -> Iterator[str]:
    """Yield blocks of lines: indices or labels, and the prediction. Tables have a head."""
    head = separator != " "
    for begin in range(0, predicted.size, BLOCK):
        part, text = slice(begin, begin + BLOCK), io.StringIO()
        writer = csv.writer(text, delimiter=separator, lineterminator="\n")
        if head and not begin:
            writer.writerow([*names, "predicted"])
        columns = [column[part].tolist() for column in elements.shown]
        writer.writerows(zip(*columns, map(repr, predicted[part].tolist()), strict=True))
        yield text.getvalue()


def _write(
    request: PredictRequest, model: AnyKind, elements: ReadCoordinates, predicted: NDArray[Any], names: Sequence[str]
) -> None:
    output = request.output
    assert output is not None
    if output.suffix.lower() == ARCHIVE:
        if elements.base is None or elements.coordinates.known is not None:
            raise InputError("an archive holds indices: name a .csv file for labels", path=output)
        arrays = {"indices": np.stack(elements.coordinates.columns, axis=1), "values": predicted}
        write_npz(output, arrays | {"shape": np.array(model.shape)}, request.replace)
        return
    extension = output.suffix.lower()
    if elements.base is None and extension not in TABLES:
        raise InputError(f"labels are written to {' or '.join(TABLES)} files", path=output)
    separator = {".csv": ",", ".tsv": "\t"}.get(extension, " ")
    texts = _lines(elements, predicted, names, separator)
    write_whole(output, lambda file: [file.write(text.encode()) for text in texts], request.replace)
