"""The picture of a model: a grid of components by modes."""

from __future__ import annotations

import os
from typing import Any

import numpy as np
from numpy.typing import NDArray

from ..errors import InputError
from ..models.explained import Component
from ..models.kruskal import KruskalTensor
from .components import mode_names, shown
from .figures import figure_class

MOST = 32  # maximum components in a picture
ORDERED = "iufMmb"  # kinds of labels that are numbers or times
FIRST, LAST = np.datetime64("0001"), np.datetime64("9999")  # range of Python's calendar
WIDE, HIGH, EACH = 2.9, 1.0, 0.16  # inches: width of a panel, its least height, and height per label of its bars
POSITIVE, NEGATIVE = "#4477aa", "#ee6677"  # colour-blind safe (Paul Tol's)
ZERO = "#999999"
DOTS = 110  # dots per inch


def draw(model: KruskalTensor, path: str | os.PathLike[str], top: int = 6) -> None:
    """Draw a model as a grid of components by modes.

    Modes whose labels are numbers, times or indices become curves over all labels; other modes become bars of the
    `top` labels.

    Parameters
    ----------
    model : KruskalTensor
    path : path
        ``.png``, ``.svg`` or ``.pdf``.
    top : int
        Maximum number of bars.

    Raises
    ------
    InputError
        If Matplotlib is not installed, or the file cannot be written.
    """
    figure_of = figure_class()
    components, names = model.top(top)[:MOST], mode_names(model)
    size = WIDE * len(names), 0.5 + max(HIGH, EACH * top) * max(1, len(components))
    figure = figure_of(figsize=size, dpi=DOTS, layout="constrained")
    panels = figure.subplots(max(1, len(components)), len(names), squeeze=False)
    for row, component in zip(panels, components, strict=False):
        for mode, axes in enumerate(row):
            _panel(axes, model, component, mode)
        label = f"{component.number + 1}\n{component.share:.0%}"
        row[0].set_ylabel(label, rotation=0, labelpad=14, va="center", fontsize=9)
    for axes, name in zip(panels[0], names, strict=True):
        axes.set_title(_plain(name), fontsize=9)
    if model.rank > MOST:
        figure.supxlabel(f"{model.rank - MOST} more components", fontsize=8)
    try:
        figure.savefig(path)
    except (OSError, ValueError) as error:
        raise InputError(f"cannot draw: {error}", path=path) from None


def _panel(axes: Any, model: KruskalTensor, component: Component, mode: int) -> None:
    labels = None if model.labels is None else model.labels[mode]
    column = model.factors[mode][:, component.number]
    if is_ordered(labels):
        curve(axes, np.arange(column.size) if labels is None else labels, column)
    else:
        _bars(axes, component, mode)
    axes.tick_params(labelsize=7, length=2)
    for side in ("top", "right"):
        axes.spines[side].set_visible(False)


def is_ordered(labels: NDArray[Any] | None) -> bool:
    """Return whether labels are ordered, so that a column can be drawn as a curve."""
    return labels is None or labels.dtype.kind in ORDERED


def curve(axes: Any, labels: NDArray[Any], column: NDArray[Any]) -> None:
    """Draw a column over its labels, without missing labels."""
    from matplotlib.dates import AutoDateLocator, ConciseDateFormatter, date2num

    positions = _positions(labels)
    dates = positions.dtype.kind == "M"
    is_shown = ~np.isnat(positions) if dates else np.isfinite(positions)
    positions, column = date2num(positions[is_shown]) if dates else positions[is_shown], column[is_shown]
    few = column.size <= MOST * 2
    if few:
        axes.fill_between(positions, column, color=POSITIVE, alpha=0.35, lw=0, step="mid")
    axes.plot(positions, column, color=POSITIVE, lw=0.8, drawstyle="steps-mid" if few else "default")
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


def _bars(axes: Any, component: Component, mode: int) -> None:
    """Draw the top labels of a column as bars."""
    items = component.top[mode]
    numbers = [number for _, number in items]
    axes.barh(range(len(items)), numbers, color=[POSITIVE if n >= 0 else NEGATIVE for n in numbers], height=0.7)
    axes.set_yticks(range(len(items)), [_plain(shown(label)) for label, _ in items])
    axes.invert_yaxis()
    axes.locator_params(axis="x", nbins=4)


def _plain(text: str) -> str:
    """Escape text for Matplotlib, which would read dollar signs as formulas."""
    return text.replace("$", r"\$")
