"""Picture of a scan: explained share and stability by number of components."""

from __future__ import annotations

import os
from collections.abc import Sequence
from typing import TYPE_CHECKING

import numpy as np
from numpy.typing import NDArray

from ..errors import InputError
from ..models.scanned import CONSISTENT, STABLE, ScannedRank, Suggestion
from .figures import figure_class, hide_frame, save

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

WIDTH, EACH = 6.4, 2.1  # inches: of the figure, and the height of a panel
PANELS = "explained", "match", "consistency", "holdout"
DOTS = 110  # dots per inch
BEST, OTHER, CHOSEN = "#4477aa", "#ee6677", "#bbbbbb"  # colour-blind safe (Paul Tol's)
LOWEST = -100.0  # lowest core consistency shown, in percent


def draw(
    tried: Sequence[ScannedRank],
    suggestion: Suggestion,
    path: str | os.PathLike[str] | None = None,
    panels: Sequence[str] | None = None,
    ax: Axes | NDArray[np.object_] | None = None,
) -> Figure:
    """Draw a scan as panels over the number of components; see `Scan.plot`."""
    tried = sorted(tried, key=lambda each: each.rank)
    evaluated = any(each.holdout is not None for each in tried)
    possible = PANELS if evaluated else PANELS[:-1]
    panels = possible if panels is None else panels
    if not panels or not set(panels) <= set(possible):
        raise InputError(f"panels: {list(panels)}: expected some of {', '.join(possible)}")
    if ax is None:
        size = WIDTH, EACH * len(panels) + 0.3
        figure = figure_class()(figsize=size, dpi=DOTS, layout="constrained")
        every = figure.subplots(len(panels), 1, sharex=True, squeeze=False)[:, 0]
        figure.suptitle(suggested(suggestion), fontsize=11)
    else:
        every = np.atleast_1d(np.array(ax, object)).reshape(-1)
        if len(every) != len(panels):
            raise InputError(f"ax: {len(every)} axes for {len(panels)} panels")
    for name, axes in zip(panels, every, strict=True):
        DRAWERS[name](axes, tried)
        if suggestion.rank is not None:
            axes.axvline(suggestion.rank, color=CHOSEN, lw=6, alpha=0.5, zorder=0)
        hide_frame(axes)
        axes.tick_params(labelsize=8)
    every[-1].set_xlabel("components")
    every[-1].xaxis.get_major_locator().set_params(integer=True)
    return save(every[0].figure, path)


def suggested(suggestion: Suggestion) -> str:
    """Return the suggested number of components as text."""
    return "no number is suggested" if suggestion.rank is None else f"suggested: {suggestion.rank}"


def _explained(axes: Axes, tried: Sequence[ScannedRank]) -> None:
    points = [(each.rank, explained) for each in tried for explained in each.explained]
    ranks, explained = zip(*points, strict=True)
    axes.scatter(ranks, explained, s=14, color=BEST, alpha=0.4, label="starts")
    axes.plot([each.rank for each in tried], [each.squared for each in tried], color=BEST, label="best start")
    axes.set_ylabel("explained")
    axes.legend(fontsize=8, frameon=False, loc="lower right")


def _matches(axes: Axes, tried: Sequence[ScannedRank]) -> None:
    for name, colour, mark in (("match", BEST, "o"), ("halves", OTHER, "s")):
        points = [(each.rank, number) for each in tried if (number := getattr(each, name)) is not None]
        if points:
            label = {"match": "between starts", "halves": "between halves"}[name]
            axes.plot(*zip(*points, strict=True), color=colour, marker=mark, ms=4, label=label)
    axes.axhline(STABLE, color="#999999", lw=0.8, ls=":")
    axes.set_ylim(-0.03, 1.05)
    axes.set_ylabel("match")
    if axes.lines[:-1]:
        axes.legend(fontsize=8, frameon=False, loc="lower left")


def _consistency(axes: Axes, tried: Sequence[ScannedRank]) -> None:
    points = [(each.rank, each.consistency) for each in tried if each.consistency is not None]
    axes.set_ylabel("core consistency, %")
    axes.set_ylim(LOWEST - 5, 105)
    axes.axhline(CONSISTENT, color="#999999", lw=0.8, ls=":")
    if not points:
        axes.text(0.5, 0.5, "not computed", transform=axes.transAxes, ha="center", va="center", fontsize=9)
        return
    shown = [(rank, max(LOWEST, number)) for rank, number in points]
    axes.plot(*zip(*shown, strict=True), color=BEST, lw=1)
    for (rank, number), (_, unclipped) in zip(shown, points, strict=True):
        axes.plot([rank], [number], color=BEST, marker="v" if unclipped < LOWEST else "o", ms=5, ls="")


def _held_out(axes: Axes, tried: Sequence[ScannedRank]) -> None:
    points = [(each.rank, each.holdout, each.holdout_error) for each in tried if each.holdout is not None]
    ranks, means, errors = zip(*points, strict=True)
    axes.errorbar(ranks, means, yerr=errors, color=BEST, marker="o", ms=4, lw=1, capsize=3)
    axes.set_ylabel(f"held-out {tried[0].criterion}")


DRAWERS = {"explained": _explained, "match": _matches, "consistency": _consistency, "holdout": _held_out}
