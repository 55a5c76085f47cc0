"""Displays of a run: bars on a terminal, and plain lines elsewhere.

Reports and results go to standard output. On the command line progress goes to standard error.
"""

from __future__ import annotations

import sys
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from typing import IO, Literal, NamedTuple
from weakref import WeakMethod

from partitioner.errors import printable
from partitioner.host.streams import discard

from ..errors import OutputError, UnreadError

StreamName = Literal["stdout", "stderr"]
MIN_INTERVAL = 0.05  # seconds between updates while reading
COMPILING = "compiling (first use on this machine)"
SILENCE = 10.0  # seconds without a line after which a log gets one


class ReadingUnit(NamedTuple):
    """What is counted while reading: the name of a million, and the digits after the decimal point."""

    millions: str
    digits: int


BYTES, ROWS = ReadingUnit("MB", 0), ReadingUnit("million rows", 1)


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

    def reading(self, done: int, total: int | None, unit: ReadingUnit = BYTES) -> None:
        """Show how much of the input has been read: bytes, or rows of a table."""

    def rows(self, done: int, total: int | None) -> None:
        """Show the number of table rows read so far."""
        self.reading(done, total, ROWS)

    def stage(self, name: str | None) -> None:
        """Show the current stage between reading and iterating; None removes it."""

    @contextmanager
    def within(self, name: str | None) -> Iterator[None]:
        """Show a stage within the block, if it is not None."""
        if name is not None:
            self.stage(name)
        try:
            yield
        finally:
            if name is not None:
                self.stage(None)

    def compiling(self) -> None:
        """Show that code is being compiled."""

    def compiled(self, seconds: float) -> None:
        """Show that compilation has finished, and its seconds."""

    def iteration(self, number: int, of: int, facts: Callable[[], str], left: float | None = None) -> None:
        """Show the facts of iteration `number` of at most `of`, and the remaining seconds, if known."""

    def components(self, describe: Callable[[], str]) -> None:
        """Show the components of a model, on terminals only."""

    def close(self) -> None:
        """Remove the live display."""


class Ticker:
    """Calls a bound method after each `SILENCE` without news, in a thread, until `stop` or the object's end."""

    def __init__(self, tick: Callable[[], object]) -> None:
        self._tick, self._last = WeakMethod(tick), time.monotonic()
        self._stopped = threading.Event()
        self._thread: threading.Thread | None = None

    def news(self) -> None:
        """Restart the interval."""
        self._last = time.monotonic()
        self.start()

    def start(self) -> None:
        """Start the thread, once."""
        if self._thread is None:
            self._thread = threading.Thread(target=self._run, name="amped-progress", daemon=True)
            self._thread.start()

    def stop(self) -> None:
        """End the thread."""
        self._stopped.set()

    def _run(self) -> None:
        while not self._stopped.wait(max(0.0, self._last + SILENCE - time.monotonic())):
            if time.monotonic() - self._last >= SILENCE:
                if (tick := self._tick()) is None:
                    return
                tick()
                self._last = time.monotonic()
                del tick


class PlainDisplay(Display):
    """Lines for logs and pipes.

    Parameters
    ----------
    result : bool
        Whether the report is the result of the command.
    progress : {"stdout", "stderr"}
        The stream for iterations and other progress. While nothing else happens, a line shows every `SILENCE` seconds
        what the run is doing.
    """

    def __init__(self, result: bool = False, progress: StreamName = "stdout") -> None:
        self._is_result, self._stream = result, progress
        self._doing, self._since, self._amount = "", 0.0, ""  # what, since when, and how much of it is done
        self._ticker = Ticker(self._still)

    def note(self, text: str) -> None:
        if not self.failed:
            try:
                say(text)
            except OutputError as error:
                if self._is_result:
                    raise
                self.failed = True
                print(f"amped: {error}; the run continues without it", file=sys.stderr, flush=True)

    def reading(self, done: int, total: int | None, unit: ReadingUnit = BYTES) -> None:
        self._does("reading", amount_text(done, total, unit))

    def stage(self, name: str | None) -> None:
        self._does(name or "computing")

    def compiling(self) -> None:
        self._progress(COMPILING)

    def compiled(self, seconds: float) -> None:
        self._progress(f"compiled in {seconds:.1f} s")

    def iteration(self, number: int, of: int, facts: Callable[[], str], left: float | None = None) -> None:
        self._progress(f"iteration {number:3d}  {facts()}  {left_text(left)}".rstrip())
        self._does(f"in iteration {number + 1}")

    def close(self) -> None:
        self._ticker.stop()

    def _does(self, what: str, amount: str = "") -> None:
        """Remember what the run is doing."""
        if what != self._doing:
            self._doing, self._since = what, time.monotonic()
            self._ticker.start()
        self._amount = amount

    def _still(self) -> None:
        """Print what the run is doing."""
        if self._doing:
            seconds = time.monotonic() - self._since
            self._print(f"still {self._doing} after {seconds:.0f} s{self._amount and f': {self._amount}'}")

    def _progress(self, text: str) -> None:
        self._ticker.news()
        self._print(text)

    def _print(self, text: str) -> None:
        if self._stream == "stdout":
            self.note(text)
        elif sys.stderr is not None:
            with suppress(OSError, ValueError):  # nobody may read it
                print(printable(text), file=sys.stderr, flush=True)


class LiveDisplay(PlainDisplay):
    """Bars on a terminal, drawn by rich; lines of the report stay above them."""

    def __init__(self, result: bool = False, progress: StreamName = "stdout") -> None:
        super().__init__(result, progress)
        self._opened, self._drawn, self._done = time.perf_counter(), 0.0, 0  # times of reading, and its progress
        from rich import progress as bars
        from rich.console import Console
        from rich.text import Text

        columns = (bars.TextColumn("{task.description}"), bars.BarColumn(), bars.TaskProgressColumn())
        facts = bars.TextColumn("{task.fields[facts]}")

        class ReadingRemains(bars.TimeRemainingColumn):
            """The remaining time of reading; empty for other tasks, whose end is unknown."""

            def render(self, task: bars.Task) -> Text:
                return super().render(task) if task.description == "reading" else Text("")

        times = facts, bars.TimeElapsedColumn(), ReadingRemains()
        together = is_terminal(sys.stdout)
        console = Console(stderr=self._stream == "stderr")
        self._bars = bars.Progress(*columns, *times, console=console, transient=True, redirect_stdout=together)
        self._notes_here = together
        self._bars.start()
        self._tasks: dict[str, bars.TaskID] = {}
        self._stages: set[str] = set()  # tasks that `stage` shows

    def note(self, text: str) -> None:
        if self._notes_here:
            self._print(text)
        else:  # standard output is not a terminal
            super().note(text)

    def reading(self, done: int, total: int | None, unit: ReadingUnit = BYTES) -> None:
        """See `Display`; shows the speed, too."""
        now = time.perf_counter()
        if now - self._drawn < MIN_INTERVAL and done != total:
            return
        if done < self._done:  # a table is read in two passes
            self._opened = now
        self._drawn, self._done = now, done
        speed = done / max(MIN_INTERVAL, now - self._opened) / 1e6
        amount, pace = (f"{each:.{unit.digits}f} {unit.millions}" for each in (done / 1e6, speed))
        self._show("reading", done, total, f"{amount}, {pace}/s")

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
        self._print(f"compiled in {seconds:.1f} s")

    def iteration(self, number: int, of: int, facts: Callable[[], str], left: float | None = None) -> None:
        self._show("iterating", number, of, f"{(text := facts())}  {left_text(left)}".rstrip())
        self._print(f"iteration {number:3d}  {text}")

    def components(self, describe: Callable[[], str]) -> None:
        if text := describe():
            self.note(text)

    def _print(self, text: str) -> None:
        self._bars.console.print(printable(text), highlight=False, markup=False, soft_wrap=True)

    def _show(self, name: str, done: int, total: int | None, facts: str) -> None:
        if name not in self._tasks:
            self._tasks[name] = self._bars.add_task(name, total=total, facts=facts)
        self._bars.update(self._tasks[name], completed=done, total=total, facts=facts, visible=done != total)

    def close(self) -> None:
        self._bars.stop()


def left_text(seconds: float | None) -> str:
    """Return the remaining seconds as text; empty if unknown."""
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


def amount_text(done: int, total: int | None, unit: ReadingUnit) -> str:
    """Return an amount in millions of a unit as text."""
    of = f" of {total / 1e6:,.{unit.digits}f}" if total else ""
    return f"{done / 1e6:,.{unit.digits}f}{of} {unit.millions}"


def is_terminal(stream: IO[str] | None) -> bool:
    """Return whether a standard stream is a terminal; it may be missing, closed, or a replacement object."""
    try:
        return stream is not None and stream.isatty()
    except (AttributeError, ValueError):
        return False
