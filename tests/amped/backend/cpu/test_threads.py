"""The threads of a rank: they run a compiled call together, report failures, and end with their owner."""

from __future__ import annotations

import gc
import os
import subprocess
import sys
import threading

import numba
import numpy as np
import pytest

from amped.backend.cpu.simd.thread_team import ASLEEP, WORDS, X86, add, fork, join, load
from amped.backend.cpu.threads import Threads, _living, check

DROPPED = """
from amped.backend.cpu.threads import Threads
from partitioner.host import jit
with jit._dispatcher_lock:
    threads = Threads(3)
    del threads
print("dropped", flush=True)
"""
SLEEPERS = """
import time
from amped.backend.cpu.threads import Threads
threads = [Threads(3), Threads(2)]
time.sleep({})
"""


@numba.njit(nogil=True, no_cfunc_wrapper=True)
def shared_out(number, team, threads, turn, done, wait):  # type: ignore[no-untyped-def]
    """Write to each place who was there; every thread waits until `wait` have come."""
    if number == 0:
        turn[:] = 0
    called = fork(team, number, threads)
    add(turn, 1, 1)
    while load(turn, 1) < wait:
        pass
    k = add(turn, 0, 1)
    while k < done.size:
        done[k] = 10 * done[k] + number + 1
        k = add(turn, 0, 1)
    return join(team, called)


@numba.njit(nogil=True, no_cfunc_wrapper=True)
def failing(number, team, threads, turn):  # type: ignore[no-untyped-def]
    """Fail in all threads but the calling one, which waits until they have come."""
    called = fork(team, number, threads)
    add(turn, 0, 1)
    while load(turn, 0) < threads:
        pass
    if number:
        raise ValueError
    return join(team, called)


@numba.njit(nogil=True, no_cfunc_wrapper=True)
def halved(number, team, threads, turn, numbers):  # type: ignore[no-untyped-def]
    """Halve numbers, each in another thread; all wait until all have come."""
    if number == 0:
        turn[0] = 0
    called = fork(team, number, threads)
    add(turn, 0, 1)
    while load(turn, 0) < threads:
        pass
    numbers[number] /= 2
    return join(team, called)


@pytest.mark.skipif(not X86, reason="only x86 code sets the flush-to-zero mode")
def test_subnormal_numbers_are_zero_in_calls_only() -> None:
    threads, turn, tiny = Threads(3), np.zeros(1, np.int64), float(np.finfo(np.float64).tiny)
    for _ in range(3):
        results, operands = np.full(3, tiny), np.full(3, tiny / 4)
        for numbers in (results, operands):
            check(halved(0, threads.team, 3, turn, numbers))
            np.testing.assert_array_equal(numbers, 0)
        assert np.all(np.full(3, tiny) / 2 > 0), "all else has them"


@pytest.mark.parametrize("spare", [True, False], ids=["spinning", "asleep"])
@pytest.mark.parametrize("count", [1, 2, 5])
def test_all_threads_come_if_they_have_time(count: int, spare: bool) -> None:
    threads, turn = Threads(count, spare), np.zeros(2, np.int64)
    for most in (1, 2, 5):
        for _ in range(4):
            done, size = np.zeros(1000, np.int64), min(most, count)
            assert shared_out(0, threads.team, size, turn, done, size) == 0
            assert done.min() > 0
            assert done.max() <= size  # each place once, by a thread of the call
            assert turn[1] == size


def test_a_call_within_another_one_is_computed_alone() -> None:
    threads, results, turn = Threads(3), list[int](), np.zeros(2, np.int64)

    def other() -> None:
        done = np.zeros(100, np.int64)
        shared_out(0, threads.team, 3, np.zeros(2, np.int64), done, 1)
        results.append(int(done.min()))

    def hold() -> None:
        shared_out(0, threads.team, 3, turn, np.zeros(10, np.int64), 4)

    holder = threading.Thread(target=hold)
    holder.start()
    while turn[1] < 3:  # all three have come, and wait for one more
        pass
    other()
    turn[1] += 1
    holder.join(60)
    assert results == [1]


def test_what_fails_is_told_when_all_have_ended() -> None:
    threads, turn = Threads(3), np.zeros(2, np.int64)
    faults = failing(0, threads.team, 3, turn)
    with pytest.raises(RuntimeError, match="2 threads failed"):
        check(faults)
    assert shared_out(0, threads.team, 3, turn, np.zeros(10, np.int64), 3) == 0  # and they go on


def test_threads_end_with_their_owner() -> None:
    threads = Threads(3)
    team = threads.team
    mine = _living[id(team)][1]
    assert len(mine) == 2
    assert all(thread.is_alive() for thread in mine)
    assert team.size == ASLEEP + 3 * WORDS
    del threads
    gc.collect()
    for thread in mine:
        thread.join(60)
    assert not any(thread.is_alive() for thread in mine)


def test_an_owner_may_be_dropped_while_code_is_compiled() -> None:
    """As the garbage collector does: its threads may wait for the compiler's lock, which this thread holds."""
    ended = subprocess.run([sys.executable, "-c", DROPPED], capture_output=True, timeout=300)
    assert (ended.returncode, ended.stdout, ended.stderr) == (0, b"dropped\n", b"")


@pytest.mark.parametrize("seconds", [0, 0.5], ids=["spinning", "asleep"])
def test_a_process_ends_beside_its_threads(seconds: float) -> None:
    ended = subprocess.run([sys.executable, "-c", SLEEPERS.format(seconds)], capture_output=True, timeout=300)
    assert (ended.returncode, ended.stderr) == (0, b"")


@pytest.mark.filterwarnings("ignore:.*fork:DeprecationWarning")
def test_a_forked_process_has_no_threads_and_works_alone() -> None:
    threads, turn, done = Threads(3), np.zeros(2, np.int64), np.zeros(100, np.int64)
    shared_out(0, threads.team, 3, turn, done, 3)
    child = os.fork()
    if child == 0:
        shared_out(0, threads.team, 3, turn, done := np.zeros(100, np.int64), 1)
        os._exit(int(done.min() != 1 or done.max() != 1))
    assert os.waitpid(child, 0)[1] == 0
    assert shared_out(0, threads.team, 3, turn, done, 3) == 0
