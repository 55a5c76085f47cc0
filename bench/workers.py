"""Worker processes with a fixed number of cores, kept alive so that measurements take turns; and memory at hand."""

from __future__ import annotations

import multiprocessing
import os
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

import numpy as np

from partitioner.sorting.tables import mapped

PAGE = 4096  # bytes
THREAD_VARIABLES = ("OMP_NUM_THREADS", "OPENBLAS_NUM_THREADS", "NUMBA_NUM_THREADS", "POLARS_MAX_THREADS")


class Worker:
    """A process bound to the first `cores` cores, with as many threads in every library."""

    def __init__(self, cores: int) -> None:
        self.cores = cores
        before, given = os.sched_getaffinity(0), {name: os.environ.get(name) for name in THREAD_VARIABLES}
        if cores > len(before):
            raise ValueError(f"{cores} cores requested, this process may use {len(before)}")
        try:
            # Libraries read both when they are loaded, so they are set before the process starts.
            os.sched_setaffinity(0, sorted(before)[:cores])
            os.environ.update(dict.fromkeys(THREAD_VARIABLES, str(cores)))
            self.pool = multiprocessing.get_context("spawn").Pool(1)
        finally:
            os.sched_setaffinity(0, before)
            for name, value in given.items():
                os.environ.pop(name)
                if value is not None:
                    os.environ[name] = value

    def __call__(self, function: Callable[..., object], *arguments: object) -> Any:
        """Call a module-level function in that process; return its result or raise its error."""
        return self.pool.apply(function, arguments)


@contextmanager
def workers(cores: list[int]) -> Iterator[list[Worker]]:
    """Start a worker for each number of cores; end them after the block."""
    started: list[Worker] = []
    try:
        started += [Worker(n) for n in cores]
        yield started
    finally:
        for worker in started:
            worker.pool.terminate()


def touch_memory(size: int) -> float:
    """Take memory and free it, so that the next measurement finds it at hand; return bytes per second.

    A virtual machine may return memory that has been free for seconds to its host. Taking it again is 10 to 30 times
    as slow as taking memory at hand, for any program, and costs more with larger tensors.
    """
    started = time.perf_counter()
    mapped(size, np.dtype(np.uint8))[::PAGE] = 1
    return size / (time.perf_counter() - started)
