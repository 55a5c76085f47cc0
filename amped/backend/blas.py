"""The threads of NumPy's linear algebra, which belong to the whole process."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from functools import cache
from typing import Any

import threadpoolctl

SCIPY_BYTES = 21 << 20  # of host memory that loading SciPy's linear algebra takes
SPARSE_BYTES = 2 << 20  # of host memory that loading its sparse matrices takes besides
CODE_BYTES = 2 << 20  # of NumPy's linear algebra that are read from its files when it is first used
PACKED, PACKED_COLUMN = 1 << 20, 2048  # bytes of the buffers of a matrix product, and for each of its columns

_found: dict[str, int] = {}  # libraries that came with SciPy in a call, and the threads that they had


def limit_blas(threads: int) -> None:
    """Let BLAS use at most so many threads: beside our own they would fight for the cores."""
    threadpoolctl.threadpool_limits(threads)


@contextmanager
def callers_blas() -> Iterator[None]:
    """Give BLAS back the threads that it has now, also after an error: a device of a call takes some away."""
    before = {library.filepath: library.num_threads for library in _libraries()}
    try:
        yield
    finally:
        most = max(before.values(), default=1)  # in a call within another one, what that allows
        for library in _libraries():
            if library.filepath in before:
                library.set_num_threads(before[library.filepath])
            elif library.filepath in _found:
                library.set_num_threads(min(most, _found[library.filepath]))


@cache
def scipy_linalg() -> Any:
    """Return SciPy's linear algebra, which takes time to load. Its BLAS is its own: it is limited as NumPy's is."""
    least = min((library.num_threads for library in _libraries()), default=1)
    from scipy import linalg

    for library in _libraries():
        if library.num_threads > least:
            _found.setdefault(library.filepath, library.num_threads)
            library.set_num_threads(least)
    return linalg


def packing_bytes(elements: int, columns: int) -> int:
    """Return the bytes of the buffers into which one thread copies parts of the matrices that it multiplies.

    Parameters
    ----------
    elements : int
        Of both matrices, in double precision.
    columns : int
        Of the product.
    """
    return min(8 * elements, PACKED + PACKED_COLUMN * columns)


def _libraries() -> list[Any]:
    return list(threadpoolctl.ThreadpoolController().lib_controllers)
