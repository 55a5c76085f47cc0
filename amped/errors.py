"""Errors that end a run, and exit codes."""

from __future__ import annotations

from partitioner.errors import (
    EXIT_FAILURE,
    EXIT_INCOMPLETE,
    EXIT_INPUT,
    EXIT_UNREAD,
    InputError,
    InputWarning,
    OutputError,
    UnreadError,
    warn,
)
from partitioner.host.signals import EXIT_INTERRUPTED, EXIT_STOPPED

__all__ = [
    "EXIT_FAILURE", "EXIT_INCOMPLETE", "EXIT_INPUT", "EXIT_INTERRUPTED", "EXIT_STOPPED", "EXIT_UNREAD",
    "InputError", "InputWarning", "OutputError", "UnreadError", "warn",
]  # fmt: skip
