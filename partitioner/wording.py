"""Numbers and names of parameters in messages: flags on the command line, keyword arguments in Python."""

from __future__ import annotations

import math
from collections.abc import Iterable, Iterator
from contextlib import contextmanager

_command_lines = 0  # number of running command lines, which may be nested


@contextmanager
def command_line() -> Iterator[None]:
    """Within the block, messages name flags; as a decorator, within the function."""
    global _command_lines
    _command_lines += 1
    try:
        yield
    finally:
        _command_lines -= 1


def parameter(name: str, python: str | None = None) -> str:
    """Return the name of a parameter as the user writes it: ``--index-base`` or ``index_base``, or another `python`."""
    return f"--{name.replace('_', '-')}" if _command_lines else name if python is None else python


def setting(name: str, value: object = True) -> str:
    """Return a parameter and its value as the user writes them: ``--gather fp16`` or ``gather='fp16'``."""
    if not _command_lines:
        return f"{name}={value!r}"
    return parameter(name) if value is True else f"{parameter(name)} {value}"


def readable(number: float, digits: int = 6) -> str:
    """Return a number with up to `digits` significant digits as people write it: 99,250 and not 9.925e+04.

    Whole digits are never rounded. Numbers of 1e15 and more, and those below 0.0001, have an exponent.
    """
    if not 1e-4 <= abs(number) < 1e15:
        return f"{number:.{digits}g}"
    text = f"{number:,.{max(0, digits - 1 - math.floor(math.log10(abs(number))))}f}"
    return text.rstrip("0").rstrip(".") if "." in text else text


def alternatives(names: Iterable[str]) -> str:
    """Return names as text: "a, b or c"."""
    return " or ".join(", ".join(names).rsplit(", ", 1))
