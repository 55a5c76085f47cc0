"""The threads of a rank: they do all pieces, tell of what fails, and hold nothing afterwards."""

from __future__ import annotations

import gc
import threading
import time
import weakref

import numpy as np
import pytest

from amped.backend.cpu.threads import Threads


@pytest.mark.parametrize("count", [1, 2, 3])
@pytest.mark.parametrize("pieces", [1, 2, 3, 17])
def test_each_piece_is_done_once(count: int, pieces: int) -> None:
    threads, done = Threads(count), np.zeros(pieces, int)
    for _ in range(50):
        threads.each(pieces, lambda t: np.add.at(done, t, 1))
    assert np.array_equal(done, np.full(pieces, 50))


@pytest.mark.parametrize("failing", [0, 2])
def test_what_fails_is_raised_when_all_have_ended(failing: int) -> None:
    threads, ended = Threads(3), []

    def work(t: int) -> None:
        if t == failing:
            raise ValueError(f"piece {t}")
        time.sleep(0.05)
        ended.append(t)

    with pytest.raises(ValueError, match=f"piece {failing}"):
        threads.each(3, work)
    assert sorted(ended) == sorted({0, 1, 2} - {failing})
    threads.each(3, ended.append)  # and they go on
    assert len(ended) == 5


def test_threads_end_with_their_owner_and_hold_nothing() -> None:
    before = set(threading.enumerate())
    threads, array = Threads(3), np.zeros(5)
    mine, held = set(threading.enumerate()) - before, weakref.ref(array)

    def work(t: int, array: np.ndarray = array) -> None:
        array[t] = t

    threads.each(3, work)
    assert len(mine) == 2
    del work, array
    gc.collect()
    assert held() is None
    del threads
    gc.collect()
    for thread in mine:
        thread.join(20)
        assert not thread.is_alive()
