"""A progress bar in Jupyter; the lines of the report are those of logs."""

from __future__ import annotations

import sys
import time
from collections.abc import Callable
from html import escape
from typing import Any

from .progress import BYTES, COMPILING, MIN_INTERVAL, PlainDisplay, ReadingUnit, StreamName, amount_text, left_text


def in_notebook() -> bool:
    """Return whether a kernel of Jupyter runs this program."""
    ipython: Any = sys.modules.get("IPython")
    return ipython is not None and hasattr(ipython.get_ipython(), "kernel")


class NotebookDisplay(PlainDisplay):
    """A bar above the lines of the report, which is removed at the end."""

    def __init__(self, result: bool = False, progress: StreamName = "stdout") -> None:
        super().__init__(result, progress)
        self._handle: Any = None
        self._drawn = 0.0

    def reading(self, done: int, total: int | None, unit: ReadingUnit = BYTES) -> None:
        super().reading(done, total, unit)
        if time.perf_counter() - self._drawn > MIN_INTERVAL:
            self._bar(done, total, f"reading: {amount_text(done, total, unit)}")

    def stage(self, name: str | None) -> None:
        super().stage(name)
        self._bar(0, None, name or "computing")

    def compiling(self) -> None:
        super().compiling()
        self._bar(0, None, COMPILING)

    def iteration(self, number: int, of: int, facts: Callable[[], str], left: float | None = None) -> None:
        text = facts()
        super().iteration(number, of, lambda: text, left)
        if time.perf_counter() - self._drawn > MIN_INTERVAL:
            self._bar(number, of, f"iteration {number} of at most {of}  {text}  {left_text(left)}")

    def close(self) -> None:
        super().close()
        if self._handle is not None:
            self._show("")

    def _bar(self, done: int, total: int | None, text: str) -> None:
        """Show a bar; a moving one without a `total`."""
        self._drawn = time.perf_counter()
        value = f' value="{done}" max="{total}"' if total else ""
        self._show(f'<progress{value} style="width: 16em; vertical-align: middle"></progress> {escape(text.rstrip())}')

    def _show(self, html: str) -> None:
        from IPython import display

        shows: Any = display.display
        data = {"text/html": html, "text/plain": ""}
        if self._handle is None:
            self._handle = shows(data, raw=True, display_id=True)
        else:
            self._handle.update(data, raw=True)
