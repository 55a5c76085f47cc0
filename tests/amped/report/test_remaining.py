"""The remaining time is reported once it is known to within a factor of two."""

from __future__ import annotations

from collections.abc import Sequence

import pytest

from amped.report.remaining import RECENT, Remaining


def estimates(seconds: Sequence[float], of: int, gaps: Sequence[float | None], tol: float) -> list[float | None]:
    """Return the reported time after each of these iterations."""
    now = [0.0]
    remaining, reported = Remaining(lambda: now[0]), list[float | None]()
    for number, (each, gap) in enumerate(zip(seconds, gaps, strict=True), 1):
        now[0] += each
        reported.append(remaining.seconds(number, of, gap, tol))
    return reported


def test_equal_iterations_to_the_end() -> None:
    reported = estimates([1.0] * 40, 100, [None] * 40, 0.0)
    assert reported[: 2 * RECENT - 2] == [None] * (2 * RECENT - 2)
    assert reported[2 * RECENT - 2] == pytest.approx(100 - (2 * RECENT - 1))
    assert reported[-1] == pytest.approx(60)


def test_iterations_that_compile_are_not_counted() -> None:
    reported = estimates([60.0, 30.0, *[0.2] * 30], 100, [None] * 32, 0.0)
    assert all(each is None or each < 2 * 0.2 * 100 for each in reported)
    assert reported[-1] == pytest.approx(0.2 * 68)


def test_a_run_that_converges_ends_early() -> None:
    gaps = [0.5 * 0.5**k for k in range(14)]
    reported = estimates([2.0] * 14, 1000, gaps, 1e-5)
    assert reported[-1] is not None
    assert reported[-1] <= 2.0 * 4


def test_gaps_that_vary_tell_nothing() -> None:
    gaps = [10.0 ** -(2 + 2 * (k % 2)) * 0.9**k for k in range(20)]
    reported = estimates([1.0] * 20, 10_000, gaps, 1e-8)
    assert None in reported[RECENT:]


def test_little_is_not_told() -> None:
    assert estimates([1e-3] * 50, 100, [None] * 50, 0.0) == [None] * 50


def test_another_start_begins_anew() -> None:
    now = [0.0]
    remaining = Remaining(lambda: now[0])
    for number in [*range(1, 20), 1, 2, 3]:
        now[0] += 1.0
        last = remaining.seconds(number, 100, None, 0.0)
    assert last is None
