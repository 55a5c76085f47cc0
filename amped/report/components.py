"""Components as a person reads them: a few lines each."""

from __future__ import annotations

import shutil
from collections.abc import Sequence
from functools import singledispatch
from typing import Any

from partitioner.tensors.labels import Labels
from partitioner.tensors.labels import mode_names as known_names

from ..models.explained import Component, Item, tops_of
from ..models.history import AnyModel
from ..models.kruskal import KruskalTensor
from ..models.tucker import TuckerTensor

LONGEST = 28  # characters of a label
WIDTH, LINES = 100, 2  # of a component's labels, where output goes to no terminal
INDENT = "    "
SHOWN = 10  # components that a terminal shows once a model is there


@singledispatch
def size_and_text(model: AnyModel, count: int) -> tuple[str, str]:
    """Return the size of a model in words, and its components or columns as text, with at most `count` labels each."""
    return f"{type(model).__name__} of {' x '.join(map(str, model.shape))}", ""


@size_and_text.register
def _(model: KruskalTensor, count: int) -> tuple[str, str]:
    return f"{model.rank} component{'s' * (model.rank > 1)}", text(model, count)


@size_and_text.register
def _(model: TuckerTensor, count: int) -> tuple[str, str]:
    return f"a core of {' x '.join(map(str, model.core.shape))}", columns_text(model.factors, model.labels, count)


@singledispatch
def brief(model: AnyModel) -> str:
    """Return what a terminal shows of a model once it is computed: the first components of a CP model."""
    return ""


@brief.register
def _(model: KruskalTensor) -> str:
    return text(model, most=SHOWN)


def text(model: KruskalTensor, count: int = 10, most: int | None = None, width: int | None = None) -> str:
    """Return the components of a model as text: a line of numbers each, and the labels that have most of it.

    Parameters
    ----------
    model : KruskalTensor
    count : int
        Labels of a mode, at most; fewer where lines are too short for them.
    most : int, optional
        Components that are shown.
    width : int, optional
        Of lines; by default the terminal's.
    """
    width = width or shutil.get_terminal_size((WIDTH, 0)).columns
    shown = model.top(count)[:most]
    positive = all(f.min(initial=0) >= 0 for f in model.factors)
    lines = list[str]()
    for component in shown:
        lines.append(
            f"component {component.number + 1}: {component.share:.1%} of the model, weight {component.weight:.4g}"
        )
        lines += _labels(component, mode_names(model), positive, max(40, width))
    if most is not None and model.rank > most:
        lines.append(f"... and {model.rank - most} more components")
    return "\n".join(lines)


def columns_text(factors: Sequence[Any], labels: Labels | None, count: int, width: int | None = None) -> str:
    """Return the columns of each mode's matrix as text: the labels that have most of each, a line a column."""
    width, lines = width or shutil.get_terminal_size((WIDTH, 0)).columns, list[str]()
    for mode, (name, factor) in enumerate(zip(_names(labels, len(factors)), factors, strict=True)):
        lines.append(name)
        for number, top in enumerate(tops_of(factor, None if labels is None else labels[mode], count), 1):
            line = _mode(str(number), top, False)
            lines.append(INDENT + (line if len(line) + len(INDENT) <= width else f"{line[: width - len(INDENT) - 1]}…"))
    return "\n".join(lines)


def mode_names(model: KruskalTensor) -> list[str]:
    """Return what each mode is: its key of a table, or its number."""
    return _names(model.labels, len(model.factors))


def _names(labels: Labels | None, order: int) -> list[str]:
    return [one_line(name) for name in known_names(labels, order)]


def _labels(component: Component, names: Sequence[str], positive: bool, width: int) -> list[str]:
    """Return the labels of all modes in at most `LINES` lines, as many as there is room for."""
    most = max(map(len, component.top))
    for count in range(most, 0, -1):
        parts = [_mode(name, top[:count], positive) for name, top in zip(names, component.top, strict=True)]
        lines = _wrapped(parts, width - len(INDENT))
        if len(lines) <= LINES or count == 1:
            return [INDENT + line for line in lines]
    return []


def _mode(name: str, top: Sequence[Item], positive: bool) -> str:
    numbers = (f"{shown(label)} {number_text(number, positive)}" for label, number in top)
    return f"{name}: " + (", ".join(numbers) or "nothing")


def number_text(number: float, positive: bool) -> str:
    """Return a number of a column: per cent of it where nothing is negative."""
    if positive and number < 1.005:
        return f"{number:.1%}" if number < 0.1 else f"{number:.0%}"
    return f"{number:+.2g}"


def _wrapped(parts: Sequence[str], width: int) -> list[str]:
    """Return parts in lines; a part that is longer than a line has one of its own."""
    lines = [""]
    for part in parts:
        longer = f"{lines[-1]}; {part}" if lines[-1] else part
        if len(longer) <= width or not lines[-1]:
            lines[-1] = longer
        else:
            lines.append(part)
    return lines


def shown(label: Any) -> str:
    """Return a label as text: short, in one line; between quotes if it might be taken for several."""
    found = as_text(label)
    told = isinstance(label, str) and (not found.strip() or set(found) & set(",;:"))
    return f'"{found}"' if told else found


def as_text(label: Any, longest: int = LONGEST) -> str:
    """Return a label as text in one line."""
    if label is None or label != label:  # NaN, NaT
        return "(missing)"
    if isinstance(label, bool):
        return str(label).lower()
    return one_line(f"{label:.6g}" if isinstance(label, float) else str(label), longest)


def one_line(text: str, longest: int = LONGEST) -> str:
    """Return text without line breaks and control characters, cut short where it is long."""
    plain = "".join(c if c.isprintable() else " " for c in text)
    return plain if len(plain) <= longest else f"{plain[: longest - 1]}…"
