"""Work in threads."""

from __future__ import annotations

import threading
import weakref
from concurrent.futures import Future, ThreadPoolExecutor
from typing import Any

import numpy as np
import pytest

from partitioner.host.threads import in_order, parallel_map, submit


class Slow(ThreadPoolExecutor):
    """A pool whose threads hold on to what they were given."""

    def submit(self, work: Any, /, *args: Any, **named: Any) -> Future[Any]:
        self.given = work, args, named
        return super().submit(work, *args, **named)


def test_a_pool_holds_no_arguments_once_their_result_is_there() -> None:
    """The memory that they take is free then."""
    with Slow(1) as pool:
        array = np.ones(3)
        held = weakref.ref(array)
        found = submit(pool, np.sum, array)
        del array
        assert found.result() == 3
        assert held() is None


@pytest.mark.parametrize("threads", [1, 2, 3])
def test_results_come_in_order_and_few_wait(threads: int) -> None:
    lock, begun, taken, most = threading.Lock(), 0, 0, 0

    def work(item: int) -> int:
        nonlocal begun, most
        with lock:
            begun += 1
            most = max(most, begun - taken)
        return 2 * item

    found = []
    for result in in_order(work, range(50), threads):
        found.append(result)
        with lock:
            taken += 1
    assert found == list(range(0, 100, 2))
    assert most <= threads


def test_an_error_in_one_of_them_is_raised() -> None:
    with pytest.raises(ZeroDivisionError):
        list(in_order(lambda item: 1 // (3 - item), range(9), 2))


@pytest.mark.parametrize("threads", [1, 2, 3, 20])
def test_a_map_has_results_in_order(threads: int) -> None:
    assert parallel_map(lambda item: item**2, iter(range(9)), threads) == [item**2 for item in range(9)]
    assert parallel_map(len, [], threads) == []


@pytest.mark.parametrize("threads", [1, 2, 4])
@pytest.mark.parametrize("error", [ValueError, KeyboardInterrupt])
def test_a_map_ends_at_its_first_error(threads: int, error: type[BaseException]) -> None:
    """Whichever thread is the first; what nobody has begun is left out."""
    begun = list[int]()

    def work(item: int) -> None:
        begun.append(item)
        threading.Event().wait(0.01 if item < 4 else 0.002)
        if item in (3, 4):
            raise error(item)

    with pytest.raises(error, match="3"):
        parallel_map(work, range(100), threads)
    assert len(begun) < 20
