"""Limits of iterations."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from amped.parallel import progress, step_timeout
from amped.parallel.progress import COMPILING_SECONDS, CURRENT
from amped.parallel.step_timeout import FACTOR, FIRST_SECONDS, LEAST_SECONDS, first_limit, paced
from partitioner.host.stages import STAGES


def test_the_first_limit_leaves_time_to_compile_and_for_a_slow_machine() -> None:
    assert first_limit(0.0) == FIRST_SECONDS
    assert first_limit(30.0) == FIRST_SECONDS + 30


@pytest.mark.parametrize("deadline", [None, 7.0])
def test_later_limits_follow_from_what_iterations_took(monkeypatch: pytest.MonkeyPatch, deadline: float | None) -> None:
    now, limits = [0.0], []
    monkeypatch.setattr(step_timeout.time, "perf_counter", lambda: now[0])
    limited = CURRENT.limited

    def note(seconds: float) -> object:
        limits.append(seconds)
        return limited(seconds)

    monkeypatch.setattr(CURRENT, "limited", note)

    def steps() -> Iterator[int]:
        for k, seconds in enumerate((50.0, 10.0, 2.0)):  # the first one compiles
            now[0] += seconds
            yield k

    assert list(paced(steps(), 0, 100.0, deadline)) == [0, 1, 2]
    assert limits == ([7.0] * 4 if deadline else [100.0, FACTOR * 50.0, FACTOR * 10.0, FACTOR * 10.0])
    assert LEAST_SECONDS < FACTOR * 10.0


def test_compiling_does_not_count_against_the_limit(monkeypatch: pytest.MonkeyPatch) -> None:
    now, late = [0.0], []
    monkeypatch.setattr(CURRENT, "_since", CURRENT._since)  # restored, as other tests measure with the real clock
    monkeypatch.setattr(progress.time, "monotonic", lambda: now[0])

    def passes(seconds: float) -> None:
        now[0] += seconds
        late.append(any(CURRENT.overdue()))

    def steps() -> Iterator[int]:
        with STAGES.of("compile"):
            passes(COMPILING_SECONDS)
        passes(6.0)
        yield 0
        with STAGES.of("compile"):
            passes(COMPILING_SECONDS + 8.0)
        yield 1

    assert list(paced(steps(), 0, 100.0, deadline=7.0)) == [0, 1]
    assert late == [False, False, True]  # a compilation that never ends counts after a while
