"""The threads of NumPy's linear algebra, which belong to the whole process."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

import threadpoolctl


def limit_blas(threads: int) -> None:
    """Let BLAS use at most so many threads: beside our own they would fight for the cores."""
    threadpoolctl.threadpool_limits(threads)


@contextmanager
def callers_blas() -> Iterator[None]:
    """Give BLAS back the threads that it has now, also after an error: a device of a call takes some away."""
    before = [(library, library.num_threads) for library in threadpoolctl.ThreadpoolController().lib_controllers]
    try:
        yield
    finally:
        for library, threads in before:
            library.set_num_threads(threads)
