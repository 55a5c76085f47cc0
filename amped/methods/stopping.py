"""The default limits of CP-ALS: how many iterations, and when the fit has nothing more to gain.

In a swamp the fit changes by less than any usual tolerance per iteration, for many iterations, and then rises again. At
an optimum the changes of many iterations together are small, and shrink.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import NamedTuple

MAX_ITERS, TOLERANCE = 50, 1e-5  # the tolerance is that of a single change if the caller sets one of both
MOST_ITERS, BUDGET = 500, 1 << 32  # iterations by default, and nonzeros times components times modes in all of them
SETTLED = 200  # iterations in which most runs with a tolerance end
WINDOW = 14  # iterations whose gain is judged
NOISE = 1e-8  # gain of a window that may be rounding error
PERFECT = 1e-5  # distance from a fit of 1 that no longer matters


class RunLimits(NamedTuple):
    """When a run ends."""

    max_iters: int
    tol: float
    forecast: bool = False  # whether `tol` limits the `expected_gain` instead of the last change


def limits_of(max_iters: int | None, tol: float | None, numbers: int = 0) -> RunLimits:
    """Return the limits of a run, of which the caller may have set some.

    Parameters
    ----------
    max_iters, tol : int and float, optional
    numbers : int
        Nonzeros, or elements, times components times modes: the work of an iteration. 0 if the gain of the method
        cannot be forecast.
    """
    if numbers and max_iters is None and tol is None:
        return RunLimits(max(MAX_ITERS, min(MOST_ITERS, BUDGET // numbers)), TOLERANCE, True)
    return RunLimits(MAX_ITERS if max_iters is None else max_iters, TOLERANCE if tol is None else tol)


def expected_iterations(max_iters: int, tol: float | None) -> int:
    """Return how many iterations to expect of a run with these limits; `tol` None is the default.

    Most runs with a tolerance need far fewer than the largest number.
    """
    return max_iters if tol == 0 else min(max_iters, max(SETTLED, max_iters // 10))


def expected_gain(fits: Sequence[float]) -> float:
    """Return how much the fit rose in the last `WINDOW` iterations, or will rise if that is more.

    If its second half gained q times as much as the first, halves to come gain ``q / (1 - q)`` times as much as the
    second one. With less than a window of fits, the result is infinite.
    """
    if fits and 1 - fits[-1] < PERFECT:
        return 0.0
    if len(fits) <= WINDOW:
        return math.inf
    begin, middle, end = fits[-1 - WINDOW], fits[-1 - WINDOW // 2], fits[-1]
    first, second = middle - begin, end - middle
    if first + second < NOISE:
        return 0.0
    to_come = second * second / (first - second) if second < first else math.inf
    return max(first + second, min(1 - end, to_come))
