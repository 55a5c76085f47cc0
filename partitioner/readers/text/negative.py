"""Find the line of a text file that holds a negative value, for error messages."""

from __future__ import annotations

import gzip
import os
from contextlib import suppress

GZIP = b"\x1f\x8b"
COMMENTS = b"#%"


def first_negative(path: str | os.PathLike[str]) -> int | None:
    """Return the number, from 1, of the first line whose last number is negative, or None."""
    with open(path, "rb") as file:
        packed = file.peek(2).startswith(GZIP)
    with suppress(OSError, EOFError), gzip.open(path) if packed else open(path, "rb") as lines:
        for number, line in enumerate(lines, 1):
            fields = line.split()
            if fields and fields[0][0] not in COMMENTS and fields[-1].startswith(b"-"):
                with suppress(ValueError):
                    if float(fields[-1]) < 0:
                        return number
    return None
