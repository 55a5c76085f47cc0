"""Time limits of iterations, derived from earlier ones; a rank that exceeds the limit counts as hung."""

from __future__ import annotations

import time
from collections.abc import Iterator
from itertools import count
from typing import TypeVar

import numpy as np

from partitioner.host.stages import STAGES

from .progress import CURRENT

T = TypeVar("T")

# The first iteration also compiles; its limit allows for a very slow machine. Later limits are FACTOR x the longest.
FIRST_SECONDS = 120.0
LEAST_SECONDS, FACTOR = 20.0, 5


def first_limit(slowest: float) -> float:
    """Return the limit of the first iteration in seconds; `slowest` is an upper bound of its compute time."""
    return FIRST_SECONDS + slowest


def paced(steps: Iterator[T], done: int, first: float, deadline: float | None = None) -> Iterator[T]:
    """Yield from `steps`, one iteration each, and set the watchdog's limit for every iteration.

    Limits apply to the seconds between collectives: `first` in the first iteration, then a multiple of the longest
    iteration so far; or `deadline`, if given. Time to compile does not count. `done` counts earlier iterations.
    """
    limit, longest, begin = deadline or first, 0.0, time.perf_counter()
    for number in count(1):
        CURRENT.iteration = done + number
        with (
            CURRENT.limited(limit),
            STAGES.observed(CURRENT.stage),
            np.errstate(over="ignore", invalid="ignore"),  # CP-ALS checks finiteness
        ):
            step = next(steps, None)
        if step is None:
            return
        yield step
        now = time.perf_counter()
        longest = max(longest, now - begin) if number > 2 else now - begin  # the first one compiles
        limit = deadline or max(LEAST_SECONDS, FACTOR * longest)
        begin = now
