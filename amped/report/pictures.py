"""Pictures of models: grids of components by modes, and columns of several models over each other."""

from __future__ import annotations

import os
from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from partitioner.tensors.labels import Labels, as_labels
from partitioner.tensors.relabel import mode_order
from partitioner.validate import whole

from ..errors import InputError
from ..models.comparison import Comparable, Comparison, compared, scaled
from ..models.explained import is_ordered, label_of, tops_of
from ..models.kruskal import KruskalTensor
from ..models.slices import SliceResiduals
from .calendar import LONGEST_CALENDAR, calendar_order
from .components import mode_names, one_line, shown
from .figures import figure_class, save

MOST = 32  # maximum components in a picture
FIRST, LAST = np.datetime64("0001"), np.datetime64("9999")  # range of Python's calendar
WIDE, HIGH, EACH = 2.9, 1.0, 0.16  # inches: width of a panel, its least height, and height per label of its bars
MORE = 0.3  # additional height of bars per further model
POSITIVE, NEGATIVE = "#4477aa", "#ee6677"  # colour-blind safe (Paul Tol's)
COLOURS = POSITIVE, NEGATIVE, "#228833", "#ccbb44", "#66ccee", "#aa3377", "#bbbbbb"
ZERO = "#999999"
DOTS = 110  # dots per inch
THIS = "this model"


class Column(NamedTuple):
    """A column of a factor matrix to draw, with its name in the legend."""

    name: str
    labels: NDArray[Any] | None  # None: indices
    entries: NDArray[Any]


Panel = Sequence[Column]


def draw(
    model: KruskalTensor,
    path: str | os.PathLike[str] | None = None,
    top: int = 6,
    *,
    ax: Any = None,
    modes: Sequence[int | str] | None = None,
    components: Sequence[int] | None = None,
    labels: Mapping[int | str, Any] | None = None,
    titles: Mapping[int | str, str] | None = None,
    overlay: Mapping[str, Any] | None = None,
) -> Any:
    """Draw a model; see `KruskalTensor.plot`."""
    names, every = mode_names(model), _labels(model, labels or {})
    chosen = range(len(names)) if modes is None else [mode_number(names, mode) for mode in modes]
    numbers = _numbers(model, components)
    others = [(str(name), each, _matches(model, each)) for name, each in (overlay or {}).items()]

    def columns(number: int, mode: int) -> list[Column]:
        mine = Column(THIS, every[mode], model.factors[mode][:, number])
        return [mine, *(column for other in others for column in _overlaid(mine, number, mode, *other))]

    replaced = {mode_number(names, mode): title for mode, title in (titles or {}).items()}
    shown_titles = [replaced.get(mode, _title(names[mode], model.labels, mode, every[mode])) for mode in chosen]
    if ax is not None and np.ndim(ax) == 0 and len(chosen) == 1 and not others:
        together = [
            Column(f"component {number + 1}", every[chosen[0]], model.factors[chosen[0]][:, number])
            for number in numbers
        ]
        grid = [("", [together])]
    else:
        shares = model.shares()
        grid = [(f"{r + 1}\n{shares[r]:.0%}", [columns(r, mode) for mode in chosen]) for r in numbers]
    figure = _drawn(grid, shown_titles, top, ax)
    if components is None and model.rank > MOST:
        figure.supxlabel(f"{model.rank - MOST} more components", fontsize=8)
    return save(figure, path)


UNITS = {"D": "days", "h": "hours", "m": "min", "W": "weeks", "us": "µs"}  # of durations, if not NumPy's own name


def _title(name: str, known: Labels | None, mode: int, labels: NDArray[Any] | None) -> str:
    """Return the name of a mode with the unit of its labels, if they have one."""
    unit = known.units[mode] if known is not None and known.units is not None else None
    if labels is not None and labels.dtype.kind == "m":
        unit = np.datetime_data(labels.dtype)[0]
        unit = UNITS.get(unit, unit)
    return f"{name} ({one_line(unit)})" if unit else name


def mode_number(names: Sequence[str], mode: int | str) -> int:
    """Return the number of a mode, given by number or name; raise `InputError` if it does not exist."""
    if isinstance(mode, str):
        if mode not in names:
            raise InputError(f"modes: {mode!r} is none of {', '.join(map(repr, names))}")
        return names.index(mode)
    return whole("modes", mode, 0, len(names) - 1)


def _numbers(model: KruskalTensor, components: Sequence[int] | None) -> list[int]:
    if components is None:
        return list(range(min(MOST, model.rank)))
    return [whole("components", number, 0, model.rank - 1) for number in components]


def _labels(model: KruskalTensor, replaced: Mapping[int | str, Any]) -> list[NDArray[Any] | None]:
    """Return the labels of each mode, some of which the caller replaces."""
    names = mode_names(model)
    every: list[NDArray[Any] | None] = [*(model.labels or [None] * len(names))]
    for mode, labels in replaced.items():
        at, array = mode_number(names, mode), as_labels(labels)
        if array.shape != (model.shape[at],):
            raise InputError(f"labels of mode {names[at]}: shape {array.shape}, expected ({model.shape[at]},)")
        every[at] = array
    return every


class Match(NamedTuple):
    """What is drawn of another model: the matched component by number, and the other model's modes."""

    components: dict[int, int]
    modes: Sequence[int]


def _matches(model: KruskalTensor, other: Any) -> Match:
    if not isinstance(other, KruskalTensor):
        raise InputError(f"overlay: a {type(other).__name__}, expected a KruskalTensor")
    mine, theirs = (Comparable(each.weights, each.factors, each.labels) for each in (model, other))
    comparison = compared(mine, theirs, 1)
    order = mode_order(model.labels, other.labels, len(model.factors))
    return Match({pair.first: pair.second for pair in comparison.pairs}, order)


def _overlaid(mine: Column, number: int, mode: int, name: str, other: KruskalTensor, match: Match) -> list[Column]:
    """Return the column of the matched component of another model, in the scale and with the sign of mine."""
    if number not in match.components:
        return []
    at = match.modes[mode]
    column = other.factors[at][:, match.components[number]].astype(np.float64)
    size, own = np.linalg.norm(column) or 1.0, float(np.linalg.norm(mine.entries))
    peak = column[np.argmax(np.abs(column))] if column.size else 0.0
    reference = mine.entries[np.argmax(np.abs(mine.entries))] if mine.entries.size else 0.0
    sign = -1.0 if peak * reference < 0 else 1.0
    return [Column(name, None if other.labels is None else other.labels[at], sign * own / size * column)]


def draw_comparison(
    comparison: Comparison,
    path: str | os.PathLike[str] | None = None,
    top: int = 6,
    *,
    ax: Any = None,
    modes: Sequence[int | str] | None = None,
) -> Any:
    """Draw the columns of two models over each other; see `Comparison.plot`."""
    names = [one_line(mode.name) for mode in comparison.modes]
    chosen = [comparison.modes[mode_number(names, mode)] for mode in (range(len(names)) if modes is None else modes)]
    grid = []
    for pair in comparison.pairs[:MOST]:
        panels = []
        for mode in chosen:
            both = zip(("first", "second"), scaled(mode, pair.first, pair.second), strict=True)
            panels.append([Column(name, mode.labels, entries) for name, entries in both])
        grid.append((f"{pair.first + 1}, {pair.second + 1}\n{pair.congruence:.2f}", panels))
    return save(_drawn(grid, [one_line(mode.name) for mode in chosen], top, ax), path)


def _drawn(grid: Sequence[tuple[str, Sequence[Panel]]], titles: Sequence[str], top: int, ax: Any) -> Any:
    """Draw panels, each row of which has a title at its left, and return the figure."""
    rows, several = max(1, len(grid)), max((len(panel) for _, panels in grid for panel in panels), default=1)
    if ax is None:
        high = max(HIGH, EACH * top * (1 + MORE * (several - 1)))
        size = WIDE * len(titles), 0.5 + high * rows
        figure = figure_class()(figsize=size, dpi=DOTS, layout="constrained")
        axes = figure.subplots(rows, len(titles), squeeze=False)
    else:
        axes = np.array(ax, object, ndmin=2)
        axes = axes.T if np.ndim(ax) == 1 and len(titles) == 1 else axes
        if axes.shape != (rows, len(titles)):
            raise InputError(f"ax: {' x '.join(map(str, axes.shape))} axes for {rows} x {len(titles)} panels")
        figure = axes[0, 0].figure
    for (title, panels), row in zip(grid, axes, strict=False):
        for each, panel in zip(row, panels, strict=True):
            draw_panel(each, panel, top)
        if title:
            row[0].set_ylabel(title, rotation=0, labelpad=14, va="center", fontsize=9)
    for each, name in zip(axes[0], titles, strict=True):
        each.set_title(_plain(name), fontsize=9)
    if several > 1 and ax is None:
        handles, names = axes[0, 0].get_legend_handles_labels()
        figure.legend(handles, names, loc="outside lower center", ncols=len(names), fontsize=7, frameon=False)
    elif several > 1:
        axes[0, 0].legend(fontsize=7, frameon=False)
    return figure


def draw_panel(axes: Any, panel: Panel, top: int) -> None:
    """Draw columns over each other: curves if their labels are ordered, otherwise bars."""
    if all(is_ordered(column.labels) for column in panel):
        for number, (name, labels, entries) in enumerate(panel):
            place = np.arange(entries.size) if labels is None else labels
            curve(axes, place, entries, COLOURS[number % len(COLOURS)], name, len(panel) == 1)
    else:
        _bars(axes, panel, top)
    axes.tick_params(labelsize=7, length=2)
    for side in ("top", "right"):
        axes.spines[side].set_visible(False)


def curve(
    axes: Any,
    labels: NDArray[Any],
    column: NDArray[Any],
    colour: str = POSITIVE,
    name: str | None = None,
    filled: bool = True,
) -> None:
    """Draw a column over its labels, without missing labels; `name` is for the legend."""
    from matplotlib.dates import AutoDateLocator, ConciseDateFormatter, date2num

    positions = _positions(labels)
    dates = positions.dtype.kind == "M"
    is_shown = ~np.isnat(positions) if dates else np.isfinite(positions)
    positions, column = date2num(positions[is_shown]) if dates else positions[is_shown], column[is_shown]
    few = column.size <= MOST * 2 and labels.dtype.kind != "f"  # measurements are lines
    if few and filled:
        axes.fill_between(positions, column, color=colour, alpha=0.35, lw=0, step="mid")
    axes.plot(positions, column, color=colour, lw=0.8, drawstyle="steps-mid" if few else "default", label=name)
    axes.axhline(0, color=ZERO, lw=0.5)
    axes.locator_params(axis="y", nbins=3)
    if not dates:
        axes.locator_params(axis="x", nbins=5)
        return
    locator = AutoDateLocator(minticks=2, maxticks=6)
    axes.xaxis.set_major_locator(locator)
    axes.xaxis.set_major_formatter(ConciseDateFormatter(locator))
    axes.xaxis.get_offset_text().set_size(6)


def _positions(labels: NDArray[Any]) -> NDArray[Any]:
    """Return the positions of labels on an axis; dates outside Python's calendar become numbers of years."""
    if labels.dtype.kind == "M":
        years = labels.astype("M8[Y]")
        if np.any((years < FIRST) | (years > LAST)):
            return np.where(np.isnat(years), np.nan, years.astype(np.int64) + 1970.0)
    return labels.astype(np.float64) if labels.dtype.kind in "bm" else labels


def _bars(axes: Any, panel: Panel, top: int) -> None:
    """Draw columns as bars: the top labels, or all labels of a calendar."""
    labels, height = bar_labels(panel, top), 0.7 / len(panel)
    for number, column in enumerate(panel):
        lengths = [_entry(column, label) for label in labels]
        places = np.arange(len(labels)) + (number - (len(panel) - 1) / 2) * height
        single = [POSITIVE if length >= 0 else NEGATIVE for length in lengths]
        colours = single if len(panel) == 1 else COLOURS[number % len(COLOURS)]
        axes.barh(places, lengths, color=colours, height=height, label=column.name)
    axes.set_yticks(range(len(labels)), [_plain(shown(label)) for label in labels])
    axes.invert_yaxis()
    axes.locator_params(axis="x", nbins=4)


def bar_labels(panel: Panel, top: int) -> list[Any]:
    """Return the labels to draw as bars: all labels of a calendar in its order, otherwise the largest entries."""
    if all(column.entries.size <= LONGEST_CALENDAR for column in panel):
        every = list(dict.fromkeys(label_of(each.labels, row) for each in panel for row in range(each.entries.size)))
        if (order := calendar_order(every)) is not None:
            return [every[row] for row in order]
    sizes = dict[Any, float]()
    for column in panel:
        for label, entry in tops_of(column.entries[:, None], column.labels, top)[0]:
            sizes[label] = max(sizes.get(label, 0.0), abs(entry))
    return sorted(sizes, key=lambda label: -sizes[label])[:top]


def _entry(column: Column, label: Any) -> float:
    """Return the entry of a label; 0 if the column lacks it."""
    labels = column.labels
    if labels is None:
        return float(column.entries[label]) if label < column.entries.size else 0.0
    missing = label is None or label != label
    rows = [row for row, each in enumerate(labels) if each is None or each != each] if missing else labels == label
    entries = column.entries[rows]
    return float(entries[0]) if entries.size else 0.0


def _plain(text: str) -> str:
    """Escape text for Matplotlib, which would read dollar signs as formulas."""
    return text.replace("$", r"\$")


NAMED = 5  # slices with their labels in a picture


def draw_slices(slices: SliceResiduals, path: str | os.PathLike[str] | None = None, ax: Any = None) -> Any:
    """Draw the misfit of slices over their leverage; see `Residuals.plot`."""
    if ax is None:
        figure = figure_class()(figsize=(4.8, 3.6), dpi=DOTS, layout="constrained")
        ax = figure.subplots()
    ax.scatter(slices.leverage, slices.misfit, s=14, color=POSITIVE, alpha=0.6)
    ax.set_xlabel(f"leverage of {_plain(one_line(slices.name))}", fontsize=8)
    ax.set_ylabel("misfit", fontsize=8)
    for row in slices.top()[:NAMED]:
        text = _plain(shown(label_of(slices.labels, row)))
        ax.annotate(
            text, (slices.leverage[row], slices.misfit[row]), fontsize=7, xytext=(3, 3), textcoords="offset points"
        )
    ax.tick_params(labelsize=7, length=2)
    for side in ("top", "right"):
        ax.spines[side].set_visible(False)
    return save(ax.figure, path)
