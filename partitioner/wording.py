"""Names of parameters in messages: flags on the command line, keyword arguments in Python."""

from __future__ import annotations

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


def alternatives(names: Iterable[str]) -> str:
    """Return names as text: "a, b or c"."""
    return " or ".join(", ".join(names).rsplit(", ", 1))
