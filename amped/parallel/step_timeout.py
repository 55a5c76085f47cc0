"""Time limit of a step of an iteration, from past iterations; a rank that exceeds it counts as hung."""

from __future__ import annotations

import time
from collections.abc import Iterator
from itertools import count
from typing import TypeVar

import numpy as np

from .progress import CURRENT

T = TypeVar("T")

# First iteration, which also compiles: what a very slow machine would take. Later: SOME x the longest so far.
FIRST_SECONDS = 120.0
LEAST_SECONDS, SOME = 20.0, 5


def first_limit(slowest: float) -> float:
    """Return the limit of the first iteration, from the seconds that it takes at the very most."""
    return FIRST_SECONDS + slowest


def paced(steps: Iterator[T], done: int, first: float, deadline: float | None = None) -> Iterator[T]:
    """Yield from `steps`, one iteration each after those `done` before, and set the watchdog's limit for each.

    Limits are in seconds, from one collective to the next: `first` in the first iteration, then by what they have
    taken; `deadline`, if given, in all of them.
    """
    limit, longest, begin = deadline or first, 0.0, time.perf_counter()
    for number in count(1):
        CURRENT.iteration = done + number
        with CURRENT.limited(limit), np.errstate(over="ignore", invalid="ignore"):  # CP-ALS checks finiteness itself
            step = next(steps, None)
        if step is None:
            return
        yield step
        now = time.perf_counter()
        longest = max(longest, now - begin) if number > 2 else now - begin  # without the first, which compiles
        limit = deadline or max(LEAST_SECONDS, SOME * longest)
        begin = now
