"""Picture of a scan: explained share and stability by number of components."""

from __future__ import annotations

import os
from collections.abc import Sequence
from typing import Any

from ..models.scanned import CONSISTENT, STABLE, ScannedRank, Suggestion
from .figures import figure_class, save

SIZE = 6.4, 6.6  # inches
DOTS = 110  # dots per inch
BEST, OTHER, CHOSEN = "#4477aa", "#ee6677", "#bbbbbb"  # colour-blind safe (Paul Tol's)
LOWEST = -100.0  # lowest core consistency shown, in percent


def draw(tried: Sequence[ScannedRank], suggestion: Suggestion, path: str | os.PathLike[str] | None = None) -> Any:
    """Draw a scan as panels over the number of components: three, or four if elements were held out.

    Parameters
    ----------
    tried : sequence of ScannedRank
    suggestion : Suggestion
        The suggested number of components, which is marked.
    path : path, optional
        See `check_picture`.

    Returns
    -------
    matplotlib.figure.Figure

    Raises
    ------
    InputError
        If Matplotlib is not installed, the extension is not supported, or the file cannot be written.
    """
    figure = figure_class()(figsize=SIZE, dpi=DOTS, layout="constrained")
    tried = sorted(tried, key=lambda each: each.rank)
    evaluated = any(each.holdout is not None for each in tried)
    panels = figure.subplots(3 + evaluated, 1, sharex=True)
    _explained(panels[0], tried)
    _matches(panels[1], tried)
    _consistency(panels[2], tried)
    if evaluated:
        _held_out(panels[3], tried)
    for axes in panels:
        if suggestion.rank is not None:
            axes.axvline(suggestion.rank, color=CHOSEN, lw=6, alpha=0.5, zorder=0)
        for side in ("top", "right"):
            axes.spines[side].set_visible(False)
        axes.tick_params(labelsize=8)
    panels[-1].set_xlabel("components")
    panels[-1].xaxis.get_major_locator().set_params(integer=True)
    chosen = "no number is suggested" if suggestion.rank is None else f"suggested: {suggestion.rank}"
    figure.suptitle(chosen, fontsize=11)
    return save(figure, path)


def _explained(axes: Any, tried: Sequence[ScannedRank]) -> None:
    points = [(each.rank, explained) for each in tried for explained in each.explained]
    axes.scatter(*zip(*points, strict=True), s=14, color=BEST, alpha=0.4, label="starts")
    axes.plot([each.rank for each in tried], [each.squared for each in tried], color=BEST, label="best start")
    axes.set_ylabel("explained")
    axes.legend(fontsize=8, frameon=False, loc="lower right")


def _matches(axes: Any, tried: Sequence[ScannedRank]) -> None:
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


def _consistency(axes: Any, tried: Sequence[ScannedRank]) -> None:
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


def _held_out(axes: Any, tried: Sequence[ScannedRank]) -> None:
    points = [(each.rank, each.holdout, each.holdout_error) for each in tried if each.holdout is not None]
    ranks, means, errors = zip(*points, strict=True)
    axes.errorbar(ranks, means, yerr=errors, color=BEST, marker="o", ms=4, lw=1, capsize=3)
    axes.set_ylabel("held-out RMSE")
