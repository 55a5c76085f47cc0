"""What the command lines have in common."""

from __future__ import annotations

import argparse
from pathlib import Path
from typing import NoReturn

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
