"""Loggers of libraries that amped uses internally: their details would drown the messages of a program that logs."""

from __future__ import annotations

import logging


def quieten(name: str) -> None:
    """Restrict a library's logger to warnings, unless the program has set its level."""
    logger = logging.getLogger(name)
    if logger.level == logging.NOTSET:
        logger.setLevel(logging.WARNING)
