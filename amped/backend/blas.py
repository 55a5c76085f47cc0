"""Control of BLAS threads, which are global to the process, and sizes of its buffers."""

from __future__ import annotations

import sys
from collections.abc import Iterator
from contextlib import contextmanager
from functools import cache, lru_cache
from typing import Any

import threadpoolctl

from partitioner.host.imports import scipy_module

SCIPY_BYTES = 15 << 20  # host memory taken by loading scipy.linalg after what every run loads
SPARSE_BYTES = 2 << 20  # host memory taken by also loading scipy.sparse
CODE_BYTES = 2 << 20  # host memory taken by the first use of NumPy's linear algebra
PACKED, PACKED_COLUMN = 1 << 20, 2048  # bytes of the buffers of a matrix product, and per column

_own_threads: dict[str, int] = {}  # thread counts of libraries that were loaded during a call, by SciPy or Numba


def limit_blas(threads: int) -> None:
    """Limit the threads of BLAS, which would otherwise compete with our own for the cores."""
    for library in _libraries():
        library.set_num_threads(threads)


@contextmanager
def callers_blas() -> Iterator[None]:
    """Restore BLAS's current thread counts after the block, which may limit them."""
    before = {library.filepath: library.num_threads for library in _libraries()}
    try:
        yield
    finally:
        most = max(before.values(), default=1)  # a nested call may not exceed the limit of the outer one
        for library in _libraries():
            if library.filepath in before:
                library.set_num_threads(before[library.filepath])
            else:
                own = _own_threads.setdefault(library.filepath, library.num_threads)
                library.set_num_threads(min(most, own))


@cache
def scipy_linalg() -> Any:
    """Import scipy.linalg, which takes time, and limit the threads of its BLAS, a separate library, like NumPy's."""
    least = min((library.num_threads for library in _libraries()), default=1)
    linalg = scipy_module("linalg")
    for library in _libraries():
        if library.num_threads > least:
            _own_threads.setdefault(library.filepath, library.num_threads)
            library.set_num_threads(least)
    return linalg


def packing_bytes(elements: int, columns: int) -> int:
    """Return the size of the buffers into which one thread of BLAS copies parts of the matrices of a product.

    Parameters
    ----------
    elements : int
        Elements of both matrices, float64.
    columns : int
        Columns of the product.
    """
    return min(8 * elements, PACKED + PACKED_COLUMN * columns)


def _libraries() -> list[Any]:
    return _libraries_after(len(sys.modules), next(reversed(sys.modules)))


@lru_cache(maxsize=1)
def _libraries_after(modules: int, last: str) -> list[Any]:
    """Return the loaded libraries; a search takes longer than a small decomposition. Imports may have loaded more."""
    return list(threadpoolctl.ThreadpoolController().lib_controllers)
