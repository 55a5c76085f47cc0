"""What the command lines have in common."""

from __future__ import annotations

import argparse
from dataclasses import MISSING, Field, field, fields
from pathlib import Path
from typing import Any, NoReturn

from .errors import InputError

SUFFIXES = {"": 0, "K": 10, "M": 20, "G": 30, "T": 40}


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


def byte_count(text: str) -> int:
    """Read a number of bytes with an optional suffix K, M, G or T (powers of 1024)."""
    number = text.upper().removesuffix("B").removesuffix("I")
    shift = SUFFIXES.get(number[-1:], 0)
    try:
        count = int(float(number[:-1] if shift else number) * (1 << shift))
    except (ValueError, OverflowError):
        count = 0
    if count <= 0:
        raise argparse.ArgumentTypeError(f"{text!r} is not a number of bytes, such as 800M or 16G")
    return count


def seconds(text: str) -> float:
    """Read a number of seconds."""
    try:
        number = float(text)
    except ValueError:
        number = 0.0
    if not 0 < number < float("inf"):
        raise argparse.ArgumentTypeError(f"{text!r} is not a number of seconds above 0")
    return number


def flag(default: Any, help: str, **how: Any) -> Any:
    """Return a field of a dataclass that is also a flag of the command line.

    The default is ``MISSING`` for a flag that must be given, False for one without a value. `how` is what `argparse`
    takes, and `group`: flags of one group exclude each other.
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


def _add_flag(parser: Any, each: Field[Any]) -> None:
    how: dict[str, Any] = {key: value for key, value in each.metadata.items() if key != "group"}
    if each.default is False:
        how["action"] = "store_true"
    elif each.default is MISSING:
        how["required"] = True
    else:
        how["default"] = each.default
    parser.add_argument(f"--{each.name.replace('_', '-')}", **how)
