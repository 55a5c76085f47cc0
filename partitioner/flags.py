"""What the command lines have in common."""

from __future__ import annotations

import argparse
import re
import sys
import warnings
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import MISSING, Field, field, fields
from pathlib import Path
from typing import Any, NoReturn

from .errors import InputError, InputWarning, one_line

SUFFIXES = {"": 0, "K": 10, "M": 20, "G": 30, "T": 40}
LONGEST = 32  # characters of a number
NUMBER = "[+-]?([0-9]+\\.?[0-9]*|\\.[0-9]+)([eE][+-]?[0-9]+)?|[+-]?(?i:nan|inf|infinity)"


class Parser(argparse.ArgumentParser):
    """Reports a wrong flag as an `InputError`: one line, exit code 2, once for all ranks."""

    def error(self, message: str) -> NoReturn:
        """Raise instead of printing on every rank."""
        raise InputError(f"{message}; see {self.prog} --help")


def path(text: str) -> Path:
    """Read the name of a file or folder; refuse an empty one (an unset variable), which would be the current folder."""
    if not text:
        raise argparse.ArgumentTypeError("an empty name")
    return Path(text)


def whole_number(text: str) -> int:
    """Read a whole number of plain digits: Python's own `int` takes "1_0", and digits of any script."""
    if not re.fullmatch("[+-]?[0-9]+", text) or len(text) > LONGEST:
        raise argparse.ArgumentTypeError(f"{shown(text)!r} is not a whole number of at most {LONGEST} digits")
    return int(text)


def real_number(text: str) -> float:
    """Read a number of plain digits, as `whole_number` does; "nan" and "inf" are left to whoever checks its range."""
    if not re.fullmatch(NUMBER, text) or len(text) > LONGEST:
        raise argparse.ArgumentTypeError(f"{shown(text)!r} is not a number")
    return float(text)


def whole_numbers(text: str) -> tuple[int, ...]:
    """Read whole numbers between commas."""
    return tuple(whole_number(part) for part in text.split(","))


def one_or_more(text: str) -> int | tuple[int, ...]:
    """Read a whole number, or several between commas."""
    found = whole_numbers(text)
    return found[0] if len(found) == 1 else found


def real_numbers(text: str) -> tuple[float, ...]:
    """Read numbers between commas."""
    return tuple(real_number(part) for part in text.split(","))


def byte_count(text: str) -> int:
    """Read a number of bytes with an optional suffix K, M, G or T (powers of 1024)."""
    number = text.upper().removesuffix("B").removesuffix("I")
    shift = SUFFIXES.get(number[-1:], 0)
    try:
        count = int(real_number(number[:-1] if shift else number) * (1 << shift))
    except (argparse.ArgumentTypeError, ValueError, OverflowError):
        count = 0
    if count <= 0:
        raise argparse.ArgumentTypeError(f"{shown(text)!r} is not a number of bytes, such as 800M or 16G")
    return count


def seconds(text: str) -> float:
    """Read a number of seconds."""
    try:
        number = real_number(text)
    except argparse.ArgumentTypeError:
        number = 0.0
    if not 0 < number < float("inf"):
        raise argparse.ArgumentTypeError(f"{shown(text)!r} is not a number of seconds above 0")
    return number


def shown(text: str) -> str:
    """Return what was given, cut short where it is long."""
    return text if len(text) <= 2 * LONGEST else f"{text[:LONGEST]}..."


@contextmanager
def plain_warnings(program: str) -> Iterator[None]:
    """Print an `InputWarning` as one line on standard error, as errors are; others as ever."""
    with warnings.catch_warnings():
        warnings.simplefilter("always", InputWarning)
        other = warnings.showwarning

        def show(message: Warning | str, category: type[Warning], *where: Any) -> None:
            if issubclass(category, InputWarning):
                print(f"{program}: warning: {one_line(str(message))}", file=sys.stderr, flush=True)
            else:
                other(message, category, *where)

        warnings.showwarning = show  # type: ignore[assignment]
        yield


def flag(default: Any, help: str, **how: Any) -> Any:
    """Return a field of a dataclass that is also a flag of the command line.

    The default is ``MISSING`` for a flag that must be given, False for one without a value. `how` is what `argparse`
    takes, `group`: flags of one group exclude each other, and `name`, if the flag is called otherwise than its field.
    """
    return field(default=default, metadata={"help": help, **how})


def add_flags(parser: Any, kind: type, leave_out: type = object) -> None:
    """Add the flags that a dataclass has, and `leave_out` has not, to a parser."""
    known, groups = getattr(leave_out, "__dataclass_fields__", {}), dict[str, Any]()
    for each in fields(kind):
        if each.metadata and each.name not in known:
            group = each.metadata.get("group")
            if group and group not in groups:
                groups[group] = parser.add_mutually_exclusive_group()
            _add_flag(groups[group] if group else parser, each)


def flag_name(each: Field[Any]) -> str:
    """Return what a field of a dataclass is called on the command line."""
    return f"--{each.metadata.get('name', each.name).replace('_', '-')}"


def _add_flag(parser: Any, each: Field[Any]) -> None:
    how: dict[str, Any] = {key: value for key, value in each.metadata.items() if key not in ("group", "name")}
    if each.default is False:
        how["action"] = "store_true"
    elif each.default is MISSING:
        how["required"] = True
    else:
        how["default"] = each.default
    parser.add_argument(flag_name(each), dest=each.name, **how)
