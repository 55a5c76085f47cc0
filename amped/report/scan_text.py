"""The report of a scan: a table row for each number of components, and the suggested number."""

from __future__ import annotations

from collections.abc import Sequence

from ..models.scanned import ScannedRank, Suggestion
from .progress import Display

LEAST_PERCENT = -999
HEADS = "components", "explained", "reached", "match", "halves", "consistency", "iterations", "seconds"


class ScanTable:
    """The table of a scan, printed row by row."""

    def __init__(self, display: Display) -> None:
        self._display, self._begun = display, False

    def __call__(self, tried: ScannedRank) -> None:
        """Print the next row, after the head if it is the first."""
        self._display.note(line(tried) if self._begun else f"{'  '.join(_heads(tried))}\n{line(tried)}")
        self._begun = True

    def end(self, suggestion: Suggestion) -> None:
        """Close the live display and print the suggestion."""
        self._display.close()
        self._display.note(suggested(suggestion))


def table(tried: Sequence[ScannedRank], suggestion: Suggestion) -> str:
    """Return the table and the suggestion."""
    head = ["  ".join(_heads(tried[0]))] if tried else []
    return "\n".join([*head, *map(line, tried), suggested(suggestion)])


def suggested(suggestion: Suggestion) -> str:
    """Return the suggested number of components and the reason."""
    chosen = "none" if suggestion.rank is None else suggestion.rank
    return f"suggested: {chosen}; {suggestion.reason}"


def _heads(tried: ScannedRank) -> list[str]:
    """Return the heads of the columns."""
    holdout = [] if tried.holdout is None else [f"held-out {tried.criterion}".rjust(19)]
    return [*HEADS[:-2], *holdout, *HEADS[-2:]]


def line(tried: ScannedRank) -> str:
    """Return a row of the table, aligned with its head."""
    cells = [
        str(tried.rank),
        f"{tried.squared:.4f}",
        f"{tried.reached}/{len(tried.explained)}",
        "-" if tried.match is None else f"{tried.match:.2f}",
        "-" if tried.halves is None else f"{tried.halves:.2f}",
        percent(tried.consistency),
        *([] if tried.holdout is None else [f"{tried.holdout:.4g} ± {tried.holdout_error:.1g}"]),
        str(tried.iterations),
        f"{tried.seconds:.3g}",
    ]
    return "  ".join(cell.rjust(len(head)) for cell, head in zip(cells, _heads(tried), strict=True))


def percent(consistency: float | None) -> str:
    """Return a core consistency as text: how far below zero it is means nothing."""
    if consistency is None:
        return "-"
    return f"{consistency:.0f} %" if consistency > LEAST_PERCENT else f"< {LEAST_PERCENT} %"
