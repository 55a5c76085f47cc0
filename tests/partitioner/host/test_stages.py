"""Stages share the elapsed time."""

from __future__ import annotations

import sys
import threading
from collections.abc import Iterator

import pytest

from partitioner.host import stages
from partitioner.host.stages import Stages


@pytest.fixture
def now(monkeypatch: pytest.MonkeyPatch) -> list[float]:
    """Return a clock, whose first number is the time."""
    clock = [100.0]
    monkeypatch.setattr(stages.time, "perf_counter", lambda: clock[0])
    return clock


def test_a_second_counts_for_the_innermost_stage(now: list[float]) -> None:
    mine = Stages()
    for _ in range(2):
        with mine.of("read"):
            now[0] += 1
            with mine.of("sort"):
                now[0] += 2
                with mine.of("compile"):
                    now[0] += 4
                now[0] += 8
            with mine.of("compile"):
                now[0] += 16
            now[0] += 32
    now[0] += 64
    assert mine.collect() == {"compile": 2 * 20, "sort": 2 * 10, "read": 2 * 33}
    assert mine.collect() == {}


def test_what_fails_counts_too(now: list[float]) -> None:
    mine = Stages()

    def work() -> None:
        with mine.of("read"), mine.of("sort"):
            now[0] += 1
            raise ValueError("wrong")

    with pytest.raises(ValueError, match="wrong"):
        work()
    with mine.of("sort"):
        now[0] += 1
    assert mine.collect() == {"sort": 2, "read": 0}


def test_other_threads_have_their_own(now: list[float]) -> None:
    mine, theirs = Stages(), list[dict[str, float]]()

    def work() -> None:
        with mine.of("sort"):
            now[0] += 1
        theirs.append(mine.collect())

    with mine.of("read"):
        thread = threading.Thread(target=work)
        thread.start()
        thread.join()
    assert theirs == [{"sort": 1}]
    assert mine.collect() == {"read": 1}


def test_items_that_take_time_to_come(now: list[float]) -> None:
    mine = Stages()

    def items() -> Iterator[list[int]]:
        for k in range(3):
            now[0] += 1
            yield [k]
        now[0] += 10

    for item in mine.over("read", items()):
        own = item
        assert sys.getrefcount(own) <= sys.getrefcount([]) + 2, "nobody else keeps it"
        now[0] += 100
    assert mine.collect() == {"read": 13}
