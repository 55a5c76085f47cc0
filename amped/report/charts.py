"""Charts of the report: Matplotlib figures as SVG that uses the page's colours and font."""

from __future__ import annotations

import io
import re
from collections.abc import Callable, Sequence
from html import escape
from itertools import pairwise
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray

from partitioner.array_types import Floats, HostArray

from .figures import figure_class, hide_frame
from .pictures import NEGATIVE, POSITIVE, ZERO, curve

if TYPE_CHECKING:
    from matplotlib.axes import Axes

SIZE = 2.9, 1.15  # inches
FIT_SIZE = 4.2, 1.7
POINTS = 240  # maximum per curve; longer columns are thinned, keeping their peaks
PREFIXES = (1e9, "G"), (1e6, "M"), (1e3, "k")
Margins = tuple[float, float, float, float]
MARGINS = 0.14, 0.19, 0.84, 0.74  # of the axes within the figure: left, bottom, width, height
DATE_MARGINS = 0.14, 0.29, 0.84, 0.64  # leaves room for a line with the year
FIT_MARGINS = 0.14, 0.15, 0.84, 0.8
# The page has light and dark colours.
COLOURS = {POSITIVE: "var(--series)", NEGATIVE: "var(--second)", ZERO: "var(--faint)", "#000000": "currentColor"}
NO_METADATA = dict.fromkeys(("Date", "Creator", "Format", "Type"))
UNWANTED = re.compile(
    r' id="(?![mp][0-9a-f]{10}")[^"]*"'  # except ids that are referred to
    r'|font-family: [^;"]*;? ?| transform="rotate\(-0 [^"]*"|<defs>\s*<style.*?</defs>',
    re.DOTALL,
)

DIGITS = re.compile(r"(\.\d)\d+(?=[ \"])")  # of coordinates


def column_chart(labels: HostArray | None, column: Floats, description: str, percent: bool = False) -> str:
    """Return an SVG chart of a column over its ordered labels, or over its indices without labels.

    `description` is the alternative text; `percent` labels the axis in per cent.
    """
    return columns_chart(labels, [column], description, percent)


def columns_chart(labels: HostArray | None, columns: Sequence[Floats], description: str, percent: bool = False) -> str:
    """Return an SVG chart of one column, or of two over each other; see `column_chart`."""
    place = np.arange(columns[0].size) if labels is None else labels

    def draw(axes: Axes) -> None:
        for column, colour in zip(columns, (POSITIVE, NEGATIVE), strict=False):
            rows = _thinned(column)
            curve(axes, place[rows], column[rows], colour, filled=len(columns) == 1)
        axes.yaxis.set_major_formatter(lambda number, _: f"{100 * number:.3g}%" if percent else f"{number:.3g}")

    return _svg(draw, SIZE, DATE_MARGINS if place.dtype.kind == "M" else MARGINS, description)


def series_chart(numbers: Sequence[float], description: str, logarithmic: bool = False) -> str:
    """Return an SVG chart of a metric after each iteration; a logarithmic axis omits numbers that are not positive."""
    values = np.asarray(numbers, np.float64)
    iterations = np.arange(1, values.size + 1)
    drawn = np.isfinite(values) & ((values > 0) | (not logarithmic))

    def draw(axes: Axes) -> None:
        from matplotlib.ticker import LogLocator

        is_short = values.size <= POINTS // 4
        axes.plot(iterations[drawn], values[drawn], color=POSITIVE, lw=1.2, marker="o" if is_short else None, ms=2.5)
        if logarithmic and drawn.any() and (span := values[drawn].max() / values[drawn].min()) > 3:
            axes.set_yscale("log", subs=[])  # minor ticks would have labels with powers, over each other
            axes.yaxis.set_major_locator(LogLocator(subs=(1.0, 2.0, 5.0) if span < 100 else (1.0,)))
            axes.yaxis.set_major_formatter("{x:g}")
        else:
            axes.locator_params(axis="y", nbins=4)
            axes.yaxis.set_major_formatter(lambda number, _: _short(number))  # there is no room for a common factor
        axes.locator_params(axis="x", nbins=6, integer=True)

    return _svg(draw, FIT_SIZE, FIT_MARGINS, description)


def _short(number: float) -> str:
    """Return a number in a few characters, such as "3.625M"."""
    size, prefix = next((each for each in PREFIXES if abs(number) >= each[0]), (1.0, ""))
    return f"{number / size:.5g}{prefix}"


def _thinned(column: Floats) -> NDArray[np.intp]:
    """Return the rows to draw: the largest and smallest number of each stretch."""
    if column.size <= POINTS:
        return np.arange(column.size)
    edges = np.linspace(0, column.size, POINTS // 2 + 1).astype(np.intp)
    ends = [(a + column[a:b].argmin(), a + column[a:b].argmax()) for a, b in pairwise(edges)]
    return np.unique(np.array(ends))


def _svg(draw: Callable[[Any], None], size: tuple[float, float], margins: Margins, description: str) -> str:
    figure_of = figure_class()
    from matplotlib import rc_context

    # The salt makes ids differ between the charts of a page.
    with rc_context({"svg.fonttype": "none", "svg.hashsalt": description}):
        figure = figure_of(figsize=size)
        axes = figure.add_axes(margins)
        draw(axes)
        axes.tick_params(labelsize=7, length=2)
        hide_frame(axes)
        file = io.StringIO()
        figure.savefig(file, format="svg", transparent=True, metadata=NO_METADATA)
    return _for_page(file.getvalue(), escape(description))


def _for_page(svg: str, description: str) -> str:
    """Strip what a page does not need from an SVG: declarations, names, fonts, invisible digits."""
    body = UNWANTED.sub("", svg[svg.index("<svg") :])
    for colour, variable in COLOURS.items():
        body = body.replace(colour, variable)
    body = re.sub("<[^>]*>", lambda tag: DIGITS.sub(r"\1", tag[0]), body)
    body = re.sub(r"\s*\n\s*", " ", body)
    start = re.compile(r'<svg [^>]*?(viewBox="[^"]*")[^>]*>')
    return start.sub(lambda tag: f'<svg {tag[1]} role="img" aria-label="{description}">', body, count=1)
