"""Matplotlib figures, and the formats of pictures."""

from __future__ import annotations

import os
import sys
from typing import Any

from partitioner.host.quiet import quieten

from ..errors import InputError

EXTENSIONS = ".png", ".svg", ".pdf"


def check_picture(path: str | os.PathLike[str]) -> None:
    """Raise `InputError` unless the name ends in ``.png``, ``.svg`` or ``.pdf`` and Matplotlib is installed."""
    if os.path.splitext(os.fspath(path))[1] not in EXTENSIONS:
        raise InputError(f"unknown picture format: expected {', '.join(EXTENSIONS)}", path=path)
    figure_class()


def figure_class() -> Any:
    """Return Matplotlib's `Figure`, which needs no display; raise `InputError` if it is not installed."""
    if "matplotlib" not in sys.modules:
        quieten("matplotlib")  # at level DEBUG it logs its search for fonts
    try:
        from matplotlib.figure import Figure
    except ImportError:
        raise InputError("plot: Matplotlib is not installed") from None
    return Figure
