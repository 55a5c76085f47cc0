"""What ends a run, and with which exit code."""

from __future__ import annotations

from partitioner.errors import InputError

__all__ = ["EXIT_FAILURE", "EXIT_INPUT", "EXIT_STOPPED", "InputError"]

EXIT_FAILURE = 1  # something broke: a rank died or hung, or a defect
EXIT_INPUT = 2  # the input or the options are wrong; one line on standard error says how
EXIT_STOPPED = 75  # asked to stop by SIGUSR1: a checkpoint was written, start again with --resume
