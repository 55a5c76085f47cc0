"""Run work in threads on the cores available to this process."""

from __future__ import annotations

import os
from collections import deque
from collections.abc import Callable, Iterable, Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import contextmanager
from threading import Condition
from typing import TypeVar

from .ranks import Ranks

T = TypeVar("T")
R = TypeVar("R")


def usable_cores() -> int:
    """Return the number of cores available to this process: the minimum of its affinity and its cgroup's limit."""
    return min(len(_affinity_cores()), _cgroup_cores())


def threads_for(items: int) -> int:
    """Return the number of threads for independent pieces of work: at most one per usable core."""
    return 1 if items < 2 else min(usable_cores(), items)  # counting cores reads a file


def fair_threads(ranks: Ranks) -> int:
    """Return this rank's number of threads: its cores divided by the ranks of the node that share them.

    ``OMP_NUM_THREADS`` can lower it. Collective.
    """
    share = max(1, usable_cores() // ranks_on_cores(ranks))
    limit = os.environ.get("OMP_NUM_THREADS", "").split(",")[0]
    return min(share, int(limit)) if limit.isdigit() and int(limit) else share


def ranks_on_cores(ranks: Ranks) -> int:
    """Return the number of ranks of the node that share this rank's cores. Collective."""
    mine = os.uname().nodename, _affinity_cores()
    return ranks.allgather(mine).count(mine)


def lone_threads(ranks: Ranks) -> int:
    """Return the number of threads of a rank while the others wait for it, each occupying a core. Collective."""
    fair = fair_threads(ranks)
    return fair if os.environ.get("OMP_NUM_THREADS") else max(fair, usable_cores() - ranks.size + 1)


def _affinity_cores() -> frozenset[int]:
    if hasattr(os, "sched_getaffinity"):
        return frozenset(os.sched_getaffinity(0))
    return frozenset(range(os.cpu_count() or 1))


def _cgroup_cores() -> int:
    """Return the number of whole cores that the cgroup allows, or a large number without a limit."""
    try:
        with open("/sys/fs/cgroup/cpu.max") as file:
            quota, period = file.read().split()
        return max(1, int(quota) // int(period))
    except (OSError, ValueError):
        return 1 << 16


def parallel_map(work: Callable[[T], R], items: Iterable[T], threads: int) -> list[R]:
    """Run `work`, which should release the GIL, on every item; return the results in item order.

    The calling thread is one of the threads, because starting another one takes as long as small pieces of work. If
    calls fail, the error of the first item among them is raised when all calls that have begun are done.
    """
    if threads == 1:
        return [work(item) for item in items]
    given, results, errors = list(items), dict[int, R](), dict[int, BaseException]()
    numbers = iter(range(len(given)))  # each number goes to one thread, because the interpreter's lock is held

    def take() -> None:
        for number in numbers:
            try:
                results[number] = work(given[number])
            except BaseException as error:  # items that nobody has begun are left out
                errors[number] = error
                deque(numbers, maxlen=0)

    with ThreadPoolExecutor(threads - 1) as pool:
        for _ in range(min(threads, len(given)) - 1):
            pool.submit(take)
        try:
            take()
        finally:  # also if the calling thread is interrupted between two items
            deque(numbers, maxlen=0)
    if errors:
        raise errors[min(errors)]
    return [results[number] for number in range(len(given))]


def in_order(work: Callable[[T], R], items: Iterable[T], threads: int) -> Iterator[R]:
    """Yield the results of `parallel_map` one by one; at most `threads` results are computed in advance."""
    if threads == 1:
        yield from map(work, items)
        return
    futures = deque[Future[R]]()
    with ThreadPoolExecutor(threads) as pool:
        for item in items:
            futures.append(pool.submit(work, item))
            if len(futures) == threads:
                yield futures.popleft().result()
        while futures:
            yield futures.popleft().result()


def submit(pool: ThreadPoolExecutor, work: Callable[..., R], *args: object) -> Future[R]:
    """Start work in a pool. The pool releases the arguments before the result is available.

    `ThreadPoolExecutor.submit` may hold them a moment longer, so that their memory would not yet be free.
    """
    return pool.submit(_release_and_run, work, [args])


def _release_and_run(work: Callable[..., R], arguments: list[tuple[object, ...]]) -> R:
    return work(*arguments.pop())


class Turns:
    """Numbered tickets with which threads do one part of their work in order."""

    def __init__(self) -> None:
        self._changed = Condition()
        self._issued = self._current = 0
        self._failed = False

    def draw(self) -> int:
        """Return the next number. Call it from one thread at a time; every number drawn must take its turn."""
        self._issued += 1
        return self._issued - 1

    @contextmanager
    def turn(self, number: int) -> Iterator[None]:
        """Wait until all lower numbers have finished their turns."""
        with self._changed:
            self._changed.wait_for(lambda: self._current == number or self._failed)
        if self._failed:
            raise _AbandonedError
        yield
        with self._changed:
            self._current += 1
            self._changed.notify_all()

    @contextmanager
    def shared(self) -> Iterator[None]:
        """If one thread fails within the block, end the others, which would otherwise wait forever for its turn."""
        try:
            yield
        except _AbandonedError:
            pass
        except BaseException:
            with self._changed:
                self._failed = True
                self._changed.notify_all()
            raise


class _AbandonedError(Exception):
    pass
