"""The standard streams of a command line: whatever becomes of them, a run ends as it would, with its files."""

from __future__ import annotations

import io
import os
import sys

INPUT, OUTPUT, ERROR = range(3)  # file descriptors


class LastingText(io.TextIOWrapper):
    """A stream of messages: once it takes no more, as on a full disk or to a reader that left, the rest is dropped."""

    def write(self, text: str) -> int:
        """Write some text, or drop it."""
        try:
            return super().write(text)
        except OSError:
            discard(self.fileno())
            return len(text)

    def flush(self) -> None:
        """Write what is buffered, or drop it."""
        try:
            super().flush()
        except OSError:
            discard(self.fileno())


def discard(number: int) -> None:
    """Discard what is written to a file descriptor from now on, and what Python has still to write there."""
    null = os.open(os.devnull, os.O_RDWR)
    if null == number:  # it was closed, and the lowest that is free
        os.set_inheritable(number, True)
        return
    os.dup2(null, number)
    os.close(null)


def secure() -> None:
    """Open the standard streams that are closed, which discard what is written; let errors on standard error pass.

    The next file to be opened would else be standard error, and have what libraries print there among its content.
    """
    for number in (INPUT, OUTPUT, ERROR):  # in this order, as a file gets the lowest number that is free
        try:
            os.fstat(number)
        except OSError:
            discard(number)
    if sys.stdout is None:
        sys.stdout = open(OUTPUT, "w", encoding="utf-8", closefd=False)  # noqa: SIM115 - as long as the process
    stream = open(ERROR, "wb", closefd=False)  # noqa: SIM115
    encoding = "utf-8" if sys.stderr is None else sys.stderr.encoding
    sys.stderr = LastingText(stream, encoding, "backslashreplace", line_buffering=True)
