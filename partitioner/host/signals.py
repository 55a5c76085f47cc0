"""Signals that end a command line: they unwind the current work, and the process ends with one line and an exit code.

Python calls handlers in the main thread between bytecodes. `Interrupts` raises `Stopped` there, so blocks are left as
after any other error, and drafts, locks and temporary folders are removed.
"""

from __future__ import annotations

import os
import signal
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from types import FrameType, TracebackType
from typing import Any, Self

from .streams import ERROR, secure

EXIT_STOPPED = 75  # stopped by SIGTERM, SIGUSR1 or SIGHUP, with progress saved: continue with --resume
EXIT_INTERRUPTED = 130  # interrupted by SIGINT: the user decides whether to continue

ENDING = signal.SIGINT, signal.SIGTERM, signal.SIGUSR1, signal.SIGHUP
PROGRAMS = {"amped": "amped.run", "amped-partition": "partitioner"}  # command and equivalent module
LAUNCHER_RANKS = "PMIX_RANK", "PMI_RANK", "PALS_RANKID"
AGAIN_SECONDS = 1.0  # until a signal is raised again: callbacks may lose exceptions
UNWINDING_SECONDS = 10.0  # for unwinding, before the process exits without it
LAST_WORDS_SECONDS = 0.2  # for the launcher to forward the first rank's line before it ends the job
NOTHING = "nothing was saved"


class Stopped(KeyboardInterrupt):
    """Raised by a signal that ends the command line."""

    def __init__(self, number: int) -> None:
        super().__init__(signal.Signals(number).name)
        self.signal = signal.Signals(number)


def exit_code(number: int) -> int:
    """Return the exit code of a process that a signal ends."""
    return EXIT_INTERRUPTED if number == signal.SIGINT else EXIT_STOPPED


def described(number: int) -> str:
    """Return the effect of a signal in words."""
    return "interrupted" if number == signal.SIGINT else f"stopped by {signal.Signals(number).name}"


def number_of(error: KeyboardInterrupt) -> int:
    """Return the number of the signal that raised an exception."""
    return error.signal if isinstance(error, Stopped) else signal.SIGINT


def at_start() -> None:
    """While a command line imports its modules, let a signal end the process at once, with one line.

    The standard streams are secured, too (see `secure`). Does nothing unless the process runs one of `PROGRAMS`.
    """
    line, name = sys.orig_argv, os.path.basename(sys.argv[0]) if sys.argv else ""
    module = line[line.index("-m") + 1 :][:1] if name == "-m" and "-m" in line else []
    if name in PROGRAMS or any(each in module for each in PROGRAMS.values()):
        secure()
        for number in ENDING:
            if number != signal.SIGHUP or signal.getsignal(number) is not signal.SIG_IGN:  # started by nohup
                signal.signal(number, end)


def end(number: int, _: FrameType | None = None) -> None:
    """End this process at once. Of several ranks the first prints the reason."""
    ranks = [os.environ[name] for name in LAUNCHER_RANKS if name in os.environ]
    if all(rank == "0" for rank in ranks):
        with suppress(OSError):
            os.write(ERROR, f"amped: {described(number)}; {NOTHING}\n".encode())
    if ranks:
        time.sleep(LAST_WORDS_SECONDS)
    os._exit(exit_code(number))


class Interrupts:
    """Handles signals within its block; a context manager.

    Attributes
    ----------
    received : int
        The highest signal number so far, or 0.
    """

    def __init__(self) -> None:
        self.received = 0
        self._listening = self._shielded = self._ignoring = False
        self._interrupts, self._deadline = 0, 0.0
        self._previous: dict[int, Any] = {}

    def __enter__(self) -> Self:
        global _raising
        for number in ENDING:
            if number != signal.SIGHUP or signal.getsignal(number) is not signal.SIG_IGN:
                self._previous[number] = signal.signal(number, self._handle)
        self._previous[signal.SIGALRM] = signal.signal(signal.SIGALRM, self._raise_again)
        _raising = True
        return self

    def __exit__(self, kind: object, error: BaseException | None, trace: TracebackType | None) -> None:
        global _raising
        _raising = False
        if signal.getsignal(signal.SIGALRM) == self._raise_again:
            signal.setitimer(signal.ITIMER_REAL, 0)
        elif signal.getsignal(signal.SIGALRM) is signal.SIG_DFL:
            del self._previous[signal.SIGALRM]  # SIG_DFL would end this process at an alarm
        for number, handler in self._previous.items():  # `end` was the handler during the start, which is over
            signal.signal(number, signal.SIG_IGN if handler is end else handler or signal.SIG_DFL)

    def ignore_all(self) -> None:
        """Ignore all signals from now on: the process is about to end and reports why."""
        self._ignoring = True
        for number in self._previous.keys() - {signal.SIGALRM}:
            signal.signal(number, signal.SIG_IGN)
        if signal.getsignal(signal.SIGALRM) == self._raise_again:
            signal.setitimer(signal.ITIMER_REAL, 0)

    @contextmanager
    def listening(self) -> Iterator[None]:
        """Within the block only record signals in `received`; only a second SIGINT raises."""
        with self._set(True, self._shielded):
            yield

    @contextmanager
    def shielded(self) -> Iterator[None]:
        """Protect a block that must complete: signals raise after it, unless it is within `listening`."""
        with self._set(self._listening, True):
            yield
        if self.received and not (self._listening or self._shielded or self._ignoring or _unwinding()):
            self._raise(self.received)

    @contextmanager
    def _set(self, listening: bool, shielded: bool) -> Iterator[None]:
        global _raising
        before = self._listening, self._shielded
        self._listening, self._shielded, _raising = listening, shielded, False
        try:
            yield
        finally:
            self._listening, self._shielded = before
            _raising = not any(before)

    def _handle(self, number: int, _: FrameType | None) -> None:
        self.received = max(self.received, number)
        self._interrupts += number == signal.SIGINT
        if not self._shielded and (not self._listening or self._interrupts > 1):
            self._raise(number)

    def _raise_again(self, _: int, __: FrameType | None) -> None:
        self._raise(self.received)

    def _raise(self, number: int) -> None:
        """Raise `Stopped`, unless one is already unwinding the stack."""
        if not self._deadline:
            self._deadline = time.monotonic() + UNWINDING_SECONDS
        elif time.monotonic() > self._deadline:
            end(number)
        signal.setitimer(signal.ITIMER_REAL, AGAIN_SECONDS)
        if not _unwinding():
            raise Stopped(number)


_raising = False


def raising() -> bool:
    """Return whether a signal would now raise `Stopped`, on all ranks; then waits should be interruptible."""
    return _raising


def _unwinding() -> bool:
    """Return whether the current exception is, or was caused by, `Stopped`."""
    error = sys.exc_info()[1]
    while error is not None and not isinstance(error, Stopped):
        error = error.__context__
    return error is not None
