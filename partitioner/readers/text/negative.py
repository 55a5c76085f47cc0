"""Find the line of a text that holds a negative value, to name it in a message."""

from __future__ import annotations

import gzip
import os
from contextlib import suppress

GZIP = b"\x1f\x8b"
COMMENTS = b"#%"


def first_negative(path: str | os.PathLike[str]) -> int | None:
    """Return the number of the first line, from 1, whose last number is below 0; None if there is none."""
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
