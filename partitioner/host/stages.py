"""Seconds of this process by stage of what is done once: reading, sorting, copying, packing, choosing, compiling, ...

Whoever does such work says so: ``with STAGES.of("sort"): ...``. Who reports takes the seconds with `Stages.collect`.
Work that is only queued on a GPU counts where it is waited for.
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
    """Stages may nest: a second counts for the innermost one, so that their sum is the time that went by.

    Each thread has its own, as work that threads do side by side would count several times.
    """

    def __init__(self) -> None:
        self._seconds: dict[str, float] = {}
        self._inner = [0.0]  # by depth, seconds of the stages that were within so far
        self._tell: Callable[[str | None], None] | None = None
        self._within: list[str] = []  # the stages that are entered, the innermost last

    @contextmanager
    def of(self, stage: str) -> Iterator[None]:
        """Count the time within for `stage`, but for that of stages within."""
        began = time.perf_counter()
        self._inner.append(0.0)
        self._enter(stage)
        try:
            yield
        finally:
            self._leave()
            whole = time.perf_counter() - began
            self._seconds[stage] = self._seconds.get(stage, 0.0) + whole - self._inner.pop()
            self._inner[-1] += whole

    def _enter(self, stage: str) -> None:
        self._within.append(stage)
        if self._tell is not None:
            self._tell(stage)

    def _leave(self) -> None:
        self._within.pop()
        if self._tell is not None:
            self._tell(self._within[-1] if self._within else None)

    @contextmanager
    def told(self, tell: Callable[[str | None], None]) -> Iterator[None]:
        """Call `tell` with the innermost stage whenever another one begins within, or with None if there is none."""
        before, self._tell = self._tell, tell
        try:
            yield
        finally:
            self._tell = before

    def over(self, stage: str, items: Iterable[T]) -> Iterator[T]:
        """Yield `items`; count the time in which they come."""
        rest = iter(items)
        while True:
            with self.of(stage):
                found = list(islice(rest, 1))
            if not found:
                return
            yield found.pop()  # not kept while the next one is made

    def collect(self) -> dict[str, float]:
        """Return the seconds by stage, in the order in which stages were first left, and start anew."""
        found, self._seconds = self._seconds, {}
        return found


STAGES = Stages()
