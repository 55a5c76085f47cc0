"""The part of a report that compares two models: matched components, and what changed in each mode."""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

import numpy as np

from ..models.comparison import SAME, Comparison, ComponentPair, scaled
from ..models.explained import is_ordered, label_of
from ..models.kruskal import KruskalTensor
from . import charts, facts
from .comparison import change_text, headlines
from .components import as_text, number_text, one_line
from .pictures import Column, bar_labels, entry
from .sentences import sentence

SHOWN = 6  # labels per mode, as bars
SHORT = 7  # maximum length of a mode whose labels are all shown as bars
LABEL = 60  # maximum characters of a label
PICTURED = 64  # pairs with pictures


class Other(NamedTuple):
    """A second model, and the names of both models."""

    model: KruskalTensor
    names: tuple[str, str]


class PairedBar(NamedTuple):
    """The two bars of a label, as texts and in per cent of the longest bar."""

    label: str
    numbers: tuple[str, str]
    lengths: tuple[float, float]


class ChangePanel(NamedTuple):
    """The panel of one mode of a pair."""

    mode: str
    congruence: float
    chart: str | None  # SVG
    bars: Sequence[PairedBar]
    text: str  # the labels that gained or lost; empty if the mode is the same


class Change(NamedTuple):
    """A pair of components, counted from 1."""

    numbers: tuple[int, int]
    status: str
    congruence: float
    by_mode: tuple[float, ...]
    shares: tuple[float, float]
    panels: Sequence[ChangePanel]


class Changes(NamedTuple):
    """The comparison of two models for a report."""

    names: tuple[str, str]
    lines: Sequence[str]
    modes: Sequence[str]
    pairs: Sequence[Change]
    only: Sequence[tuple[str, Sequence[tuple[int, str]]]]  # components of one model, by its name, in words


def default_names(first: KruskalTensor, second: KruskalTensor) -> tuple[str, str]:
    """Return the names of the files that two models were fitted to; of equal ones, only that one is the second."""
    one, other = facts.title(first.run), facts.title(second.run)
    return (one, other) if one != other else ("this model", "the other model")


def changes(model: KruskalTensor, other: Other) -> Changes:
    """Compare a model with another one; see `KruskalTensor.compare`."""
    comparison = model.compare(other.model)
    names = one_line(other.names[0], LABEL), one_line(other.names[1], LABEL)
    only = [
        (name, [(number + 1, sentence(each, number, each.shares()[number])) for number in numbers])
        for name, each, numbers in zip(names, (model, other.model), comparison.only, strict=True)
        if numbers
    ]
    pairs = [
        Change(
            (pair.first + 1, pair.second + 1), pair.status, pair.congruence, pair.by_mode, pair.shares,
            [_panel(comparison, pair, mode) for mode in range(len(comparison.modes))] if at < PICTURED else [],
        )
        for at, pair in enumerate(comparison.pairs)
    ]  # fmt: skip
    return Changes(names, headlines(comparison), [one_line(mode.name, LABEL) for mode in comparison.modes], pairs, only)


def _panel(comparison: Comparison, pair: ComponentPair, at: int) -> ChangePanel:
    mode, congruence = comparison.modes[at], pair.by_mode[at]
    both, name = scaled(mode, pair.first, pair.second), one_line(mode.name, LABEL)
    positive = min(column.min(initial=0) for column in both) >= 0
    chart, bars = None, list[PairedBar]()
    if is_ordered(mode.labels) and both[0].size > SHORT:
        description = f"component {pair.first + 1} and {pair.second + 1}, {name}"
        chart = charts.columns_chart(mode.labels, both, description, positive)
    else:
        panel = [Column("", mode.labels, column) for column in both]
        shown = bar_labels(panel, SHOWN)
        if is_ordered(mode.labels):
            rows = range(both[0].size) if mode.labels is None else np.argsort(mode.labels, kind="stable").tolist()
            shown = [label_of(mode.labels, row) for row in rows]
        entries = [(entry(panel[0], label), entry(panel[1], label)) for label in shown]
        longest = float(np.abs(entries).max(initial=0)) or 1.0
        for label, (before, after) in zip(shown, entries, strict=True):
            numbers = number_text(before, positive), number_text(after, positive)
            lengths = 100 * abs(before) / longest, 100 * abs(after) / longest
            bars.append(PairedBar(as_text(label, LABEL), numbers, lengths))
    text = "" if congruence >= SAME else change_text(pair.changes[at]).replace(" -> ", " → ")
    return ChangePanel(name, congruence, chart, bars, text)
