"""The one-line error for a wrong input, and the exit codes."""

from __future__ import annotations

import sys
from os import PathLike, fspath

EXIT_FAILURE = 1  # a rank died or hung, the result cannot be written, or a defect in amped
EXIT_INCOMPLETE = 3  # the result is written, but metrics, a checkpoint or the report on standard output failed
EXIT_UNREAD = 141  # whoever read standard output left, as `head` does: what a shell says of a program that SIGPIPE ends
EXIT_INPUT = 2  # the input or the options are wrong; one line on standard error says how


class InputError(ValueError):
    """A wrong input or option.

    Parameters
    ----------
    cause : str
        What is wrong, in a few words.
    path : str or PathLike, optional
        The file at fault.
    line : int, optional
        The line of that file, counted from 1.

    Notes
    -----
    ``str`` gives one line, ``PATH, line N: cause``, which the command line prints
    on standard error before it exits with code 2.
    """

    exit_code = EXIT_INPUT

    def __init__(self, cause: str, *, path: str | PathLike[str] | None = None, line: int | None = None) -> None:
        self.cause = cause
        self.path = None if path is None else fspath(path)
        self.line = line
        where = self.path or ""
        if line is not None:
            where = f"{where}, line {line}" if where else f"line {line}"
        super().__init__(one_line(f"{where}: {cause}" if where else cause))

    def __reduce__(self) -> tuple[object, ...]:
        # Ranks exchange errors by pickling them.
        return (_rebuild, (type(self), self.cause, self.path, self.line))


class OutputError(InputError):
    """A result that cannot be written after the work, as on a full disk."""

    exit_code = EXIT_FAILURE


class UnreadError(OutputError):
    """A result on standard output whose reader has left: nobody waits for it, and nothing is said."""

    exit_code = EXIT_UNREAD


class InputWarning(UserWarning):
    """An input that may not mean what it is taken for; the command line prints one line of it."""


def one_line(text: str) -> str:
    """Return `text` with line ends and unprintable characters (of a file name, say) escaped."""
    return "".join(c if c.isprintable() else c.encode("unicode_escape", "backslashreplace").decode() for c in text)


def printable(text: str) -> str:
    """Return `text` for standard output, with some characters of file names and labels escaped.

    These are the unprintable ones, which a terminal would obey, and those that the encoding of the output lacks.
    """
    encoding = getattr(sys.stdout, "encoding", None) or "utf-8"
    escaped = "\n".join(map(one_line, text.split("\n")))
    return escaped.encode(encoding, "backslashreplace").decode(encoding)


def _rebuild(kind: type[InputError], cause: str, path: str | None, line: int | None) -> InputError:
    return kind(cause, path=path, line=line)
