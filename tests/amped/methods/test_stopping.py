"""The default limits of CP-ALS distinguish a swamp from an optimum."""

from __future__ import annotations

import math
from collections.abc import Callable

import numpy as np
import pytest

from amped.methods.stopping import (
    MAX_ITERS,
    MOST_ITERS,
    SETTLED,
    TOLERANCE,
    RunLimits,
    expected_gain,
    expected_iterations,
    limits_of,
)


def end(fit: Callable[[int], float], most: int = 500) -> int:
    """Return the iteration after which a run with these fits ends."""
    fits = list[float]()
    for number in range(1, most + 1):
        fits.append(fit(number))
        if expected_gain(fits) < TOLERANCE:
            return number
    return most


def test_an_optimum_ends_a_run() -> None:
    assert 20 <= end(lambda k: 0.8 - 0.5**k) <= 40
    assert end(lambda k: 0.8 - 1 / k**3) < 100


def test_a_perfect_fit_ends_a_run_at_once() -> None:
    assert end(lambda k: 1 - 1e-6) == 1
    assert end(lambda k: 1 - 4.0**-k) == 9


def test_a_swamp_does_not() -> None:
    """Changes below 1e-5 for more than 20 iterations, then a rise."""

    def fit(k: int) -> float:
        return 0.6 - 0.2 * 0.5**k + 0.3 / (1 + math.exp(-(k - 60) / 4))

    changes = np.abs(np.diff([fit(k) for k in range(1, 60)]))
    assert np.flatnonzero(changes < 1e-5).size > 5  # the usual test would end the run
    assert fit(end(fit)) > 0.89


def test_rounding_errors_end_a_run() -> None:
    rng = np.random.default_rng(0)
    noise = 1e-10 * rng.random(500)
    assert end(lambda k: 0.7 + float(noise[k - 1])) <= 30


@pytest.mark.parametrize(
    ("given", "numbers", "limits"),
    [
        ((None, None), 1000, RunLimits(MOST_ITERS, TOLERANCE, True)),
        ((None, None), 10**10, RunLimits(MAX_ITERS, TOLERANCE, True)),  # expensive iterations
        ((None, None), 1 << 25, RunLimits(128, TOLERANCE, True)),
        ((None, None), 0, RunLimits(MAX_ITERS, TOLERANCE)),
        ((7, None), 1000, RunLimits(7, TOLERANCE)),
        ((None, 0.0), 1000, RunLimits(MAX_ITERS, 0.0)),
        ((7, 0.1), 1000, RunLimits(7, 0.1)),
    ],
)
def test_limits(given: tuple[int | None, float | None], numbers: int, limits: RunLimits) -> None:
    assert limits_of(*given, numbers) == limits


def test_a_tolerance_ends_most_runs_early() -> None:
    assert expected_iterations(50, 1e-5) == expected_iterations(50, 0.0) == 50
    assert expected_iterations(1000, 1e-5) == expected_iterations(1000, None) == SETTLED
    assert expected_iterations(1000, 0.0) == 1000
    assert expected_iterations(10_000, 1e-5) == 1000
