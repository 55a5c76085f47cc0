"""Run work in threads on the cores that this process may use."""

from __future__ import annotations

import os
from collections import deque
from collections.abc import Callable, Iterable, Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import contextmanager
from threading import Condition
from typing import Any, TypeVar

from .ranks import Ranks

T = TypeVar("T")
R = TypeVar("R")


def usable_cores() -> int:
    """Return the number of cores that this process may use: the least of its affinity and its cgroup's limit."""
    return min(len(_own_cores()), _group_cores())


def fair_threads(ranks: Ranks) -> int:
    """Return how many threads this rank may run: its cores over the number of ranks on the node with the same ones.

    ``OMP_NUM_THREADS`` can lower it. Collective.
    """
    mine = os.uname().nodename, _own_cores()
    share = max(1, usable_cores() // ranks.allgather(mine).count(mine))
    wish = os.environ.get("OMP_NUM_THREADS", "").split(",")[0]
    return min(share, int(wish)) if wish.isdigit() and int(wish) else share


def lone_threads(ranks: Ranks) -> int:
    """Return how many threads a rank may run while the others wait for it, each on a core of its own. Collective."""
    fair = fair_threads(ranks)
    return fair if os.environ.get("OMP_NUM_THREADS") else max(fair, usable_cores() - ranks.size + 1)


def _own_cores() -> frozenset[int]:
    if hasattr(os, "sched_getaffinity"):
        return frozenset(os.sched_getaffinity(0))
    return frozenset(range(os.cpu_count() or 1))


def _group_cores() -> int:
    """Return the whole cores that the cgroup grants, or a large number if it sets no limit."""
    try:
        with open("/sys/fs/cgroup/cpu.max") as file:
            quota, period = file.read().split()
        return max(1, int(quota) // int(period))
    except (OSError, ValueError):
        return 1 << 16


def side_by_side(work: Callable[[T], R], items: Iterable[T], threads: int) -> list[R]:
    """Run `work`, which should release the GIL, on every item in threads; return the results in item order."""
    if threads == 1:
        return [work(item) for item in items]
    with ThreadPoolExecutor(threads) as pool:
        return list(pool.map(work, items))


def in_order(work: Callable[[T], R], items: Iterable[T], threads: int) -> Iterator[R]:
    """Yield what `side_by_side` returns, one after the other: at most `threads` results wait to be taken."""
    if threads == 1:
        yield from map(work, items)
        return
    coming = deque[Future[R]]()
    with ThreadPoolExecutor(threads) as pool:
        for item in items:
            coming.append(pool.submit(work, item))
            if len(coming) == threads:
                yield coming.popleft().result()
        while coming:
            yield coming.popleft().result()


def submit(pool: ThreadPoolExecutor, work: Callable[..., R], *args: Any) -> Future[R]:
    """Begin some work in a pool. Once its result is there, the pool no longer holds the arguments.

    By itself it may hold them a moment longer: memory that they take would not be free when it is needed next.
    """
    return pool.submit(_let_go, work, [args])


def _let_go(work: Callable[..., R], held: list[tuple[Any, ...]]) -> R:
    return work(*held.pop())


class Turns:
    """Tickets by which threads do one part of their work in order."""

    def __init__(self) -> None:
        self._changed = Condition()
        self._drawn = self._now = 0
        self._given_up = False

    def draw(self) -> int:
        """Return the next number; call it from one thread at a time. Whoever draws a number must take its turn."""
        self._drawn += 1
        return self._drawn - 1

    @contextmanager
    def turn(self, number: int) -> Iterator[None]:
        """Wait until all lower numbers have had their turn."""
        with self._changed:
            self._changed.wait_for(lambda: self._now == number or self._given_up)
        if self._given_up:
            raise _GivenUpError
        yield
        with self._changed:
            self._now += 1
            self._changed.notify_all()

    @contextmanager
    def shared(self) -> Iterator[None]:
        """If one thread fails, end the others, which would wait for its turn for ever."""
        try:
            yield
        except _GivenUpError:
            pass
        except BaseException:
            with self._changed:
                self._given_up = True
                self._changed.notify_all()
            raise


class _GivenUpError(Exception):
    pass
