"""Exit codes, and the exceptions that the command line prints as one line."""

from __future__ import annotations

import sys
import warnings
from os import PathLike, fspath

EXIT_FAILURE = 1  # a rank died or hung, the result cannot be written, or amped has a bug
EXIT_INCOMPLETE = 3  # the result is written, but metrics, a checkpoint or the report on standard output failed
EXIT_UNREAD = 141  # the reader of standard output, such as `head`, left; the shell's code for SIGPIPE
EXIT_INPUT = 2  # wrong input or options; one line on standard error explains


class InputError(ValueError):
    """A wrong input or option.

    Parameters
    ----------
    cause : str
        Short description of the error.
    path : str or PathLike, optional
        The faulty file.
    line : int, optional
        The faulty line of that file, counted from 1.

    Notes
    -----
    ``str`` gives one line, ``PATH, line N: cause``. The command line prints it on
    standard error and exits with code 2.
    """

    __module__ = "amped"  # where users import it from, as tracebacks show
    exit_code = EXIT_INPUT

    def __init__(self, cause: str, *, path: str | PathLike[str] | None = None, line: int | None = None) -> None:
        self.cause = cause
        self.path = None if path is None else fspath(path)
        self.line = line
        location = self.path or ""
        if line is not None:
            location = f"{location}, line {line}" if location else f"line {line}"
        super().__init__(one_line(f"{location}: {cause}" if location else cause))

    def __reduce__(self) -> tuple[object, ...]:
        # Ranks exchange errors as pickles.
        return (_rebuild, (type(self), self.cause, self.path, self.line))


class OutputError(InputError):
    """A result that cannot be written after the computation, for example because the disk is full."""

    exit_code = EXIT_FAILURE


class UnreadError(OutputError):
    """A result on standard output whose reader has left. No message is printed."""

    exit_code = EXIT_UNREAD


class InputWarning(UserWarning):
    """An input that may have another meaning than amped assumes. The command line prints one line."""


# Packages whose frames are not the user's code; the standard library's are wrappers around functions of the others.
INTERNAL = "amped", "partitioner", "contextlib", "functools"


def warn(message: str, category: type[Warning] = InputWarning) -> None:
    """Issue a warning for the line of the user's code that called amped or the partitioner."""
    frame, level = sys._getframe().f_back, 2
    while frame is not None and frame.f_globals.get("__name__", "").partition(".")[0] in INTERNAL:
        frame, level = frame.f_back, level + 1
    warnings.warn(message, category, stacklevel=level)


def one_line(text: str) -> str:
    """Return `text` with line ends and unprintable characters, as in file names, escaped."""
    return "".join(c if c.isprintable() else c.encode("unicode_escape", "backslashreplace").decode() for c in text)


def printable(text: str) -> str:
    """Return `text` for standard output, with unprintable and unencodable characters escaped.

    File names and labels may contain control characters, which a terminal would execute, and characters that the
    encoding of standard output lacks.
    """
    encoding = getattr(sys.stdout, "encoding", None) or "utf-8"
    escaped = "\n".join(map(one_line, text.split("\n")))
    return escaped.encode(encoding, "backslashreplace").decode(encoding)


def _rebuild(error_type: type[InputError], cause: str, path: str | None, line: int | None) -> InputError:
    return error_type(cause, path=path, line=line)
