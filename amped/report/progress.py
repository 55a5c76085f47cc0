"""Displays of a run's progress: live bars on a terminal, plain lines elsewhere."""

from __future__ import annotations

import sys
import time
from collections.abc import Callable
from contextlib import suppress

from partitioner.errors import printable
from partitioner.host.streams import discard

from ..errors import OutputError, UnreadError
from ..parallel.mpi import launched

MIN_INTERVAL = 0.05  # seconds between updates while reading
COMPILING = "compiling (first use on this machine)"


class Display:
    """A display of a run's progress; as a context manager it closes itself.

    This base class shows nothing: it serves quiet runs, and all ranks except rank 0. If standard output fails, the
    subclasses print one line on standard error, set `failed`, and the run continues; if the report is the result of the
    command, `note` raises instead.
    """

    failed = False

    def __enter__(self) -> Display:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def note(self, text: str) -> None:
        """Show text of the report."""

    def reading(self, done: int, total: int | None) -> None:
        """Show the number of input bytes read so far."""

    def rows(self, done: int, total: int | None) -> None:
        """Show the number of table rows read so far."""

    def stage(self, name: str | None) -> None:
        """Show the current stage between reading and iterating; None removes it."""

    def compiling(self) -> None:
        """Show that code is being compiled."""

    def compiled(self, seconds: float) -> None:
        """Show that compilation has finished, and its seconds."""

    def iteration(self, number: int, of: int, facts: str, left: float | None = None) -> None:
        """Show the figures of an iteration, number `number` of at most `of`, and the remaining seconds, if known."""

    def components(self, describe: Callable[[], str]) -> None:
        """Show the components of a model, on terminals only."""

    def close(self) -> None:
        """Remove the live display."""


class PlainDisplay(Display):
    """Lines on standard output, for logs and pipes."""

    def __init__(self, result: bool = False) -> None:
        self._is_result = result

    def note(self, text: str) -> None:
        if not self.failed:
            try:
                say(text)
            except OutputError as error:
                if self._is_result:
                    raise
                self.failed = True
                print(f"amped: {error}; the run continues without it", file=sys.stderr, flush=True)

    def compiling(self) -> None:
        self.note(COMPILING)

    def compiled(self, seconds: float) -> None:
        self.note(f"compiled in {seconds:.1f} s")

    def iteration(self, number: int, of: int, facts: str, left: float | None = None) -> None:
        self.note(f"iteration {number:3d}  {facts}  {_left(left)}".rstrip())


class LiveDisplay(PlainDisplay):
    """Bars on a terminal, drawn by rich; lines of the report stay above them."""

    def __init__(self, result: bool = False) -> None:
        super().__init__(result)
        self._opened, self._drawn, self._done = time.perf_counter(), 0.0, 0  # times of reading, and its progress
        from rich import progress
        from rich.text import Text

        columns = (progress.TextColumn("{task.description}"), progress.BarColumn(), progress.TaskProgressColumn())
        facts = progress.TextColumn("{task.fields[facts]}")

        class ReadingRemains(progress.TimeRemainingColumn):
            """The remaining time of reading; empty for other tasks, whose end is unknown."""

            def render(self, task: progress.Task) -> Text:
                return super().render(task) if task.description == "reading" else Text("")

        times = facts, progress.TimeElapsedColumn(), ReadingRemains()
        self._bars = progress.Progress(*columns, *times, transient=True)
        self._bars.start()
        self._tasks: dict[str, progress.TaskID] = {}
        self._stages: set[str] = set()  # tasks that `stage` shows

    def note(self, text: str) -> None:
        self._bars.console.print(printable(text), highlight=False, markup=False, soft_wrap=True)

    def reading(self, done: int, total: int | None) -> None:
        self._show_reading(done, total, "MB", 0)

    def rows(self, done: int, total: int | None) -> None:
        self._show_reading(done, total, "million rows", 1)

    def _show_reading(self, done: int, total: int | None, unit: str, digits: int) -> None:
        """Show the progress and speed of reading, in millions of a unit."""
        now = time.perf_counter()
        if now - self._drawn < MIN_INTERVAL and done != total:
            return
        if done < self._done:  # a table is read in two passes
            self._opened = now
        self._drawn, self._done = now, done
        speed = done / max(MIN_INTERVAL, now - self._opened) / 1e6
        self._show("reading", done, total, f"{done / 1e6:.{digits}f} {unit}, {speed:.{digits}f} {unit}/s")

    def stage(self, name: str | None) -> None:
        for other in self._stages - {name}:
            self._bars.update(self._tasks[other], visible=False)
        if name is not None:
            self._stages.add(name)
            self._show(name, 0, None, "")

    def compiling(self) -> None:
        """See `Display`; shows a bar with the elapsed seconds."""
        self._show(COMPILING, 0, None, "")

    def compiled(self, seconds: float) -> None:
        self._bars.update(self._tasks[COMPILING], visible=False)
        super().compiled(seconds)

    def iteration(self, number: int, of: int, facts: str, left: float | None = None) -> None:
        self._show("iterating", number, of, f"{facts}  {_left(left)}".rstrip())
        self.note(f"iteration {number:3d}  {facts}")

    def components(self, describe: Callable[[], str]) -> None:
        if text := describe():
            self.note(text)

    def _show(self, name: str, done: int, total: int | None, facts: str) -> None:
        if name not in self._tasks:
            self._tasks[name] = self._bars.add_task(name, total=total, facts=facts)
        self._bars.update(self._tasks[name], completed=done, total=total, facts=facts, visible=done != total)

    def close(self) -> None:
        self._bars.stop()


def _left(seconds: float | None) -> str:
    return "" if seconds is None else f"about {seconds:.0f} s left"


def say(text: str) -> None:
    """Print on standard output; raise `OutputError` if that fails, `UnreadError` if the reader closed the pipe."""
    try:
        print(printable(text), flush=True)
    except (OSError, ValueError) as error:  # ValueError: the stream is closed
        with suppress(AttributeError, OSError, ValueError):  # a replacement stream may lack a descriptor
            discard(sys.stdout.fileno())  # otherwise Python flushes it again at exit
        kind = UnreadError if isinstance(error, BrokenPipeError) else OutputError
        raise kind(f"standard output: {getattr(error, 'strerror', None) or error}") from None


def _is_terminal() -> bool:
    """Return whether standard output is a terminal; it may be missing, or a replacement object."""
    try:
        return sys.stdout.isatty()
    except (AttributeError, ValueError):
        return False


def display(rank: int, quiet: bool, result: bool = False) -> Display:
    """Return the display for this rank and its standard output; `result`: the report is the command's result."""
    if rank or quiet:
        return Display()
    # Launchers give ranks a pseudo-terminal even if the output goes to a file.
    return LiveDisplay(result) if _is_terminal() and not launched() else PlainDisplay(result)
