"""The verb ``predict``: the values of a model at the coordinates in a file."""

from __future__ import annotations

import csv
import io
import sys
from collections.abc import Iterator, Sequence
from contextlib import closing
from dataclasses import MISSING, dataclass
from pathlib import Path
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from partitioner.array_types import Floats
from partitioner.errors import one_line
from partitioner.flags import flag, path, whole_number
from partitioner.readers import ReadOptions, is_dense, is_table, open_part, read, settle
from partitioner.readers.tables.database import identifier
from partitioner.sorting.tables import Pile
from partitioner.tensors.interop import AnyTensor
from partitioner.tensors.labels import Labels, as_labels, mode_names
from partitioner.wording import alternatives, readable

from ..errors import EXIT_INCOMPLETE, InputError
from ..files import OTHERS, PACKED, Outputs, write_npz, write_whole
from ..models.coordinates import ElementPlaces, coordinates_of
from ..models.kruskal import KruskalTensor
from ..models.loading import load
from ..models.tucker import TuckerTensor
from ..parallel.mpi import on_root
from ..report.progress import PlainDisplay, say
from .job import VerbSession
from .show import WritingRequest

BLOCK = 1 << 16  # lines that are formatted at once
ARCHIVE, TABLES, TEXTS = ".npz", (".csv", ".tsv"), (".txt", ".tns")


@dataclass(frozen=True, kw_only=True, eq=False, repr=False)
class PredictRequest(WritingRequest):
    """The flags of ``predict``."""

    at: Path = flag(
        MISSING,
        "coordinates: text or .npz with indices, with or without values; or a table with columns for keys or modes",
        type=path,
        metavar="FILE",
    )
    output: Path | None = flag(
        None, "file to write: text, .npz, or .csv with labels (standard output)", type=path, metavar="FILE"
    )
    index_base: int | None = flag(
        None, "lowest index in FILE (default: 1; in .npz 0)", type=whole_number, choices=(0, 1), metavar="0|1"
    )

    @property
    def outputs(self) -> dict[str, Path | None]:
        return {"--output": self.output}

    @property
    def inputs(self) -> dict[str, Path | None]:
        return {**super().inputs, "--at": self.at}

    def check(self) -> None:
        super().check()
        if self.output is None:
            return
        extension = self.output.suffix.lower()
        if is_table(self.at) and extension not in TABLES:
            raise InputError(f"predictions with labels are written to {alternatives(TABLES)} files", path=self.output)
        if extension in (*PACKED, *OTHERS) and extension not in (*TABLES, *TEXTS):
            known = alternatives((*TEXTS, *TABLES, ARCHIVE))
            raise InputError(f"predictions are written to {known} files", path=self.output)


class ReadCoordinates(NamedTuple):
    """The elements that a file names.

    Attributes
    ----------
    coordinates : ElementPlaces
        Their indices in the model.
    shown : list of (n,) arrays
        Their indices or labels, one array per mode, as in the file.
    values : (n,) array, optional
        Their values in the file.
    base : int, optional
        What `shown` exceeds the indices of an archive by; None if `shown` are labels.
    """

    coordinates: ElementPlaces
    shown: list[Floats]
    values: Floats | None
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
    if elements.values is not None and not np.isnan(predicted).all():
        error = np.sqrt(np.nanmean(np.square(predicted - elements.values)))
        note += f"; RMSE {readable(error)} against the values in {one_line(str(request.at))}"
    return note


def _elements(request: PredictRequest, model: AnyKind) -> ReadCoordinates:
    """Read the elements of the file."""
    labels, place = model.labels, request.at
    try:
        if is_table(place):
            if labels is None or labels.keys is None:
                raise InputError("is a table, but the model has no names of key columns")
            table = _table(place, labels)
            assert table.labels is not None
            shown = [own[column] for own, column in zip(table.labels, table.columns, strict=True)]  # type: ignore[union-attr]
            return ReadCoordinates(coordinates_of(table, model.shape, labels), shown, None, None)
        if is_dense(place):
            raise InputError("is a dense tensor: expected coordinates")
        columns, values, base = _indices(place, len(model.shape), request.index_base)
        shown = [column.astype(np.int64) + base for column in columns]
        numbered = _has_original_indices(model)
        given: object = tuple(map(as_labels, shown)) if numbered else columns.T
        base = 0 if numbered else base
        return ReadCoordinates(coordinates_of(given, model.shape, labels), shown, values, base)
    except InputError as error:
        raise InputError(error.cause, path=place, line=error.line) from None


def _table(place: Path, labels: Labels) -> AnyTensor:
    """Read a table with the keys of the model's table, or else with columns that are named as the modes."""
    missing, names = labels.query.missing if labels.query else "drop", [identifier(name) for name in labels.names or ()]
    keys = labels.keys or ()
    try:
        return read(place, keys=keys, where="true", missing=missing)
    except InputError as error:
        try:
            return read(place, keys=names, where="true", missing=missing)
        except InputError:
            raise error from None


def _has_original_indices(model: AnyKind) -> bool:
    """Return whether the labels of a model are the indices before they were renumbered."""
    return model.run.get("compact") is True and model.labels is not None


def _indices(place: Path, order: int, base: int | None) -> tuple[NDArray[np.int32], Floats | None, int]:
    """Read a file's indices, (order, n), in its order, its values if it has any, and its lowest index."""
    orders, errors = list[int](), list[InputError]()
    for no_values in (False, True):
        try:
            part = open_part(place, form=ReadOptions(no_values=no_values, index_base=base))
        except InputError as error:
            errors.append(error)
            continue
        if part.order == order:
            pile = Pile(order, part.dtype, sys.maxsize, part.expected)
            part.fill(pile)
            outcome = settle(place, [part.outcome])
            columns, values = pile.take()
            return columns, None if no_values else values, outcome.base
        part.close()
        orders.append(part.order)
    if not orders:
        raise errors[0]
    found = " or ".join(map(str, dict.fromkeys(orders)))
    raise InputError(f"has indices of {found} modes: the model has {order}")


def _lines(elements: ReadCoordinates, predicted: Floats, names: Sequence[str], separator: str) -> Iterator[str]:
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
    request: PredictRequest, model: AnyKind, elements: ReadCoordinates, predicted: Floats, names: Sequence[str]
) -> None:
    output = request.output
    assert output is not None
    extension = output.suffix.lower()
    if extension == ARCHIVE:
        assert elements.base is not None
        arrays = {"indices": np.stack(elements.shown, axis=1) - elements.base, "values": predicted}
        if not _has_original_indices(model):
            arrays["shape"] = np.array(model.shape)
        write_npz(output, arrays, request.replace)
        return
    separator = {".csv": ",", ".tsv": "\t"}.get(extension, " ")
    texts = _lines(elements, predicted, names, separator)
    write_whole(output, lambda file: [file.write(text.encode()) for text in texts], request.replace)
