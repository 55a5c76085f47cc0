"""Signals that end a command line: each unwinds what goes on, and ends it with one line and its exit code.

Python calls handlers in the main thread, between two of its instructions. `Interrupts` raises `Stopped` there, so that
blocks are left as after any other error: drafts, claims and temporary folders are removed.
"""

from __future__ import annotations

import os
import signal
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from types import FrameType, TracebackType
from typing import Any

from .streams import ERROR, secure

EXIT_STOPPED = 75  # stopped by SIGTERM, SIGUSR1 or SIGHUP: what was done is saved, start again with --resume
EXIT_INTERRUPTED = 130  # the same by SIGINT: someone is there who decides whether to go on

ENDING = signal.SIGINT, signal.SIGTERM, signal.SIGUSR1, signal.SIGHUP
PROGRAMS = {"amped": "amped.run", "amped-partition": "partitioner"}  # and the modules that are the same
LAUNCHER_RANKS = "PMIX_RANK", "PMI_RANK", "PALS_RANKID"
AGAIN_SECONDS = 1.0  # after which a signal counts again: what raised it may have been a callback, which loses errors
UNWINDING_SECONDS = 10.0  # for blocks to be left, before the process ends without them
LAST_WORDS_SECONDS = 0.2  # for a launcher to pass on what the first rank says, before another one's end ends the job
NOTHING = "nothing was saved"


class Stopped(KeyboardInterrupt):
    """A signal that ends the command line."""

    def __init__(self, number: int) -> None:
        super().__init__(signal.Signals(number).name)
        self.signal = signal.Signals(number)


def exit_code(number: int) -> int:
    """Return the exit code of a process that a signal has ended."""
    return EXIT_INTERRUPTED if number == signal.SIGINT else EXIT_STOPPED


def described(number: int) -> str:
    """Return what a signal has done, in words."""
    return "interrupted" if number == signal.SIGINT else f"stopped by {signal.Signals(number).name}"


def number_of(error: KeyboardInterrupt) -> int:
    """Return the signal behind an exception."""
    return error.signal if isinstance(error, Stopped) else signal.SIGINT


def at_start() -> None:
    """Let a signal end this process at once, with a line, while a command line imports what it needs.

    Its standard streams are made `secure`, too. Nothing is done in a process that is no command line of `PROGRAMS`.
    """
    line, name = sys.orig_argv, os.path.basename(sys.argv[0]) if sys.argv else ""
    module = line[line.index("-m") + 1 :][:1] if name == "-m" and "-m" in line else []
    if name in PROGRAMS or any(each in module for each in PROGRAMS.values()):
        secure()
        for number in ENDING:
            if number != signal.SIGHUP or signal.getsignal(number) is not signal.SIG_IGN:  # as by nohup
                signal.signal(number, end)


def end(number: int, _: FrameType | None = None) -> None:
    """End this process at once; of several ranks the first one says why."""
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
    told : int
        The highest signal so far, or 0.
    """

    def __init__(self) -> None:
        self.told = 0
        self._listening = self._shielded = self._is_over = False
        self._interrupts, self._until = 0, 0.0
        self._before: dict[int, Any] = {}

    def __enter__(self) -> Any:
        global _raising
        for number in ENDING:
            if number != signal.SIGHUP or signal.getsignal(number) is not signal.SIG_IGN:
                self._before[number] = signal.signal(number, self._hear)
        self._before[signal.SIGALRM] = signal.signal(signal.SIGALRM, self._again)
        _raising = True
        return self

    def __exit__(self, kind: object, error: BaseException | None, trace: TracebackType | None) -> None:
        global _raising
        _raising = False
        if signal.getsignal(signal.SIGALRM) == self._again:
            signal.setitimer(signal.ITIMER_REAL, 0)
        elif signal.getsignal(signal.SIGALRM) is signal.SIG_DFL:
            del self._before[signal.SIGALRM]  # an alarm that ends this process
        for number, handler in self._before.items():  # of the process's start: it is over, and ends
            signal.signal(number, signal.SIG_IGN if handler is end else handler or signal.SIG_DFL)

    def over(self) -> None:
        """Ignore all signals from now on: the process says why it ends."""
        self._is_over = True
        for number in self._before.keys() - {signal.SIGALRM}:
            signal.signal(number, signal.SIG_IGN)
        if signal.getsignal(signal.SIGALRM) == self._again:
            signal.setitimer(signal.ITIMER_REAL, 0)

    @contextmanager
    def listening(self) -> Iterator[None]:
        """Only note signals inside the block, in `told`; a second SIGINT raises nevertheless."""
        with self._set(True, self._shielded):
            yield

    @contextmanager
    def shielded(self) -> Iterator[None]:
        """Do what must not be left half done: signals raise after the block, unless that is in `listening`."""
        with self._set(self._listening, True):
            yield
        if self.told and not (self._listening or self._shielded or self._is_over or _unwinding()):
            self._raise(self.told)

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

    def _hear(self, number: int, _: FrameType | None) -> None:
        self.told = max(self.told, number)
        self._interrupts += number == signal.SIGINT
        if not self._shielded and (not self._listening or self._interrupts > 1):
            self._raise(number)

    def _again(self, _: int, __: FrameType | None) -> None:
        self._raise(self.told)

    def _raise(self, number: int) -> None:
        """Raise `Stopped`, unless one is on its way."""
        if not self._until:
            self._until = time.monotonic() + UNWINDING_SECONDS
        elif time.monotonic() > self._until:
            end(number)
        signal.setitimer(signal.ITIMER_REAL, AGAIN_SECONDS)
        if not _unwinding():
            raise Stopped(number)


_raising = False


def raising() -> bool:
    """Return whether a signal would raise `Stopped` now, on all ranks: who waits for others should let it."""
    return _raising


def _unwinding() -> bool:
    """Return whether blocks are left because of `Stopped` just now."""
    error = sys.exc_info()[1]
    while error is not None and not isinstance(error, Stopped):
        error = error.__context__
    return error is not None
