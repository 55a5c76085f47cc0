"""Less noise from libraries that amped uses internally."""

from __future__ import annotations

import logging
import os
from collections.abc import Iterator
from contextlib import contextmanager

COLOURLESS = "NUMBA_DISABLE_ERROR_MESSAGE_HIGHLIGHTING"


def quieten(name: str) -> None:
    """Restrict a library's logger to warnings, unless the program has set its level.

    Details would drown the messages of a program that logs.
    """
    logger = logging.getLogger(name)
    if logger.level == logging.NOTSET:
        logger.setLevel(logging.WARNING)


@contextmanager
def without_colours() -> Iterator[None]:
    """Keep Numba, if it is first imported within the block, from colouring its error messages.

    Otherwise its import starts colorama, where that is installed, which writes to standard output when a process ends.
    """
    before = os.environ.get(COLOURLESS)
    os.environ[COLOURLESS] = before or "1"
    try:
        yield
    finally:
        if before is None:
            del os.environ[COLOURLESS]
