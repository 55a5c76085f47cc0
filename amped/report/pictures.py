"""Pictures of models: grids of components by modes, and columns of several models over each other."""

from __future__ import annotations

import os
from collections.abc import Mapping, Sequence
from types import NoneType
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from partitioner.array_types import Floats, HostArray
from partitioner.tensors.labels import Labels, as_labels, mode_number
from partitioner.tensors.relabel import mode_order, places
from partitioner.validate import whole

from ..errors import InputError
from ..models.comparison import Comparison, scaled
from ..models.explained import is_ordered, label_of, tops_of
from ..models.kruskal import KruskalTensor
from ..models.loading import cp_model
from .calendar import LONGEST_CALENDAR, calendar_order
from .components import mode_names, one_line, shown
from .figures import figure_class, hide_frame, save

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

MOST = 32  # maximum components in a picture
FIRST, LAST = np.datetime64("0001"), np.datetime64("9999")  # range of Python's calendar
WIDE, HIGH, EACH = 2.9, 1.0, 0.16  # inches: width of a panel, its least height, and height per label of its bars
FEWEST = 3  # bars for which a panel has room
MORE = 0.3  # additional height of bars per further model
POSITIVE, NEGATIVE = "#4477aa", "#ee6677"  # colour-blind safe (Paul Tol's)
COLOURS = POSITIVE, NEGATIVE, "#228833", "#ccbb44", "#66ccee", "#aa3377", "#bbbbbb"
LINES = "-", "--", ":", "-."
ZERO = "#999999"
DOTS = 110  # dots per inch
THIS = "this model"


class Column(NamedTuple):
    """A column of a factor matrix to draw, with its name in the legend."""

    name: str
    labels: HostArray | None  # None: indices
    entries: Floats
    colour: str | None = None  # None: colours for the signs, as nothing else is drawn


Panel = Sequence[Column]


def draw(
    model: KruskalTensor,
    path: str | os.PathLike[str] | None = None,
    top: int = 6,
    *,
    ax: Axes | NDArray[np.object_] | None = None,
    modes: Sequence[int | str] | None = None,
    components: Sequence[int] | None = None,
    labels: Mapping[int | str, Any] | None = None,
    titles: Mapping[int | str, str] | None = None,
    overlay: Mapping[str, Any] | None = None,
) -> Figure:
    """Draw a model; see `KruskalTensor.plot`."""
    names, drawn = mode_names(model), _labels(model, _mapping("labels", labels))
    chosen = _modes(names, modes)
    numbers = _numbers(model, components)
    others = [
        _overlay(model, str(name), each, COLOURS[number % len(COLOURS)])
        for number, (name, each) in enumerate(_mapping("overlay", overlay).items(), 1)
    ]

    def columns(number: int, mode: int) -> list[Column]:
        mine = Column(THIS, drawn[mode], model.host_factors[mode][:, number], COLOURS[0] if others else None)
        own = None if model.labels is None else model.labels[mode]
        return [mine, *(column for other in others for column in other.columns(mine, own, number, mode))]

    replaced = {mode_number(names, mode, "titles"): title for mode, title in _mapping("titles", titles).items()}
    shown_titles = [replaced.get(mode, _title(names[mode], model.labels, mode, drawn[mode])) for mode in chosen]
    if ax is not None and np.array(ax, object).ndim == 0 and len(chosen) == 1 and not others:
        grid = [("", [_together(model, numbers, chosen[0], drawn[chosen[0]])])]
    else:
        shares = model.shares()
        grid = [(f"{r + 1}\n{shares[r]:.0%}", [columns(r, mode) for mode in chosen]) for r in numbers]
    figure = _drawn(grid, shown_titles, top, ax)
    if components is None and model.rank > MOST:
        figure.supxlabel(f"{model.rank - MOST} more components", fontsize=8)
    return save(figure, path)


def _together(model: KruskalTensor, numbers: Sequence[int], mode: int, labels: HostArray | None) -> Panel:
    """Return the columns of several components in one panel."""
    colours = [COLOURS[at % len(COLOURS)] for at in range(len(numbers))] if len(numbers) > 1 else [None]
    columns = [model.host_factors[mode][:, number] for number in numbers]
    return [
        Column(f"component {number + 1}", labels, column, colour)
        for number, column, colour in zip(numbers, columns, colours, strict=True)
    ]


UNITS = {"D": "days", "h": "hours", "m": "min", "W": "weeks", "us": "µs"}  # of durations, if not NumPy's own name


def _title(name: str, known: Labels | None, mode: int, labels: HostArray | None) -> str:
    """Return the name of a mode with the unit of its labels, if they have one."""
    unit = known.units[mode] if known is not None and known.units is not None else None
    if labels is not None and labels.dtype.kind == "m":
        unit = np.datetime_data(labels.dtype.str)[0]
        unit = UNITS.get(unit, unit)
    return f"{name} ({one_line(unit)})" if unit else name


def _modes(names: Sequence[str], modes: object) -> list[int]:
    """Return the numbers of the modes to draw: all, or one or several by number or name."""
    listed = range(len(names)) if modes is None else _listed("modes", modes)
    return [mode_number(names, mode, "modes") for mode in listed]


def _numbers(model: KruskalTensor, components: object) -> list[int]:
    listed = range(min(MOST, model.rank)) if components is None else _listed("components", components)
    return [whole("components", number, 0, model.rank - 1) for number in listed]


def _listed(name: str, value: Any) -> list[Any]:
    """Return one or several numbers or names as a list; raise `InputError` if there is none."""
    listed = [value] if isinstance(value, (str, int)) or np.ndim(value) == 0 else list(value)
    if not listed:
        raise InputError(f"{name}: expected at least one")
    return listed


def _mapping(name: str, value: object) -> Mapping[Any, Any]:
    """Return a mapping, empty for None; raise `InputError` for other types."""
    if not isinstance(value, (Mapping, NoneType)):
        raise InputError(f"{name} is of type {type(value).__name__}: expected a mapping")
    return value or {}


def _labels(model: KruskalTensor, replaced: Mapping[int | str, Any]) -> list[HostArray | None]:
    """Return the labels of each mode, some of which the caller replaces."""
    names = mode_names(model)
    every: list[HostArray | None] = [*(model.labels or [None] * len(names))]
    for mode, labels in replaced.items():
        at, array = mode_number(names, mode, "labels"), as_labels(labels)
        if array.shape != (model.shape[at],):
            raise InputError(f"labels of mode {names[at]}: shape {array.shape}, expected ({model.shape[at]},)")
        every[at] = array
    return every


class Overlay(NamedTuple):
    """Another model to draw: its name, colour, matched components by number, and modes in the order of the first."""

    name: str
    model: KruskalTensor
    colour: str
    components: dict[int, int]
    modes: Sequence[int]

    def columns(self, mine: Column, own: HostArray | None, number: int, mode: int) -> list[Column]:
        """Return the column of the matched component in the scale and with the sign of `mine`; nothing without one.

        `own` are the first model's labels, which may differ from those that are drawn.
        """
        if number not in self.components:
            return []
        at, labels = self.modes[mode], self.model.labels
        column = self.model.host_factors[at][:, self.components[number]].astype(np.float64)
        size, length = np.linalg.norm(column) or 1.0, float(np.linalg.norm(mine.entries))
        peak = column[np.argmax(np.abs(column))] if column.size else 0.0
        reference = mine.entries[np.argmax(np.abs(mine.entries))] if mine.entries.size else 0.0
        scale = (-1.0 if peak * reference < 0 else 1.0) * length / size
        other = Column(self.name, None if labels is None else labels[at], scale * column, self.colour)
        return _placed(other, mine, own)


def _overlay(model: KruskalTensor, name: str, other: object, colour: str) -> Overlay:
    second = cp_model(other, None, f"overlay: a {type(other).__name__}, expected a KruskalTensor")
    matches = {pair.first: pair.second for pair in model.compare(second, 1).pairs}
    return Overlay(name, second, colour, matches, mode_order(model.labels, second.labels, len(model.factors)))


def _placed(other: Column, mine: Column, own: HostArray | None) -> list[Column]:
    """Return another model's column at the labels that are drawn of mine; nothing if there is no place for it.

    Without labels of both models, rows are matched by position. Labels that only the other model has are drawn too,
    unless my labels are replaced.
    """
    if own is None or other.labels is None:
        if other.entries.size == mine.entries.size:
            return [other._replace(labels=mine.labels)]
        return [other] if mine.labels is None and other.labels is None else []
    try:
        positions = places(own, other.labels)
    except InputError:
        return []
    if mine.labels is own and (positions < 0).any():
        return [other]
    assert mine.labels is not None
    rows = np.argsort(positions, kind="stable")[np.count_nonzero(positions < 0) :]
    return [other._replace(labels=mine.labels[positions[rows]], entries=other.entries[rows])] if rows.size else []


def draw_comparison(
    comparison: Comparison,
    path: str | os.PathLike[str] | None = None,
    top: int = 6,
    *,
    ax: Axes | NDArray[np.object_] | None = None,
    modes: Sequence[int | str] | None = None,
) -> Figure:
    """Draw the columns of two models over each other; see `Comparison.plot`."""
    names = [one_line(mode.name) for mode in comparison.modes]
    chosen = [comparison.modes[mode] for mode in _modes(names, modes)]
    grid = []
    for pair in comparison.pairs[:MOST]:
        panels = []
        for mode in chosen:
            both = zip(("first", "second"), scaled(mode, pair.first, pair.second), COLOURS, strict=False)
            panels.append([Column(name, mode.labels, entries, colour) for name, entries, colour in both])
        grid.append((f"{pair.first + 1}, {pair.second + 1}\n{pair.congruence:.2f}", panels))
    figure = _drawn(grid, [one_line(mode.name) for mode in chosen], top, ax)
    if len(comparison.pairs) > MOST:
        figure.supxlabel(f"{len(comparison.pairs) - MOST} more pairs", fontsize=8)
    return save(figure, path)


def _drawn(
    grid: Sequence[tuple[str, Sequence[Panel]]], titles: Sequence[str], top: int, ax: Axes | NDArray[np.object_] | None
) -> Figure:
    """Draw panels, each row of which has a title at its left, and return the figure."""
    rows, several = max(1, len(grid)), max((len(panel) for _, panels in grid for panel in panels), default=1)
    figure: Figure
    if ax is None:
        bars = max([top, *(len(_calendar(panel)) for _, panels in grid for panel in panels)])
        high = max(HIGH, EACH * bars * (1 + MORE * (several - 1)))
        size = WIDE * len(titles), 0.5 + high * rows
        figure = figure_class()(figsize=size, dpi=DOTS, layout="constrained")
        axes = figure.subplots(rows, len(titles), squeeze=False)
    else:
        axes = np.array(ax, object, ndmin=2)
        axes = axes.T if np.array(ax, object).ndim == 1 and len(titles) == 1 else axes
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
    if several > 1:
        _legend(figure if ax is None else axes[0, 0], axes)
    return figure


def _legend(place: Any, axes: NDArray[np.object_]) -> None:
    """Draw a legend of the columns in all panels on a figure or an Axes."""
    handles = dict[str, Any]()
    for each in sorted(axes.ravel(), key=lambda each: -len(each.get_legend_handles_labels()[1])):  # fullest one first
        for handle, name in zip(*each.get_legend_handles_labels(), strict=True):
            handles.setdefault(name, handle)
    below = {} if place is axes[0, 0] else {"loc": "outside lower center", "ncols": len(handles)}
    place.legend(handles.values(), handles.keys(), fontsize=7, frameon=False, **below)


def draw_panel(axes: Axes, panel: Panel, top: int) -> None:
    """Draw columns over each other: curves if their labels are ordered, otherwise bars."""
    if all(is_ordered(column.labels) for column in panel):
        for number, (name, labels, entries, colour) in enumerate(panel):
            place = np.arange(entries.size) if labels is None else labels
            curve(axes, place, entries, colour or POSITIVE, name, colour is None)
            axes.lines[-2].set_linestyle(LINES[number % len(LINES)])  # equal curves remain visible
    else:
        _bars(axes, panel, top)
    axes.tick_params(labelsize=7, length=2)
    hide_frame(axes)


def curve(
    axes: Axes,
    labels: HostArray,
    column: Floats,
    colour: str = POSITIVE,
    name: str | None = None,
    filled: bool = True,
) -> None:
    """Draw a column over its labels in their order, without missing labels; `name` is for the legend."""
    from matplotlib.dates import AutoDateLocator, ConciseDateFormatter, date2num

    positions = _positions(labels)
    dates = positions.dtype.kind == "M"
    is_shown = ~np.isnat(positions) if dates else np.isfinite(positions)
    order = np.flatnonzero(is_shown)[np.argsort(positions[is_shown], kind="stable")]
    positions, column = date2num(positions[order]) if dates else positions[order], column[order]
    few = column.size <= MOST * 2 and labels.dtype.kind != "f"  # measurements are lines
    if few:
        positions, column = _with_ends(positions, column)
    if few and filled:
        axes.fill_between(positions, column, color=colour, alpha=0.35, lw=0, step="mid")
    axes.plot(positions, column, color=colour, lw=0.8, drawstyle="steps-mid" if few else "default", label=name)
    axes.axhline(0, color=ZERO, lw=0.5)
    axes.locator_params(axis="y", nbins=3)
    if not dates:
        axes.locator_params(axis="x", nbins=5, integer=labels.dtype.kind in "iu")
        return
    locator = AutoDateLocator(minticks=2, maxticks=6)
    axes.xaxis.set_major_locator(locator)
    axes.xaxis.set_major_formatter(ConciseDateFormatter(locator))
    axes.xaxis.get_offset_text().set_fontsize(6)


def _with_ends(positions: HostArray, column: Floats) -> tuple[HostArray, Floats]:
    """Extend steps by half a step at both ends, so that the first and the last are as wide as the others."""
    if positions.size < 2:
        return positions, column
    places = positions.astype(np.float64)
    ends = (3 * places[:1] - places[1:2]) / 2, (3 * places[-1:] - places[-2:-1]) / 2
    return np.concatenate([ends[0], places, ends[1]]), np.concatenate([column[:1], column, column[-1:]])


def _positions(labels: HostArray) -> HostArray:
    """Return the positions of labels on an axis; dates outside Python's calendar become numbers of years."""
    if labels.dtype.kind == "M":
        years = labels.astype("M8[Y]")
        if np.any((years < FIRST) | (years > LAST)):
            return np.where(np.isnat(years), np.nan, years.astype(np.int64) + 1970.0)
    return labels.astype(np.float64) if labels.dtype.kind in "bm" else labels


def _bars(axes: Axes, panel: Panel, top: int) -> None:
    """Draw columns as bars: the top labels, or all labels of a calendar."""
    labels, height = bar_labels(panel, top), 0.7 / len(panel)
    for number, column in enumerate(panel):
        lengths = [entry(column, label) for label in labels]
        places = np.arange(len(labels)) + (number - (len(panel) - 1) / 2) * height
        colours = column.colour or [POSITIVE if length >= 0 else NEGATIVE for length in lengths]
        axes.barh(places, lengths, color=colours, height=height, label=column.name)
    axes.set_yticks(range(len(labels)), [_plain(shown(label)) for label in labels])
    axes.set_ylim(max(len(labels), FEWEST) - 0.5, -0.5)  # a single bar does not fill the panel
    axes.locator_params(axis="x", nbins=4)


def bar_labels(panel: Panel, top: int) -> list[Any]:
    """Return the labels to draw as bars: all labels of a calendar in its order, otherwise the largest entries."""
    if calendar := _calendar(panel):
        return calendar
    sizes = dict[Any, float]()
    for column in panel:
        for label, entry in tops_of(column.entries[:, None], column.labels, top)[0]:
            sizes[label] = max(sizes.get(label, 0.0), abs(entry))
    return sorted(sizes, key=lambda label: -sizes[label])[:top]


def _calendar(panel: Panel) -> list[Any]:
    """Return the labels of a calendar in its order; empty if the labels are something else."""
    if any(column.entries.size > LONGEST_CALENDAR for column in panel):
        return []
    every = list(dict.fromkeys(label_of(each.labels, row) for each in panel for row in range(each.entries.size)))
    return [every[row] for row in calendar_order(every) or ()]


def entry(column: Column, label: Any) -> float:
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
