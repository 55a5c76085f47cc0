"""Pictures of models: residuals over two modes and congruences as maps, the shares of components, and slices."""

from __future__ import annotations

import os
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any, cast

import numpy as np
from numpy.typing import NDArray

from partitioner.array_types import HostArray

from ..models.explained import is_ordered, label_of
from ..models.slices import SliceResiduals
from .calendar import calendar_rows
from .components import one_line, shown
from .figures import figure_class, hide_frame, save
from .pictures import DOTS, POSITIVE

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

SIZE = 4.8, 3.8  # inches
COLOURS = "PuOr_r"  # diverging, safe for colour blindness
MOST = 40  # labels without an order: those with the largest residuals
TICKS = 12  # labels of an axis
NUMBERED = 8  # components whose congruences are also numbers
NAMED = 5  # slices with their labels in a picture
CLEAR = 0.25, 0.05  # least distances between labels, of the width and the height
UNDER = {"facecolor": "white", "alpha": 0.7, "linewidth": 0, "pad": 0.5}  # text on points is legible


def draw_residuals(
    cells: NDArray[np.float64],
    names: tuple[str, str],
    labels: tuple[HostArray | None, HostArray | None],
    path: str | os.PathLike[str] | None,
    ax: Axes | None,
) -> Figure:
    """Draw residuals over two modes; see `KruskalTensor.plot_residuals`."""
    rows, columns = (_shown(own, np.square(cells).sum(axis=1 - axis)) for axis, own in enumerate(labels))
    axes = _axes(ax)
    limit = float(np.abs(cells).max(initial=0)) or 1.0
    _image(axes, cells[np.ix_(rows, columns)], limit, "residual, standard deviations")
    for axis, name, own, chosen in zip((axes.yaxis, axes.xaxis), names, labels, (rows, columns), strict=True):
        length = cells.shape[0] if axis is axes.yaxis else cells.shape[1]
        part = f" ({chosen.size} of {length:,})" if chosen.size < length else ""
        axis.set_label_text(_plain(one_line(name)) + part, fontsize=8)
        _name(axis, [_plain(shown(label_of(own, row))) for row in chosen])
    axes.tick_params(axis="x", rotation=45 if labels[1] is not None and labels[1].dtype.kind not in "iufb" else 0)
    return save(cast("Figure", axes.figure), path)


def draw_congruences(cells: NDArray[np.float64], path: str | os.PathLike[str] | None, ax: Axes | None) -> Figure:
    """Draw congruences of components; see `KruskalTensor.plot_congruences`."""
    axes = _axes(ax)
    _image(axes, cells, 1.0, "congruence")
    for axis in (axes.xaxis, axes.yaxis):
        axis.set_label_text("component", fontsize=8)
        _name(axis, [str(number + 1) for number in range(len(cells))])
    for (row, column), number in np.ndenumerate(cells) if len(cells) <= NUMBERED else ():
        colour = "white" if abs(number) > 0.6 else "black"
        axes.text(column, row, f"{number:.2f}", ha="center", va="center", fontsize=7, color=colour)
    return save(cast("Figure", axes.figure), path)


def draw_shares(shares: dict[str, NDArray[np.float64]], path: str | os.PathLike[str] | None, ax: Axes | None) -> Figure:
    """Draw numbers per component as bars; see `KruskalTensor.plot_shares`."""
    axes, width = _axes(ax), 0.8 / len(shares)
    for number, (name, values) in enumerate(shares.items()):
        places = 1 + np.arange(values.size) + (number - (len(shares) - 1) / 2) * width
        axes.bar(places, 100 * values, width, label=name, color=(POSITIVE, "#ccbb44")[number])
    axes.set_xlabel("component", fontsize=8)
    axes.set_ylabel("per cent", fontsize=8)
    axes.axhline(0, color="#999999", lw=0.5)
    axes.locator_params(axis="x", integer=True)
    axes.tick_params(labelsize=7, length=2)
    if len(shares) > 1:
        axes.legend(fontsize=7, frameon=False)
    hide_frame(axes)
    return save(cast("Figure", axes.figure), path)


def draw_slices(slices: SliceResiduals, path: str | os.PathLike[str] | None = None, ax: Axes | None = None) -> Figure:
    """Draw the misfit of slices over their leverage; see `Residuals.plot`."""
    ax = _axes(ax)
    ax.scatter(slices.leverage, slices.misfit, s=14, color=POSITIVE, alpha=0.6)
    ax.set_xlabel(f"leverage of {_plain(one_line(slices.name))}", fontsize=8)
    ax.set_ylabel("misfit", fontsize=8)
    places = np.column_stack([slices.leverage, slices.misfit])
    named, sizes = list[int](), np.ptp(places, axis=0) * CLEAR
    for row in slices.top()[:NAMED]:
        if any((np.abs(places[row] - places[other]) < sizes).all() for other in named):
            continue  # one text would cover the other
        named.append(row)
        text = _plain(shown(label_of(slices.labels, row)))
        ax.annotate(text, tuple(places[row]), (3, 3), textcoords="offset points", fontsize=7, bbox=UNDER)
    ax.tick_params(labelsize=7, length=2)
    hide_frame(ax)
    return save(cast("Figure", ax.figure), path)


def _axes(ax: Axes | None) -> Axes:
    if ax is not None:
        return ax
    axes: Axes = figure_class()(figsize=SIZE, dpi=DOTS, layout="constrained").subplots()
    return axes


def _image(axes: Axes, cells: NDArray[np.float64], limit: float, name: str) -> None:
    image = axes.imshow(cells, cmap=COLOURS, vmin=-limit, vmax=limit, aspect="auto", interpolation="nearest")
    bar = axes.figure.colorbar(image, ax=axes)
    bar.set_label(name, fontsize=8)
    bar.ax.tick_params(labelsize=7, length=2)
    axes.tick_params(labelsize=7, length=2)


def _shown(labels: HostArray | None, sizes: NDArray[np.float64]) -> NDArray[np.intp]:
    """Return the rows to draw: all in their order, or those of the largest sizes if labels have no order."""
    if (calendar := calendar_rows(labels)) is not None:
        return np.array(calendar)
    if is_ordered(labels):
        return np.arange(sizes.size) if labels is None else np.argsort(labels, kind="stable")
    return np.sort(np.argsort(-sizes, kind="stable")[:MOST])


def _name(axis: Any, labels: Sequence[str]) -> None:
    """Name the places of an axis, some of many; texts in a row need more room than those below each other."""
    most = MOST if axis.axis_name == "y" and len(labels) <= MOST else TICKS
    step = -(-len(labels) // most)
    axis.set_ticks(range(0, len(labels), step), labels[::step])


def _plain(text: str) -> str:
    return text.replace("$", r"\$")
