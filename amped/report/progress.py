"""What a person sees while a run goes on: a live display on a terminal, plain lines elsewhere."""

from __future__ import annotations

import statistics
import sys
import time
from collections import deque
from collections.abc import Callable
from contextlib import suppress

from partitioner.errors import printable
from partitioner.host.streams import discard

from ..errors import OutputError, UnreadError
from ..parallel.mpi import launched

BETWEEN = 0.05  # seconds from one picture of the reading to the next
RECENT = 8  # iterations by which the time that is left is told


class Display:
    """Shows how far a run is; a context manager that takes its live display away.

    This one shows nothing: it is for quiet runs and for every rank but the first. Where standard output takes no more,
    one line says so, and `failed` is true: the run goes on. Where the report is the `result`, `note` raises instead.
    """

    failed = False

    def __enter__(self) -> Display:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def note(self, text: str) -> None:
        """Show a line of the report."""

    def reading(self, done: int, total: int | None) -> None:
        """Show how many bytes of the input are read."""

    def rows(self, done: int, total: int | None) -> None:
        """Show how many rows of a table are read."""

    def stage(self, name: str | None) -> None:
        """Show what is done between reading and iterating; None: nothing any more."""

    def iteration(self, number: int, of: int, facts: str) -> None:
        """Show what an iteration has reached."""

    def components(self, made: Callable[[], str]) -> None:
        """Show a person what a model says; in logs and pipes that is left to whoever asks for it."""

    def close(self) -> None:
        """Take the live display away."""


class PlainDisplay(Display):
    """Lines on standard output, for logs and pipes."""

    def __init__(self, result: bool = False) -> None:
        self._is_result = result
        self._last, self._number = time.perf_counter(), 0
        self._seconds = deque[float](maxlen=RECENT)  # of the last iterations

    def note(self, text: str) -> None:
        if not self.failed:
            try:
                say(text)
            except OutputError as error:
                if self._is_result:
                    raise
                self.failed = True
                print(f"amped: {error}; the run goes on without it", file=sys.stderr, flush=True)

    def iteration(self, number: int, of: int, facts: str) -> None:
        self.note(f"iteration {number:3d}  {facts}  {self._eta(number, of)}".rstrip())

    def _eta(self, number: int, of: int) -> str:
        """Tell how long is left by the median of recent iterations: some compile what others use."""
        now = time.perf_counter()
        if not self._number or number <= self._number:  # the first iteration, or that of another start
            self._seconds.clear()
        else:
            self._seconds.append((now - self._last) / (number - self._number))
        self._last, self._number = now, number
        left = statistics.median(self._seconds or [0.0]) * (of - number)
        return f"at most {left:.0f} s left" if left >= 1 else ""


class LiveDisplay(PlainDisplay):
    """Bars on a terminal, drawn by rich; lines of the report stay above them."""

    def __init__(self, result: bool = False) -> None:
        super().__init__(result)
        self._opened, self._drawn, self._done = time.perf_counter(), 0.0, 0  # reading comes first
        from rich import progress

        columns = (progress.TextColumn("{task.description}"), progress.BarColumn(), progress.TaskProgressColumn())
        facts = progress.TextColumn("{task.fields[facts]}")
        times = facts, progress.TimeElapsedColumn(), progress.TimeRemainingColumn()
        self._bars = progress.Progress(*columns, *times, transient=True)
        self._bars.start()
        self._tasks: dict[str, progress.TaskID] = {}
        self._stages: set[str] = set()  # those of the tasks that `stage` shows

    def note(self, text: str) -> None:
        self._bars.console.print(printable(text), highlight=False, markup=False, soft_wrap=True)

    def reading(self, done: int, total: int | None) -> None:
        self._tell(done, total, "MB", 0)

    def rows(self, done: int, total: int | None) -> None:
        self._tell(done, total, "million rows", 1)

    def _tell(self, done: int, total: int | None, unit: str, digits: int) -> None:
        """Show how much of the input is read, and how fast, in millions of a unit."""
        now = time.perf_counter()
        if now - self._drawn < BETWEEN and done != total:
            return  # a fast reader tells of its blocks more often than anyone can look
        if done < self._done:  # a table is looked at twice
            self._opened = now
        self._drawn, self._done = now, done
        speed = done / max(BETWEEN, now - self._opened) / 1e6
        self._show("reading", done, total, f"{done / 1e6:.{digits}f} {unit}, {speed:.{digits}f} {unit}/s")

    def stage(self, name: str | None) -> None:
        for other in self._stages - {name}:
            self._bars.update(self._tasks[other], visible=False)
        if name is not None:
            self._stages.add(name)
            self._show(name, 0, None, "")

    def iteration(self, number: int, of: int, facts: str) -> None:
        self._show("iterating", number, of, facts)
        self.note(f"iteration {number:3d}  {facts}")

    def components(self, made: Callable[[], str]) -> None:
        if text := made():
            self.note(text)

    def _show(self, name: str, done: int, total: int | None, facts: str) -> None:
        if name not in self._tasks:
            self._tasks[name] = self._bars.add_task(name, total=total, facts=facts)
        self._bars.update(self._tasks[name], completed=done, total=total, facts=facts, visible=done != total)

    def close(self) -> None:
        self._bars.stop()


def say(text: str) -> None:
    """Print on standard output; raise `OutputError` if it takes no more, `UnreadError` if its reader has left."""
    try:
        print(printable(text), flush=True)
    except (OSError, ValueError) as error:  # a ValueError: it was closed
        with suppress(AttributeError, OSError, ValueError):  # what stands in for it may be no file
            discard(sys.stdout.fileno())  # or Python tries again as it ends
        kind = UnreadError if isinstance(error, BrokenPipeError) else OutputError
        raise kind(f"standard output: {getattr(error, 'strerror', None) or error}") from None


def _is_terminal() -> bool:
    """Return whether standard output is a terminal; there may be none, or an object that only takes text."""
    try:
        return sys.stdout.isatty()
    except (AttributeError, ValueError):
        return False


def display(rank: int, quiet: bool, result: bool = False) -> Display:
    """Return the display that suits this rank and where its output goes; its lines may be the `result`."""
    if rank or quiet:
        return Display()
    # Launchers give ranks a terminal of their own even where their output goes to a file.
    return LiveDisplay(result) if _is_terminal() and not launched() else PlainDisplay(result)
