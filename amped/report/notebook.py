"""Tables for notebooks: models, components, residuals, scans and plans as HTML."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from html import escape
from typing import Any

import numpy as np

from partitioner.tensors.labels import mode_names
from partitioner.wording import readable

from ..models.comparison import Comparison
from ..models.dataframe import from_one, unused_name
from ..models.explained import Components, Item, tops_of
from ..models.history import AnyModel
from ..models.kruskal import KruskalTensor
from ..models.residuals import Residuals
from ..models.scanned import ScannedRank, Suggestion
from ..models.tucker import TuckerTensor
from .comparison import change_lines, headlines
from .components import as_text, number_text, shown
from .residuals import texts
from .scan_text import percent, suggested
from .text import figure, human

Columns = Mapping[str, Sequence[Any]]
"""The columns of a table, by name."""

MOST_ROWS = 32


class LongText(str):
    """A text that is shown as a whole."""


class Percent(float):
    """A number that is shown as a percentage."""


LONGEST = 60  # maximum characters of a label in a table
STYLE = "text-align: left"


def html(columns: Columns, caption: Sequence[str] = ()) -> str:
    """Return a table as HTML, with lines of text above it; rows beyond `MOST_ROWS` are only counted."""
    above = "".join(f"<div>{escape(line)}</div>" for line in caption)
    head = "".join(f"<th style='{STYLE}'>{escape(name)}</th>" for name in columns)
    rows = list(zip(*columns.values(), strict=True))
    cells = [[f"<td style={STYLE!r}>{escape(_cell(value))}</td>" for value in row] for row in rows[:MOST_ROWS]]
    body = "".join(f"<tr>{''.join(row)}</tr>" for row in cells)
    more = f"<div>and {len(rows) - MOST_ROWS:,} more</div>" if len(rows) > MOST_ROWS else ""
    return f"{above}<table><thead><tr>{head}</tr></thead><tbody>{body}</tbody></table>{more}"


def _cell(value: object) -> str:
    if value is None:
        return "-"
    if isinstance(value, LongText):
        return str(value)
    if isinstance(value, bool):
        return "yes" if value else ""
    if isinstance(value, float):
        return f"{value:.1%}" if isinstance(value, Percent) else readable(value, 5)
    return f"{value:,}" if isinstance(value, int) else as_text(value, LONGEST)


def for_people(
    columns: Columns, numbers: Sequence[str], shares: Sequence[str] = ("share",)
) -> dict[str, Sequence[object]]:
    """Return columns with some numbers counted from 1, as in printed text, and some shown as percentages."""
    return from_one(columns, *numbers) | {name: [Percent(each) for each in columns[name]] for name in shares}


def component_columns(components: Components) -> dict[str, list[object]]:
    """Return a table of components: weight, share, and the top labels of each mode as text."""
    positive = all(entry >= 0 for each in components for top in each.top for _, entry in top)
    columns: dict[str, list[Any]] = {
        "component": [each.number for each in components],
        "weight": [each.weight for each in components],
        "share": [each.share for each in components],
    }
    for mode, name in enumerate(components.names):
        columns[unused_name(name, columns)] = [_text(each.top[mode], positive) for each in components]
    return columns


def _text(top: Sequence[Item], positive: bool) -> LongText:
    return LongText(", ".join(f"{shown(label)} {number_text(entry, positive)}" for label, entry in top))


def components_table(components: Components) -> str:
    """Return the components as HTML."""
    return _components(components, [])


def _components(components: Components, caption: Sequence[str]) -> str:
    return html(for_people(component_columns(components), ["component"]), caption)


def model_table(model: KruskalTensor) -> str:
    """Return a CP model as HTML: its size, fit, and components."""
    size = f"CP model, {model.rank} component{'s' * (model.rank != 1)}"
    return _components(model.top(), [_headline(size, model)])


def core_columns(model: TuckerTensor, count: int = 5) -> dict[str, list[object]]:
    """Return a table of the columns of each factor matrix of a Tucker model."""
    squares, total = np.square(model.core), float(np.square(model.core).sum())
    columns: dict[str, list[Any]] = {"mode": [], "column": [], "share": [], "labels": []}
    for mode, name in enumerate(mode_names(model.labels, len(model.factors))):
        others = tuple(m for m in range(len(model.factors)) if m != mode)
        parts = squares.sum(axis=others) / (total or 1.0)
        tops = tops_of(model.host_factors[mode], None if model.labels is None else model.labels[mode], count)
        for column, (part, top) in enumerate(zip(parts, tops, strict=True)):
            row = name, column, float(part), _text(top, False)
            for values, value in zip(columns.values(), row, strict=True):
                values.append(value)
    return columns


def core_table(model: TuckerTensor) -> str:
    """Return a Tucker model as HTML: its size, fit, and the columns of its factor matrices."""
    core = " × ".join(map(str, model.ranks))
    return html(for_people(core_columns(model), ["column"]), [_headline(f"Tucker model, core {core}", model)])


def _headline(size: str, model: AnyModel) -> str:
    """Return the size, the main metric and the number of iterations of a model."""
    line = f"{size}, shape {' × '.join(f'{length:,}' for length in model.shape)}"
    series = {"fit": model.fits, "log-likelihood": model.series.get("loglikelihood")}
    series["objective"] = model.series.get("objective")
    name, numbers = next(((name, each) for name, each in series.items() if each), ("", ()))
    if numbers:
        last = f"{numbers[-1]:.4f}" if name == "fit" else figure(numbers[-1])
        count = f"{len(numbers)} iteration{'s' * (len(numbers) != 1)}"
        line += f"; {name} {last} after {count}, {'converged' if model.converged else 'not converged'}"
    return line


def residuals_table(residuals: Residuals) -> str:
    """Return the findings, and the largest residuals, as HTML."""
    order = len(residuals.names)
    above = [f"findings, the most unusual first; the sum of all squared residuals is {readable(residuals.squared)}"]
    found: dict[str, list[Any]] = {"finding": [each.kind for each in residuals.findings]}
    rows = [texts(each) for each in residuals.findings]
    for mode, name in enumerate(residuals.names):
        found[unused_name(name, found)] = [LongText(row[mode]) for row in rows]
    for name in ("elements", "value", "expected", "score"):
        found[unused_name(name, found)] = [getattr(each, name) for each in residuals.findings]
    elements = residuals.columns(names=["value", "expected", "standardised", "absent"])
    labels = {name: [LongText(as_text(label, LONGEST)) for label in elements[name]] for name in [*elements][:order]}
    return html(found, above) + html({**elements, **labels}, ["elements with the largest standardised residuals"])


def plan_html(columns: Columns, expectation: str) -> str:
    """Return a plan as HTML: the bytes of each rank, and the expected time."""
    sizes = {name: each if name == "rank" else [human(size) for size in each] for name, each in columns.items()}
    return html(sizes, [expectation] if expectation else [])


def comparison_table(comparison: Comparison) -> str:
    """Return a comparison of models as HTML: one row per pair, with the labels that changed most in one mode."""
    columns = for_people(comparison.columns(), ["first", "second"], ["share_first", "share_second"])
    changes = [LongText("; ".join(change_lines(comparison, pair))) for pair in comparison.pairs]
    return html(columns | {unused_name("largest changes", columns): changes}, headlines(comparison))


def scan_columns(tried: Sequence[ScannedRank], suggestion: Suggestion) -> dict[str, list[object]]:
    """Return a table of a scan."""
    held: list[object] = [each.holdout for each in tried]
    errors: list[object] = [each.holdout_error for each in tried]
    return {
        "rank": [each.rank for each in tried],
        "explained": [each.squared for each in tried],
        "reached": [each.reached for each in tried],
        "starts": [len(each.explained) for each in tried],
        "match": [each.match for each in tried],
        "halves": [each.halves for each in tried],
        "consistency": [each.consistency for each in tried],
        **({"holdout": held, "holdout_error": errors} if any(each is not None for each in held) else {}),
        "iterations": [each.iterations for each in tried],
        "seconds": [each.seconds for each in tried],
        "suggested": [each.rank == suggestion.rank for each in tried],
    }


def scan_html(tried: Sequence[ScannedRank], suggestion: Suggestion) -> str:
    """Return a scan as HTML, with the suggestion and its reason."""
    consistency = [LongText(percent(each.consistency)) for each in tried]
    return html(scan_columns(tried, suggestion) | {"consistency": consistency}, [suggested(suggestion)])
