"""Convert text in other encodings to UTF-8, which DuckDB requires."""

from __future__ import annotations

import codecs
import io
import os
from collections.abc import Sequence
from os import PathLike
from os.path import join
from stat import S_ISREG
from typing import Any

from ...errors import InputError
from .database import ending

BOMS = {codecs.BOM_UTF32_LE: "utf-32", codecs.BOM_UTF16_LE: "utf-16", codecs.BOM_UTF16_BE: "utf-16"}
PIECE = 1 << 20
WESTERN, UTF8 = "cp1252", "utf-8"


def readable(paths: Sequence[str], folder: str, every: bool, known: str | None = None) -> tuple[list[str], list[str]]:
    """Return text files that DuckDB can read instead of `paths`, and those of `paths` read as Windows-1252.

    Parameters
    ----------
    paths : sequence of str
        The files.
    folder : str
        Folder for converted copies.
    every : bool
        Whether to check each file completely, since one of them is not UTF-8; otherwise only their first bytes.
    known : str, optional
        The encoding of all files.
    """
    files, western = [], []
    for number, path in enumerate(paths):
        encoding = known or (wide_encoding(path) if S_ISREG(os.stat(path).st_mode) else None)
        target = join(folder, f"{number}{(ending(path) or '.csv').removesuffix('.gz').removesuffix('.zst')}")
        copied = (
            encoding != UTF8 and (encoding is not None or every) and recode(path, encoding, target, known is not None)
        )
        files.append(target if copied else path)
        western += [path] if copied and encoding is None else []
    return files, western


def wide_encoding(path: str | PathLike[str]) -> str | None:
    """Return the encoding of a text with two or four bytes per character, detected by its first bytes, or None."""
    with _opened(path) as file:
        start = file.read(64)
    declared = next((name for bom, name in BOMS.items() if start.startswith(bom)), None)
    if declared or len(start) < 4:
        return declared
    even, odd = start[::2], start[1::2]
    if 2 * odd.count(0) > len(odd) and not even.count(0):
        return "utf-16-le"
    return "utf-16-be" if 2 * even.count(0) > len(even) and not odd.count(0) else None


def recode(path: str | PathLike[str], encoding: str | None, target: str | PathLike[str], known: bool = False) -> bool:
    """Convert a text file to UTF-8, from `encoding` or (None) from Windows-1252. Return whether it was not UTF-8.

    `known`: the encoding was not detected. Raise `InputError` if it mixes UTF-8 with another encoding.
    """
    with _opened(path) as source, open(target, "wb") as copy:
        if encoding is None:
            return _copy_western(source, copy)
        try:
            with io.TextIOWrapper(source, encoding, newline="") as text:
                while piece := text.read(PIECE):
                    copy.write(piece.encode())
        except UnicodeError as error:
            detected = "" if known else ", as its first bytes indicate"
            raise InputError(f"is not {encoding.upper()}{detected}: {error}") from None
    return True


def _copy_western(source: Any, copy: Any) -> bool:
    other = wrong = 0  # numbers of the first line with non-ASCII UTF-8, and of the first line that is not UTF-8
    for number, line in enumerate(source, 1):
        if not line.isascii():
            try:
                line.decode()
                other = other or number
            except UnicodeDecodeError:
                wrong = wrong or number
                line = _western(line).encode()
            if other and wrong:
                cause = f"is not UTF-8, but line {other} is: save it in one encoding"
                raise InputError(cause, line=wrong)
        copy.write(line)
    return wrong > 0


def _western(line: bytes) -> str:
    try:
        return line.decode(WESTERN)
    except UnicodeDecodeError:  # five byte values are undefined
        return line.decode("latin-1")


def _opened(path: str | PathLike[str]) -> Any:
    import pyarrow

    return io.BufferedReader(pyarrow.input_stream(path, compression="detect"))
