"""Seconds of this process by stage of what is done once: reading, sorting, copying, packing, choosing, compiling, ...

Whoever does such work says so: ``with STAGES.of("sort"): ...``. Who reports takes the seconds with `Stages.collect`.
Work that is only queued on a GPU counts where it is waited for.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Iterable, Iterator
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

    @contextmanager
    def of(self, stage: str) -> Iterator[None]:
        """Count the time within for `stage`, but for that of stages within."""
        began = time.perf_counter()
        self._inner.append(0.0)
        try:
            yield
        finally:
            whole = time.perf_counter() - began
            self._seconds[stage] = self._seconds.get(stage, 0.0) + whole - self._inner.pop()
            self._inner[-1] += whole

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
