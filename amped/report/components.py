"""The components of a model as text: a few lines each."""

from __future__ import annotations

import shutil
from collections.abc import Sequence
from functools import singledispatch

from partitioner.array_types import Floats
from partitioner.tensors.labels import Labels
from partitioner.tensors.labels import mode_names as known_names
from partitioner.wording import readable

from ..models.explained import Component, Item, tops_of
from ..models.history import AnyModel
from ..models.kruskal import KruskalTensor
from ..models.tucker import TuckerTensor

LONGEST = 28  # maximum characters of a label
WIDTH, LINES = 100, 2  # characters per line without a terminal; maximum lines of labels per component
INDENT = "    "
SHOWN = 10  # components that a terminal shows after a decomposition


@singledispatch
def size_and_text(model: AnyModel, count: int) -> tuple[str, str]:
    """Return the size of a model in words, and its components or columns as text with at most `count` labels each."""
    return f"{type(model).__name__} of {' x '.join(map(str, model.shape))}", ""


@size_and_text.register
def _(model: KruskalTensor, count: int) -> tuple[str, str]:
    return f"{model.rank} component{'s' * (model.rank > 1)}", text(model, count)


@size_and_text.register
def _(model: TuckerTensor, count: int) -> tuple[str, str]:
    return f"a core of {' x '.join(map(str, model.core.shape))}", columns_text(model.host_factors, model.labels, count)


@singledispatch
def brief(model: AnyModel) -> str:
    """Return the summary of a new model for a terminal: the first components of a CP model, empty for others."""
    return ""


@brief.register
def _(model: KruskalTensor) -> str:
    return text(model, most=SHOWN)


def text(model: KruskalTensor, count: int = 10, most: int | None = None, width: int | None = None) -> str:
    """Return the components of a model as text: for each a line with share and weight, and its top labels.

    Parameters
    ----------
    model : KruskalTensor
    count : int
        Maximum number of labels per mode; fewer are shown if the lines are too short.
    most : int, optional
        Maximum number of components.
    width : int, optional
        Characters per line; by default those of the terminal.
    """
    width = width or shutil.get_terminal_size((WIDTH, 0)).columns
    shown = model.top(count)[:most]
    positive = all(f.min(initial=0) >= 0 for f in model.host_factors)
    lines = list[str]()
    for component in shown:
        size = f"{component.share:.1%} of the model, weight {readable(component.weight, 4)}"
        lines.append(f"component {component.number + 1}: {size}")
        lines += _labels(component, mode_names(model), positive, max(40, width))
    if most is not None and model.rank > most:
        lines.append(f"... and {model.rank - most} more components")
    return "\n".join(lines)


def columns_text(factors: Sequence[Floats], labels: Labels | None, count: int, width: int | None = None) -> str:
    """Return the columns of each mode's factor matrix as text: one line per column, with its top labels."""
    width, lines = width or shutil.get_terminal_size((WIDTH, 0)).columns, list[str]()
    for mode, (name, factor) in enumerate(zip(_names(labels, len(factors)), factors, strict=True)):
        lines.append(name)
        for number, top in enumerate(tops_of(factor, None if labels is None else labels[mode], count), 1):
            line = _mode(str(number), top, False)
            lines.append(INDENT + (line if len(line) + len(INDENT) <= width else f"{line[: width - len(INDENT) - 1]}…"))
    return "\n".join(lines)


def mode_names(model: KruskalTensor) -> list[str]:
    """Return the name of each mode: its key column in a table, or its number."""
    return _names(model.labels, len(model.factors))


def _names(labels: Labels | None, order: int) -> list[str]:
    return [one_line(name) for name in known_names(labels, order)]


def _labels(component: Component, names: Sequence[str], positive: bool, width: int) -> list[str]:
    """Return the top labels of all modes in at most `LINES` lines, with as many labels as fit."""
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
    """Return an entry of a column as text: as a percentage if no entry is negative."""
    if positive and number < 1.005:
        return f"{number:.1%}" if number < 0.1 else f"{number:.0%}"
    return f"{number:+.2g}"


def _wrapped(parts: Sequence[str], width: int) -> list[str]:
    """Return lines that join the parts with semicolons; a part that is too long gets a separate line."""
    lines = [""]
    for part in parts:
        longer = f"{lines[-1]}; {part}" if lines[-1] else part
        if len(longer) <= width or not lines[-1]:
            lines[-1] = longer
        else:
            lines.append(part)
    return lines


def shown(label: object) -> str:
    """Return a label as short text in one line, quoted if it is blank or contains separators."""
    text = as_text(label)
    quoted = isinstance(label, str) and (not text.strip() or set(text) & set(",;:"))
    return f'"{text}"' if quoted else text


def as_text(label: object, longest: int = LONGEST) -> str:
    """Return a label as text in one line."""
    if label is None or label != label:  # NaN, NaT
        return "(missing)"
    if isinstance(label, bool):
        return str(label).lower()
    return one_line(f"{label:.6g}" if isinstance(label, float) else str(label), longest)


def one_line(text: str, longest: int = LONGEST) -> str:
    """Return text without line breaks and control characters, cut to `longest` characters."""
    plain = "".join(c if c.isprintable() else " " for c in text)
    return plain if len(plain) <= longest else f"{plain[: longest - 1]}…"
