"""Standard streams of a command line. If one is closed or fails, the run still ends normally with its files written."""

from __future__ import annotations

import io
import os
import sys

INPUT, OUTPUT, ERROR = range(3)  # file descriptors


class LastingText(io.TextIOWrapper):
    """A text stream for messages that drops output after an error, such as a full disk or a closed pipe."""

    def write(self, text: str) -> int:
        """Write text, or drop it."""
        try:
            return super().write(text)
        except OSError:
            discard(self.fileno())
            return len(text)

    def flush(self) -> None:
        """Write buffered text, or drop it."""
        try:
            super().flush()
        except OSError:
            discard(self.fileno())


def discard(number: int) -> None:
    """Redirect a file descriptor to the null device. Text that Python has buffered for it is dropped as well."""
    null = os.open(os.devnull, os.O_RDWR)
    if null == number:  # it was closed and is the lowest free descriptor
        os.set_inheritable(number, True)
        return
    os.dup2(null, number)
    os.close(null)


def secure() -> None:
    """Open closed standard streams on the null device, and make standard error ignore write errors.

    Otherwise the next opened file would get the descriptor of standard error, and messages of libraries would go into
    it.
    """
    for number in (INPUT, OUTPUT, ERROR):  # ascending, as a file gets the lowest free descriptor
        try:
            os.fstat(number)
        except OSError:
            discard(number)
    if sys.stdout is None:
        sys.stdout = open(OUTPUT, "w", encoding="utf-8", closefd=False)  # noqa: SIM115 - open until the process ends
    stream = open(ERROR, "wb", closefd=False)  # noqa: SIM115
    encoding = "utf-8" if sys.stderr is None else sys.stderr.encoding
    sys.stderr = LastingText(stream, encoding, "backslashreplace", line_buffering=True)
