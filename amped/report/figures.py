"""Matplotlib figures, and the formats of pictures."""

from __future__ import annotations

import io
import os
import sys
from functools import cache
from typing import TYPE_CHECKING

from partitioner.host.quiet import quieten

from ..errors import InputError
from ..files import write_whole

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

EXTENSIONS = ".png", ".svg", ".pdf"


def check_picture(path: str | os.PathLike[str]) -> None:
    """Raise `InputError` unless the name ends in ``.png``, ``.svg`` or ``.pdf`` and Matplotlib is installed."""
    if os.path.splitext(os.fspath(path))[1] not in EXTENSIONS:
        raise InputError(f"unknown picture format: expected {', '.join(EXTENSIONS)}", path=path)
    figure_class()


@cache
def figure_class() -> type[Figure]:
    """Return a Matplotlib `Figure`, which needs no display; raise `InputError` if Matplotlib is not installed."""
    if "matplotlib" not in sys.modules:
        quieten("matplotlib")  # at level DEBUG it logs its search for fonts
    try:
        from matplotlib.figure import Figure
    except ImportError:
        raise InputError("plot: Matplotlib is not installed") from None

    class Picture(Figure):
        """A figure that notebooks display without pyplot."""

        def _repr_png_(self) -> bytes:
            file = io.BytesIO()
            self.savefig(file, format="png")
            return file.getvalue()

    return Picture


def hide_frame(axes: Axes) -> None:
    """Hide the lines at the top and at the right of an Axes."""
    for side in ("top", "right"):
        axes.spines[side].set_visible(False)


def save(figure: Figure, path: str | os.PathLike[str] | None) -> Figure:
    """Write a figure to a file, if there is a path, and return it."""
    if path is not None:
        check_picture(path)
        kind = os.path.splitext(os.fspath(path))[1][1:]
        write_whole(path, lambda file: figure.savefig(file, format=kind))
    return figure
