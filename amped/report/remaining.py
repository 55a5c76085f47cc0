"""The time left of a run, once it can be estimated to within a factor of two."""

from __future__ import annotations

import math
import time
from collections import deque
from collections.abc import Callable
from itertools import pairwise

RECENT = 6  # iterations of an estimate, and the number of estimates that must agree
FACTOR = 2.0  # maximum ratio of these estimates
LEAST = 1.0  # seconds


class Remaining:
    """Estimates the time left of a run from its recent iterations.

    A run ends when its *gap*, the number that is compared with the tolerance, falls below it, or at the maximum number
    of iterations. The gap is assumed to shrink as in recent iterations. An estimate is returned once all recent
    estimates of the end agree.
    """

    def __init__(self, clock: Callable[[], float] = time.perf_counter) -> None:
        self._clock, self._number = clock, 0
        self._clear()

    def _clear(self) -> None:
        self._times, self._gaps = deque[float](maxlen=RECENT), deque[float](maxlen=RECENT)
        self._ends = deque[float](maxlen=RECENT)

    def seconds(self, number: int, of: int, gap: float | None, tol: float) -> float | None:
        """Return the estimated seconds left after an iteration; None while unknown, or below `LEAST`."""
        now = self._clock()
        if number != self._number + 1:  # another start, or a resumed run
            self._clear()
        self._number = number
        self._times.append(now)
        self._gaps.append(abs(gap) if gap is not None else math.nan)
        if len(self._times) < RECENT:
            return None
        times = list(self._times)
        each = sorted(b - a for a, b in pairwise(times))[RECENT // 2 - 1]  # the median of an odd number
        self._ends.append(now + each * self._iterations(of - number, tol))
        left = [end - now for end in self._ends]
        agree = len(left) == RECENT and max(left) <= FACTOR * left[-1] and left[-1] <= FACTOR * min(left)
        return left[-1] if agree and left[-1] >= LEAST else None

    def _iterations(self, most: int, tol: float) -> float:
        """Return the estimated number of iterations left, at most `most`."""
        first, last = self._gaps[0], self._gaps[-1]
        if not (tol > 0 and first > last > tol):
            return most
        return min(most, math.log(tol / last) / math.log(last / first) * (RECENT - 1))
