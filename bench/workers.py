"""Processes on so many cores each, kept alive so that what is compared takes turns."""

from __future__ import annotations

import multiprocessing
import os
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

THREAD_VARIABLES = ("OMP_NUM_THREADS", "OPENBLAS_NUM_THREADS", "NUMBA_NUM_THREADS", "POLARS_MAX_THREADS")


class Worker:
    """A process that may run on the first `cores` cores alone, with as many threads in every library."""

    def __init__(self, cores: int) -> None:
        self.cores = cores
        before, given = os.sched_getaffinity(0), {name: os.environ.get(name) for name in THREAD_VARIABLES}
        if cores > len(before):
            raise ValueError(f"{cores} cores asked for, this process may use {len(before)}")
        try:
            # Libraries look at both when they are loaded: the new process must find them so.
            os.sched_setaffinity(0, sorted(before)[:cores])
            os.environ.update(dict.fromkeys(THREAD_VARIABLES, str(cores)))
            self.pool = multiprocessing.get_context("spawn").Pool(1)
        finally:
            os.sched_setaffinity(0, before)
            for name, value in given.items():
                os.environ.pop(name)
                if value is not None:
                    os.environ[name] = value

    def __call__(self, function: Callable[..., Any], *arguments: Any) -> Any:
        """Return what `function`, one of a module, returns in that process; raise what it raises."""
        return self.pool.apply(function, arguments)


@contextmanager
def workers(cores: list[int]) -> Iterator[list[Worker]]:
    """Start a worker for each number of cores, and end them."""
    started: list[Worker] = []
    try:
        started += [Worker(n) for n in cores]
        yield started
    finally:
        for worker in started:
            worker.pool.terminate()
