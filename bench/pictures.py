"""What pictures of results share; without Matplotlib (extra: bench) only a line is printed."""

from __future__ import annotations

import json
from collections.abc import Callable
from io import BytesIO
from pathlib import Path
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from matplotlib.figure import Figure

CYCLE = ("#4477aa", "#ee6677", "#228833", "#ccbb44", "#66ccee", "#aa3377", "#bbbbbb", "#000000")
"""Colour-blind safe colours (Paul Tol's)."""

DOTS, SHADES = 120, 256
Draw = Callable[[Any, dict[str, Any]], Any]


def plot() -> Figure:
    """Return Matplotlib's pyplot, drawing to files; None if it is not installed."""
    try:
        import matplotlib
    except ImportError:
        print("no pictures: Matplotlib is not installed (pip install -e .[bench])", flush=True)
        return None
    matplotlib.use("agg")
    from matplotlib import pyplot

    cycle = matplotlib.cycler(color=CYCLE)
    style = {"font.size": 9, "axes.spines.top": False, "axes.spines.right": False, "axes.prop_cycle": cycle}
    pyplot.rcParams.update(style)
    return pyplot


def save(figure: Figure, path: Path) -> None:
    """Write a figure as a PNG with few colours, and close it."""
    from PIL import Image  # Matplotlib needs it too

    drawn = BytesIO()
    figure.savefig(drawn, dpi=DOTS, bbox_inches="tight", format="png")
    plot().close(figure)
    path.parent.mkdir(parents=True, exist_ok=True)
    Image.open(drawn).convert("RGB").quantize(SHADES, dither=Image.Dither.NONE).save(path, optimize=True)


def draw(path: Path, function: Draw) -> None:
    """Draw the result at `path` as a PNG beside it."""
    pyplot = plot()
    if pyplot is not None:
        save(function(pyplot, json.loads(path.read_text())), path.with_suffix(".png"))
