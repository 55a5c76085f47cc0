"""Log records of runs, for programs that configure Python's logging: the logger is ``amped``."""

from __future__ import annotations

import logging

LOGGER = logging.getLogger("amped")
LOGGER.addHandler(logging.NullHandler())  # as libraries should


def enabled() -> bool:
    """Return whether stages and iterations are logged on this rank."""
    return LOGGER.isEnabledFor(logging.INFO)


def info(text: str) -> None:
    """Log each line of a text."""
    for line in text.splitlines():
        LOGGER.info("%s", line)
