"""The report: a model as one HTML file that a browser shows without a network."""

from __future__ import annotations

import base64
import hashlib
import os
from collections.abc import Sequence
from importlib.resources import files
from importlib.util import find_spec
from typing import Any, NamedTuple

import numpy as np

from partitioner.tensors.dense import DenseTensor
from partitioner.tensors.sparse import SparseTensor

from ..errors import InputError
from ..files import write_text
from ..models.explained import Component, Item, Residuals
from ..models.kruskal import KruskalTensor
from ..models.matching import congruences
from . import charts, facts
from .components import as_text, number_text
from .facts import Run
from .metrics import versions
from .pictures import is_ordered
from .timing import balance, stages

NEEDED = {"jinja2": "Jinja2", "matplotlib": "Matplotlib"}
REMEDY = "pip install 'amped[report]'"
TOP, MORE = 6, 24  # labels of a column that are seen, and those that can be searched and unfolded
SHORT = 7  # labels of a mode that is shown whole, and in its order
LABEL, WHOLE = 60, 240  # characters of a label, and of what a pointer held over it shows
PICTURED = 64  # components that have curves
ALIKE, MOST_ALIKE = 0.85, 3  # congruence from which components are called alike, and how many of them are named
ENTRIES = 10  # values that the model expects least


class Bar(NamedTuple):
    """A label's line: its number in the column, and how long its bar is."""

    label: str
    whole: str  # all of a label that was cut short
    number: str
    length: float  # per cent
    negative: bool


class Panel(NamedTuple):
    """A mode of a component."""

    mode: str
    chart: str | None  # SVG
    bars: Sequence[Bar]
    more: Sequence[Bar]


class SimilarComponent(NamedTuple):
    """Another component that is like one."""

    number: int
    congruence: float


class Card(NamedTuple):
    """A component."""

    number: int  # counted from 1
    weight: str
    share: float
    alike: Sequence[SimilarComponent]
    panels: Sequence[Panel]


def missing() -> str | None:
    """Return what is not installed that a report needs."""
    return next((name for module, name in NEEDED.items() if find_spec(module) is None), None)


def check() -> None:
    """Raise `InputError` unless reports can be made."""
    if (name := missing()) is not None:
        raise InputError(f"a report needs {name}: {REMEDY}")


def write(
    model: KruskalTensor,
    path: str | os.PathLike[str],
    tensor: SparseTensor | DenseTensor | None = None,
    run: Run | None = None,
    replace: bool = True,
) -> None:
    """Write the report of a model to a file; see `page`, and `write_whole` for what it raises."""
    write_text(path, page(model, tensor, run), replace)


def page(model: KruskalTensor, tensor: SparseTensor | DenseTensor | None = None, run: Run | None = None) -> str:
    """Return the report of a model as HTML.

    Parameters
    ----------
    model : KruskalTensor
    tensor : SparseTensor or DenseTensor, optional
        What it is of: the report then has its fit, computed anew, and what it explains least.
    run : mapping, optional
        The record of the run that made it; by default that of `model.run`.

    Raises
    ------
    InputError
        If a library is not installed.
    """
    check()
    from jinja2 import Environment
    from markupsafe import Markup

    told = facts.known(model, model.run if run is None else run)
    residuals = None
    if tensor is not None:
        told |= facts.compared(model, tensor, told)
        residuals = model.residuals(tensor, ENTRIES)
    style, script = (files(__package__).joinpath(f"page.{kind}").read_text("utf-8") for kind in ("css", "js"))
    template = Environment(autoescape=True, trim_blocks=True, lstrip_blocks=True).from_string(
        files(__package__).joinpath("page.html").read_text("utf-8")
    )
    found: str = template.render(
        style=Markup(style), script=Markup(script), script_hash=_hash(script), safe=Markup,
        title=facts.title(told), question=facts.question(model, told), numbers=facts.numbers(told),
        meaning=facts.meaning(told), series=_series(told), command=facts.command(told),
        names=facts.names_of(model), shape=model.shape, cards=_cards(model), positive=_positive(model),
        alike=ALIKE, pictured=PICTURED, most=_listed(model), residuals=residuals and _residual_rows(residuals),
        stages=stages(told), balance=balance(told, len(model.factors)), machine=facts.machine(told),
        versions=facts.versions(told),
    )  # fmt: skip
    return found


def _hash(script: str) -> str:
    """Return what the page's policy calls its only script: no other one is run."""
    return "sha256-" + base64.b64encode(hashlib.sha256(script.encode()).digest()).decode()


def _positive(model: KruskalTensor) -> bool:
    return all(factor.min(initial=0) >= 0 for factor in model.factors)


def _series(run: Run) -> list[tuple[str, str]]:
    return [(told, charts.series_chart(numbers, told, log)) for told, numbers, log in facts.series(run)]


def _cards(model: KruskalTensor) -> list[Card]:
    alike, positive, names = congruences(model.factors), _positive(model), facts.names_of(model)
    found = list[Card]()
    for component in model.top(_listed(model)):
        panels = [_panel(model, component, mode, name, positive) for mode, name in enumerate(names)]
        near = _near(alike[component.number], component.number)
        found.append(Card(component.number + 1, _readable(component.weight), component.share, near, panels))
    return found


def _readable(number: float) -> str:
    """Return a number without an exponent where that is shorter."""
    return f"{number:,.0f}" if 1e4 <= abs(number) < 1e9 else f"{number:.4g}"


def _listed(model: KruskalTensor) -> int:
    """Return how many labels of a mode are in a card: of many components few, so that the page stays small."""
    return TOP + MORE if model.rank <= PICTURED else TOP + 1


def _near(row: np.ndarray[Any, np.dtype[np.float64]], own: int) -> list[SimilarComponent]:
    """Return the components that one is most like, if there are any."""
    order = [int(other) for other in np.argsort(-np.abs(row)) if other != own and abs(row[other]) >= ALIKE]
    return [SimilarComponent(other + 1, float(row[other])) for other in order[:MOST_ALIKE]]


def _panel(model: KruskalTensor, component: Component, mode: int, name: str, positive: bool) -> Panel:
    labels = None if model.labels is None else model.labels[mode]
    column = model.factors[mode][:, component.number]
    chart = None
    if is_ordered(labels) and column.size > SHORT and component.number < PICTURED:
        chart = charts.column_chart(labels, column, f"component {component.number + 1}, {name}", positive)
    items = component.top[mode]
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


def _residual_rows(found: Residuals) -> list[tuple[list[str], str, str]]:
    return [
        ([as_text(label, LABEL) for label in entry.labels], f"{entry.value:,.6g}", f"{entry.expected:,.3g}")
        for entry in found.entries
    ]


def write_report(model: KruskalTensor, path: str | os.PathLike[str], tensor: Any) -> None:
    """See `KruskalTensor.report`. Versions are looked up now: a model that was made in Python may never be told of."""
    write(model, path, tensor, {"versions": versions()} | model.run if model.run else {})
