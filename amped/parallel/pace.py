"""How long a step of an iteration may take before its rank is taken to be hung: by what iterations have taken."""

from __future__ import annotations

import time
from collections.abc import Iterator
from itertools import count
from typing import TypeVar

import numpy as np

from .recorder import HERE

T = TypeVar("T")

# In the first iteration, that compiles too, so many times what an iteration is foreseen to take; then so many times
# what the longest one took.
FIRST_SECONDS, MANY = 120.0, 100
LEAST_SECONDS, SOME = 20.0, 5


def first_limit(expected: float) -> float:
    """Return the limit of the first iteration from what one is foreseen to take, in seconds."""
    return max(FIRST_SECONDS, MANY * expected)


def paced(steps: Iterator[T], done: int, first: float, deadline: float | None = None) -> Iterator[T]:
    """Yield from `steps`, which is an iteration each, and end a run that does not go on.

    Parameters
    ----------
    steps : iterator
    done : int
        Iterations before the first of them.
    first : float
        Seconds that a step from one collective to the next may take in the first iteration.
    deadline : float, optional
        Seconds that it may take in any.
    """
    limit, longest, begin = deadline or first, 0.0, time.perf_counter()
    for number in count(1):
        HERE.iteration = done + number
        with HERE.limited(limit), np.errstate(over="ignore", invalid="ignore"):  # what is not finite is found
            step = next(steps, None)
        if step is None:
            return
        yield step
        now = time.perf_counter()
        longest = max(longest, now - begin) if number > 2 else now - begin  # the first one has compiled, too
        limit = deadline or max(LEAST_SECONDS, SOME * longest)
        begin = now
