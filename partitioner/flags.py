"""Command-line options: parsers of values, options from dataclass fields, and one-line errors and warnings."""

from __future__ import annotations

import argparse
import re
import sys
import warnings
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import MISSING, Field, field, fields
from pathlib import Path
from typing import Any, NoReturn

from .errors import InputError, InputWarning, one_line

SUFFIXES = {"": 0, "K": 10, "M": 20, "G": 30, "T": 40}
MAX_DIGITS = 32  # characters of a number
NUMBER = "[+-]?([0-9]+\\.?[0-9]*|\\.[0-9]+)([eE][+-]?[0-9]+)?|[+-]?(?i:nan|inf|infinity)"


class Parser(argparse.ArgumentParser):
    """Argument parser that reports a wrong option as an `InputError`: one line, once for all ranks, exit code 2."""

    _words: Sequence[str] = ()

    def parse_known_args(self, args: Any = None, namespace: Any = None) -> Any:
        """Parse all arguments: others than the known ones are errors, of the verb that has them."""
        self._words = sys.argv[1:] if args is None else list(args)
        parsed, extra = super().parse_known_args(args, namespace)
        if extra:
            self.error(f"unrecognized arguments: {' '.join(extra)}")
        return parsed, extra

    def error(self, message: str) -> NoReturn:
        """Raise `InputError` instead of printing on every rank; suggest known flags and verbs for unknown ones."""
        raise InputError("; ".join([message, *self._suggestions(), f"see {self.prog} --help"]))

    def _suggestions(self) -> list[str]:
        """Return a text for each unknown flag, or verb, that resembles a known one."""
        from difflib import get_close_matches  # takes some milliseconds to import

        flags, verbs = list(self._option_string_actions), list[str]()
        for action in self._actions:
            if isinstance(action, argparse._SubParsersAction):
                verbs = list(action.choices)
        used = [word.partition("=")[0] for word in self._words if word.startswith("--")]
        pairs = [(word, flags) for word in used if not any(known.startswith(word) for known in flags)]
        if verbs and self._words and self._words[0] not in verbs:
            pairs.insert(0, (self._words[0], verbs))
        found = [(word, match) for word, known in pairs for match in get_close_matches(word, known, 1)]
        return [f"{shown(word)}: did you mean {match}?" for word, match in found]


def path(text: str) -> Path:
    """Parse the name of a file or folder. An empty name (an unset shell variable) would mean the current folder."""
    if not text:
        raise argparse.ArgumentTypeError("the name is empty")
    return Path(text)


def whole_number(text: str) -> int:
    """Parse a whole number in ASCII digits; Python's `int` also accepts "1_0" and digits of any script."""
    if not re.fullmatch("[+-]?[0-9]+", text):
        raise argparse.ArgumentTypeError(f"{shown(text)!r} is not a whole number")
    if len(text) > MAX_DIGITS:
        raise argparse.ArgumentTypeError(f"{shown(text)!r} has more than {MAX_DIGITS} digits")
    return int(text)


def real_number(text: str) -> float:
    """Parse a number in ASCII digits. "nan" and "inf" are accepted; the caller checks the range."""
    if not re.fullmatch(NUMBER, text) or len(text) > MAX_DIGITS:
        raise argparse.ArgumentTypeError(f"{shown(text)!r} is not a number")
    return float(text)


def whole_numbers(text: str) -> tuple[int, ...]:
    """Parse whole numbers separated by commas."""
    return tuple(whole_number(part) for part in text.split(","))


def on_or_off(text: str) -> bool:
    """Parse ``on`` or ``off``."""
    if text not in ("on", "off"):
        raise argparse.ArgumentTypeError(f"{text!r}: expected on or off")
    return text == "on"


def mode(text: str) -> int | str:
    """Parse a mode: a number, or the name of a mode of a table."""
    return whole_number(text) if re.fullmatch("[+-]?[0-9]+", text) else text


def modes(text: str) -> tuple[int | str, ...]:
    """Parse modes separated by commas; see `mode`."""
    return tuple(map(mode, text.split(",")))


def real_numbers(text: str) -> tuple[float, ...]:
    """Parse numbers separated by commas."""
    return tuple(real_number(part) for part in text.split(","))


def byte_count(text: str) -> int:
    """Parse a number of bytes with an optional suffix K, M, G or T (powers of 1024)."""
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
    """Parse a positive number of seconds."""
    try:
        number = real_number(text)
    except argparse.ArgumentTypeError:
        number = 0.0
    if not 0 < number < float("inf"):
        raise argparse.ArgumentTypeError(f"{shown(text)!r} is not a number of seconds above 0")
    return number


def shown(text: str) -> str:
    """Return `text` for a message, shortened if it is long."""
    return text if len(text) <= 2 * MAX_DIGITS else f"{text[:MAX_DIGITS]}..."


@contextmanager
def plain_warnings(program: str) -> Iterator[None]:
    """Within the block, print an `InputWarning` as one line on standard error. Other warnings are unchanged."""
    with warnings.catch_warnings():
        warnings.simplefilter("always", InputWarning)
        default = warnings.showwarning

        def show(message: Warning | str, category: type[Warning], *details: Any) -> None:
            if issubclass(category, InputWarning):
                print(f"{program}: warning: {one_line(str(message))}", file=sys.stderr, flush=True)
            else:
                default(message, category, *details)

        warnings.showwarning = show  # type: ignore[assignment]
        yield


def flag(default: object, help: str, **options: object) -> Any:
    """Return a dataclass field that is also a command-line option.

    Parameters
    ----------
    default : object
        Default value: ``MISSING`` if the option is required, False for an option without a value.
    help : str
        Help text.
    **options
        Arguments of `argparse.ArgumentParser.add_argument`; also ``group``, as options of one group exclude each other,
        and ``name``, the name of the option if it is not that of the field.
    """
    return field(default=default, metadata={"help": help, **options})


def add_flags(parser: argparse._ActionsContainer, kind: type, leave_out: type = object) -> None:
    """Add the options of dataclass `kind` to a parser, required ones first, without those that `leave_out` has."""
    known, groups = getattr(leave_out, "__dataclass_fields__", {}), dict[str, argparse._MutuallyExclusiveGroup]()
    for option in sorted(fields(kind), key=lambda each: each.default is not MISSING):
        if option.metadata and option.name not in known:
            group = option.metadata.get("group")
            if group and group not in groups:
                groups[group] = parser.add_mutually_exclusive_group()
            _add_flag(groups[group] if group else parser, option)


def flag_name(option: Field[Any]) -> str:
    """Return the command-line name of a dataclass field."""
    return f"--{option.metadata.get('name', option.name).replace('_', '-')}"


def _add_flag(parser: argparse._ActionsContainer, option: Field[Any]) -> None:
    arguments: dict[str, Any] = {key: value for key, value in option.metadata.items() if key not in ("group", "name")}
    if option.default is False:
        arguments["action"] = "store_true"
    elif option.default is MISSING:
        arguments["required"] = True
    else:
        arguments["default"] = option.default
    parser.add_argument(flag_name(option), dest=option.name, **arguments)
