"""A record of what this rank is doing, for the report of a run that hangs or fails."""

from __future__ import annotations

import sys
import threading
import time
import traceback
from collections import deque
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from functools import wraps
from typing import Any, Concatenate, NamedTuple, ParamSpec, TypeVar

P = ParamSpec("P")
S = TypeVar("S")
T = TypeVar("T")

REPORTED = 4  # number of collectives in a report
FRAMES = 3  # number of stack frames in a report
COMPILING_SECONDS = 120.0  # time that one compilation may take in addition to the limit of a step
LOADING_SECONDS = 3600.0  # time limit of reading or distributing a tensor, or of writing a model


class Collective(NamedTuple):
    """One collective operation of this rank."""

    number: int
    operation: str
    nbytes: int
    iteration: int
    mode: int | None

    def __str__(self) -> str:
        where = "" if self.mode is None else f", iteration {self.iteration}, mode {self.mode}"
        return f"#{self.number} {self.operation} ({self.nbytes:,} bytes{where})"


class Recorder:
    """The state of the main thread, read by other threads."""

    def __init__(self) -> None:
        self.iteration = 0  # 0 before the first
        # A step hangs if more than this many seconds pass between collectives or modes, or within a collective.
        self.limit = LOADING_SECONDS
        self._mode: int | None = None
        self._waiting = False
        self._since = time.monotonic()
        self._compiling: float | None = None  # start of the compilation in progress
        self._last: deque[Collective] = deque(maxlen=REPORTED)
        self._main = threading.main_thread().ident

    @property
    def mode(self) -> int | None:
        """The current mode. Setting it starts a step."""
        return self._mode

    @mode.setter
    def mode(self, mode: int) -> None:
        self._mode, self._since = mode, time.monotonic()

    def queued(self, operation: str, nbytes: int) -> None:
        """Record a collective that is queued on a device or about to begin."""
        number = self._last[-1].number + 1 if self._last else 1
        self._last.append(Collective(number, operation, nbytes, self.iteration, self.mode))

    @contextmanager
    def collective(self, operation: str, nbytes: int) -> Iterator[None]:
        """Record a collective that runs inside the block."""
        self.queued(operation, nbytes)
        self._waiting, self._since = True, time.monotonic()
        try:
            yield
        finally:
            self._waiting, self._since = False, time.monotonic()

    @contextmanager
    def limited(self, seconds: float) -> Iterator[None]:
        """Set another time limit inside the block."""
        before, self._since = self.limit, time.monotonic()
        self.limit = seconds
        try:
            yield
        finally:
            self.limit, self._since = before, time.monotonic()

    def excuse(self, seconds: float) -> None:
        """Exclude a duration from the current step."""
        self._since += seconds

    def stage(self, name: str | None) -> None:
        """Record that the main thread enters a stage; compiling does not count against the limit of a step."""
        self.excuse(self._compiled())
        self._compiling = time.monotonic() if name == "compile" else None

    def _compiled(self) -> float:
        """Return the duration of the compilation in progress, at most `COMPILING_SECONDS`."""
        return 0.0 if (start := self._compiling) is None else min(time.monotonic() - start, COMPILING_SECONDS)

    def overdue(self) -> tuple[bool, bool]:
        """Return whether this rank has computed, and whether it has waited in a collective, beyond the time limit."""
        late = time.monotonic() - self._since - self._compiled() > self.limit
        return late and not self._waiting, late and self._waiting

    def where(self) -> str:
        """Return a description of the current step and the last collectives."""
        seconds = time.monotonic() - self._since
        last = ", ".join(map(str, reversed(self._last))) or "none"
        at = "not yet in an iteration" if self.mode is None else f"in iteration {self.iteration}, mode {self.mode}"
        doing = "waiting in a collective" if self._waiting else "computing"
        return f"{at}, {doing} for {seconds:.1f} s; last collectives: {last}"

    def stack(self) -> str:
        """Return the main thread's stack frames, the innermost first."""
        frame = sys._current_frames().get(self._main or 0)
        frames = traceback.extract_stack(frame)[-FRAMES:] if frame else []
        return " < ".join(f"{f.name} ({f.filename.rpartition('/')[2]}:{f.lineno})" for f in reversed(frames))


CURRENT = Recorder()
"""The recorder of this process."""


def recorded(operation: Callable[Concatenate[S, P], T]) -> Callable[Concatenate[S, P], T]:
    """Decorate a method that is a blocking collective to record each call."""

    @wraps(operation)
    def recording(self: S, /, *args: P.args, **kwargs: P.kwargs) -> T:
        first: Any = args[0] if args else None
        with CURRENT.collective(operation.__name__, getattr(first, "nbytes", 0)):
            return operation(self, *args, **kwargs)

    return recording
