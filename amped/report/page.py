"""The report of a model: one self-contained HTML file that needs no network."""

from __future__ import annotations

import base64
import hashlib
import os
from collections.abc import Sequence
from functools import cache
from importlib.resources import files
from importlib.util import find_spec
from typing import TYPE_CHECKING, NamedTuple

import numpy as np
from numpy.typing import NDArray

from partitioner.errors import one_line
from partitioner.tensors.dense import DenseTensor
from partitioner.tensors.sparse import SparseTensor
from partitioner.wording import readable

from ..errors import InputError
from ..files import check_extension, write_text
from ..models.align import observed_or_all, with_absent
from ..models.comparison import SAME, SIMILAR
from ..models.elements import largest_elements
from ..models.explained import Component, Item, is_ordered, label_of
from ..models.history import AnyModel
from ..models.kruskal import KruskalTensor
from ..models.loading import cp_model
from ..models.matching import congruences
from ..models.tucker import TuckerTensor
from ..operators.sources.protocols import DescribedSource
from . import charts, facts
from .calendar import calendar_rows
from .changes import Other, changes, default_names
from .components import as_text, number_text
from .core_terms import largest_terms
from .facts import Run
from .metrics import versions
from .sentences import sentences
from .timing import balance, stages

if TYPE_CHECKING:
    from jinja2 import Template

REQUIRED = {"jinja2": "Jinja2", "matplotlib": "Matplotlib"}
NO_MODEL = "reports need CP or Tucker models"
REMEDY = "pip install 'amped[report]'"
TOP, MORE = 6, 24  # visible labels per column, and further ones that can be unfolded and searched
SHORT = 7  # maximum length of a mode whose labels are all shown, in their order
LABEL, WHOLE = 60, 240  # maximum characters of a label, and of its tooltip
PICTURED = 64  # components with curves
MIN_CONGRUENCE, MAX_SIMILAR = 0.85, 3  # minimum congruence of similar components, and how many of them are listed
ENTRIES = 10  # entries with the largest residuals
MAX_COMPARED = 1 << 27  # nonzeros times components: limit for comparing tensor and model after a run


class Bar(NamedTuple):
    """The bar of a label."""

    label: str
    whole: str  # the tooltip; empty unless the label was cut
    number: str  # the entry of the column
    length: float  # in per cent of the longest bar
    negative: bool


class Panel(NamedTuple):
    """The panel of one mode of a component."""

    mode: str
    chart: str | None  # SVG
    bars: Sequence[Bar]
    more: Sequence[Bar]


class SimilarComponent(NamedTuple):
    """A component that is similar to the one of a card."""

    number: int
    congruence: float


Row = tuple[list[str], str, str]
"""An element as text: its labels, value and expected value."""


class Card(NamedTuple):
    """The card of a component."""

    number: int  # counted from 1
    weight: str
    share: float
    similar: Sequence[SimilarComponent]
    panels: Sequence[Panel]


def missing() -> str | None:
    """Return the name of a required library that is not installed, or None."""
    return next((name for module, name in REQUIRED.items() if find_spec(module) is None), None)


def check(path: str | os.PathLike[str] | None = None) -> None:
    """Raise `InputError` if a required library is not installed, or the file has the extension of another format."""
    if (name := missing()) is not None:
        raise InputError(f"a report needs {name}: {REMEDY}")
    if path is not None:
        check_extension(path, "a report is an .html file", ".html", ".htm")


def write(
    model: AnyModel,
    path: str | os.PathLike[str],
    tensor: SparseTensor | DenseTensor | None = None,
    run: Run | None = None,
    replace: bool = True,
    mask: object = None,
    title: str | None = None,
    other: Other | None = None,
) -> None:
    """Write the report of a model to a file; see `page`, and `write_whole` for errors."""
    check(path)
    write_text(path, page(model, tensor, run, mask, title, other), replace)


def compared_tensor(source: DescribedSource, model: AnyModel) -> SparseTensor | DenseTensor | None:
    """Return the tensor of a run for the report of its model, on rank 0, if it is small. Collective."""
    return source.tensor() if source.nnz * model.terms <= MAX_COMPARED else None


def failure(
    model: AnyModel,
    path: str | os.PathLike[str],
    tensor: SparseTensor | DenseTensor | None,
    run: Run,
    replace: bool = True,
) -> str | None:
    """Write the report after a run; if that fails for any reason, return the cause, because the model is complete."""
    try:
        write(model, path, tensor, run, replace)
    except Exception as error:
        return one_line(str(error) if isinstance(error, InputError) else f"{path}: {error or type(error).__name__}")
    return None


def page(
    model: AnyModel,
    tensor: SparseTensor | DenseTensor | None = None,
    run: Run | None = None,
    mask: object = None,
    title: str | None = None,
    other: Other | None = None,
) -> str:
    """Return the report of a model as HTML.

    Parameters
    ----------
    model : KruskalTensor, or TuckerTensor whose largest core elements are the components
    tensor : SparseTensor or DenseTensor, optional
        The tensor of the fit: adds the computed fit, and the largest residuals of a CP model.
    run : mapping, optional
        The record of the run; by default `model.run`.
    mask : optional
        The observed elements of the tensor; see `KruskalTensor.score`.
    title : str, optional
        By default the name of the tensor's file.
    other : Other, optional
        Another model: the report then says what changed from this model to that one.

    Raises
    ------
    InputError
        If a required library is not installed, or the models cannot be compared.
    """
    check()
    from markupsafe import Markup

    record, residuals = facts.known(model, model.run if run is None else run), list[Row]()
    whole = model if isinstance(model, TuckerTensor) else None
    model = largest_terms(model) if isinstance(model, TuckerTensor) else cp_model(model, None, NO_MODEL)
    if tensor is not None:
        record, residuals = _compared(model, whole, tensor, record, mask)
    style, script = (files(__package__).joinpath(f"page.{kind}").read_text("utf-8") for kind in ("css", "js"))
    html: str = _template().render(
        style=Markup(style), script=Markup(script), script_hash=_hash(script), safe=Markup,
        title=title or _title(record, other, whole), sentences=sentences(model),
        changes=None if other is None else changes(model, other),
        core=None if whole is None else whole.core, question=facts.question(model, record, whole),
        numbers=facts.numbers(record), meaning=facts.meaning(record), series=_series(record),
        command=facts.command(record), names=facts.names_of(model), shape=model.shape, cards=_cards(model),
        positive=_positive(model), same=SAME, similar=SIMILAR, min_congruence=MIN_CONGRUENCE, pictured=PICTURED,
        most=_listed(model), residuals=residuals, stages=stages(record), balance=balance(record, len(model.factors)),
        machine=facts.machine(record), versions=facts.versions(record),
    )  # fmt: skip
    return html


def _compared(
    model: KruskalTensor,
    whole: TuckerTensor | None,
    tensor: SparseTensor | DenseTensor,
    record: dict[str, object],
    mask: object,
) -> tuple[dict[str, object], list[Row]]:
    """Return a record with what is computed from the tensor, and for a CP model the elements of largest residuals."""
    if whole is not None:
        return record | facts.with_fit(record, whole.score(tensor)), []
    elements, partial = observed_or_all(tensor, mask, model.run.get("mask"))
    residuals = _residuals(model, elements if partial or model.known_loss is None else with_absent(elements))
    return record | facts.compared(model, elements, record, partial), residuals


def _title(record: Run, other: Other | None, whole: TuckerTensor | None) -> str:
    kind = "a CP model" if whole is None else "a Tucker model"
    return facts.title(record, kind) if other is None else " and ".join(other.names)


@cache
def _template() -> Template:
    """Return the template of reports; compiling it takes as long as a small report."""
    from jinja2 import Environment

    text = files(__package__).joinpath("page.html").read_text("utf-8")
    return Environment(autoescape=True, trim_blocks=True, lstrip_blocks=True).from_string(text)


def _hash(script: str) -> str:
    """Return the hash by which the page's security policy allows its only script."""
    return "sha256-" + base64.b64encode(hashlib.sha256(script.encode()).digest()).decode()


def _positive(model: KruskalTensor) -> bool:
    return all(factor.min(initial=0) >= 0 for factor in model.host_factors)


def _series(run: Run) -> list[tuple[str, str]]:
    return [(name, charts.series_chart(numbers, name, log)) for name, numbers, log in facts.series(run)]


def _cards(model: KruskalTensor) -> list[Card]:
    rows, positive, names = congruences(model.host_factors), _positive(model), facts.names_of(model)
    cards = list[Card]()
    for component in model.top(_listed(model)):
        panels = [_panel(model, component, mode, name, positive) for mode, name in enumerate(names)]
        similar = _similar(rows[component.number], component.number)
        cards.append(Card(component.number + 1, readable(component.weight, 4), component.share, similar, panels))
    return cards


def _listed(model: KruskalTensor) -> int:
    """Return the maximum number of labels per mode in a card; few if there are many components, to limit the page."""
    return TOP + MORE if model.rank <= PICTURED else TOP + 1


def _similar(row: NDArray[np.float64], own: int) -> list[SimilarComponent]:
    """Return the components that are most similar to component `own`, from its row of congruences."""
    order = [int(other) for other in np.argsort(-np.abs(row)) if other != own and abs(row[other]) >= MIN_CONGRUENCE]
    return [SimilarComponent(other + 1, float(row[other])) for other in order[:MAX_SIMILAR]]


def _panel(model: KruskalTensor, component: Component, mode: int, name: str, positive: bool) -> Panel:
    labels = None if model.labels is None else model.labels[mode]
    column = model.host_factors[mode][:, component.number]
    chart = None
    if is_ordered(labels) and column.size > SHORT and component.number < PICTURED:
        chart = charts.column_chart(labels, column, f"component {component.number + 1}, {name}", positive)
    items = component.top[mode]
    calendar = calendar_rows(labels)
    if calendar is not None:
        assert labels is not None
        bars = _bars([(label_of(labels, row), float(column[row])) for row in calendar], positive)
        return Panel(name, None, bars, [])
    if column.size <= SHORT:
        order = {as_text(label, WHOLE): at for at, label in enumerate(range(column.size) if labels is None else labels)}
        items = tuple(sorted(items, key=lambda item: order[as_text(item[0], WHOLE)]))
    bars = _bars(items, positive)
    seen = TOP // 2 if chart else TOP + 1
    return Panel(name, chart, bars[:seen], bars[seen:])


def _bars(items: Sequence[Item], positive: bool) -> list[Bar]:
    largest = max((abs(number) for _, number in items), default=1.0)
    return [
        Bar(
            as_text(label, LABEL), as_text(label, WHOLE) if len(as_text(label, WHOLE)) > LABEL else "",
            number_text(number, positive), 100 * abs(number) / largest, number < 0,
        )
        for label, number in items
    ]  # fmt: skip


def _residuals(model: KruskalTensor, tensor: SparseTensor | DenseTensor) -> list[Row]:
    """Return the labels, value and expected value of the elements with the largest residuals."""
    standard = model.residual_kind()
    largest = largest_elements(model.weights, model.host_factors, tensor, ENTRIES, standard)
    labels = [None] * len(model.factors) if model.labels is None else model.labels
    return [
        ([as_text(label, LABEL) for label in entry.labels], readable(entry.value), readable(entry.expected))
        for entry in largest.entries(labels, ENTRIES)
    ]


def write_report(
    model: AnyModel,
    path: str | os.PathLike[str],
    tensor: SparseTensor | DenseTensor | None,
    mask: object,
    title: str | None,
    second: object = None,
) -> None:
    """See `KruskalTensor.report` and `TuckerTensor.report`.

    The record of a Python function has no versions: the current ones are added.
    """
    other = None
    if second is not None:
        known = cp_model(second, None, f"other: a {type(second).__name__} is not a CP model")
        other = Other(known, default_names(cp_model(model, None, NO_MODEL), known))
    run = {"versions": versions()} | model.run if model.run else {}
    write(model, path, tensor, run, mask=mask, title=title, other=other)
