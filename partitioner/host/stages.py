"""Wall time of this process by stage of one-time work: reading, sorting, copying, packing, choosing, compiling, ...

Code that does such work wraps it: ``with STAGES.of("sort"): ...``; `Stages.collect` returns the seconds. Work that is
queued on a GPU counts in the stage that waits for it.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from itertools import islice
from typing import TypeVar

T = TypeVar("T")


class Stages(threading.local):
    """Timers by stage. Stages may nest: time counts for the innermost one, so the sum is the elapsed time.

    Each thread has its own timers, as parallel work would be counted several times.
    """

    def __init__(self) -> None:
        self._seconds: dict[str, float] = {}
        self._inner = [0.0]  # by depth: seconds of nested stages so far
        self._callbacks: list[Callable[[str | None], None]] = []
        self._active: list[str] = []  # active stages, the innermost last

    @contextmanager
    def of(self, stage: str) -> Iterator[None]:
        """Add the time of the block to `stage`, except for the time of nested stages."""
        started = time.perf_counter()
        self._inner.append(0.0)
        self._enter(stage)
        try:
            yield
        finally:
            self._leave()
            elapsed = time.perf_counter() - started
            self._seconds[stage] = self._seconds.get(stage, 0.0) + elapsed - self._inner.pop()
            self._inner[-1] += elapsed

    def _enter(self, stage: str) -> None:
        self._active.append(stage)
        self._notify()

    def _leave(self) -> None:
        self._active.pop()
        self._notify()

    def _notify(self) -> None:
        for callback in self._callbacks:
            callback(self._active[-1] if self._active else None)

    @contextmanager
    def observed(self, callback: Callable[[str | None], None]) -> Iterator[None]:
        """Within the block, call `callback` with the innermost stage whenever it changes, or None if there is none.

        Callbacks of enclosing blocks are called, too.
        """
        self._callbacks.append(callback)
        try:
            yield
        finally:
            self._callbacks.remove(callback)

    def over(self, stage: str, items: Iterable[T]) -> Iterator[T]:
        """Yield `items`; add the time to produce them to `stage`."""
        rest = iter(items)
        while True:
            with self.of(stage):
                chunk = list(islice(rest, 1))
            if not chunk:
                return
            yield chunk.pop()  # no reference while the next item is produced

    def collect(self) -> dict[str, float]:
        """Return the seconds by stage, in the order in which stages first ended, and reset the timers."""
        seconds, self._seconds = self._seconds, {}
        return seconds


STAGES = Stages()


class Compilations:
    """Listeners for compilations in any thread; loading compiled code from disk does not count."""

    def __init__(self) -> None:
        self._lock, self._within, self._began = threading.Lock(), 0, 0.0
        self._listeners: list[tuple[Callable[[], object], list[float]]] = []

    @contextmanager
    def heard(self, begins: Callable[[], object]) -> Iterator[list[float]]:
        """Call `begins` at the first compilation in the block; yield a list of the seconds of each, in order."""
        seconds = list[float]()
        mine = begins, seconds
        self._listeners.append(mine)
        try:
            yield seconds
        finally:
            self._listeners.remove(mine)

    def begin(self) -> None:
        """Record that a thread begins to compile."""
        with self._lock:
            self._within += 1
            if self._within > 1:
                return
            self._began = time.perf_counter()
            new = [begins for begins, seconds in self._listeners if not seconds]
        for begins in new:
            begins()

    def end(self) -> None:
        """Record that it has finished."""
        with self._lock:
            self._within -= 1
            if not self._within:
                for _, seconds in self._listeners:
                    seconds.append(time.perf_counter() - self._began)


COMPILATIONS = Compilations()
