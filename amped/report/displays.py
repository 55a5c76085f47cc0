"""The display of a run by where it runs, and log records for a program that logs."""

from __future__ import annotations

import sys
from collections.abc import Callable

from ..parallel.mpi import launched
from . import logs
from .notebook_progress import NotebookDisplay, in_notebook
from .progress import BYTES, COMPILING, Display, LiveDisplay, PlainDisplay, ReadingUnit, StreamName, is_terminal


class LoggedDisplay(Display):
    """A display that also writes log records."""

    def __init__(self, shown: Display) -> None:
        self._shown, self._entered = shown, set[str]()

    @property
    def failed(self) -> bool:  # type: ignore[override]
        """See `Display`."""
        return self._shown.failed

    def note(self, text: str) -> None:
        logs.info(text)
        self._shown.note(text)

    def reading(self, done: int, total: int | None, unit: ReadingUnit = BYTES) -> None:
        self._enter("reading")
        self._shown.reading(done, total, unit)

    def stage(self, name: str | None) -> None:
        self._enter(name or "")
        self._shown.stage(name)

    def _enter(self, stage: str) -> None:
        if stage and stage not in self._entered:  # stages recur, for example for each mode
            logs.info(stage)
            self._entered.add(stage)

    def compiling(self) -> None:
        logs.info(COMPILING)
        self._shown.compiling()

    def compiled(self, seconds: float) -> None:
        logs.info(f"compiled in {seconds:.1f} s")
        self._shown.compiled(seconds)

    def iteration(self, number: int, of: int, facts: Callable[[], str], left: float | None = None) -> None:
        if logs.enabled():
            logs.info(f"iteration {number}  {facts()}")
        self._shown.iteration(number, of, facts, left)

    def components(self, describe: Callable[[], str]) -> None:
        self._shown.components(describe)

    def close(self) -> None:
        self._shown.close()


def display(rank: int, quiet: bool, result: bool = False, progress: StreamName = "stdout") -> Display:
    """Return the display for this rank and its standard streams; see `PlainDisplay`."""
    if rank:
        return Display()
    # Launchers give ranks a pseudo-terminal even if the output goes to a file.
    live = not quiet and not launched() and is_terminal(getattr(sys, progress))
    kind = LiveDisplay if live else NotebookDisplay if in_notebook() else PlainDisplay
    shown = Display() if quiet else kind(result, progress)
    return LoggedDisplay(shown) if logs.enabled() else shown
