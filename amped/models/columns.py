"""Blockwise, multithreaded operations on the columns of factor matrices."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
from numpy.typing import NDArray

from partitioner.host.threads import parallel_map, threads_for

BLOCK_ROWS = 1 << 16  # block size of the sums; the rounding depends on it
ARRANGED_ROWS = 1 << 12  # block size of in-place operations


def column_norms(factor: NDArray[np.floating], norm: int) -> NDArray[np.float64]:
    """Return the 2-norms of the columns (`norm=2`) or their 1-norms (`norm=1`), (R,), in double precision."""

    def powers(rows: NDArray[Any]) -> NDArray[Any]:
        powered: NDArray[Any] = np.square(rows, dtype=np.float64) if norm == 2 else np.abs(rows, dtype=np.float64)
        return powered

    total = column_sums(powers, factor)
    return np.sqrt(total) if norm == 2 else total


def column_sums(of: Callable[[NDArray[Any]], NDArray[Any]], factor: NDArray[Any]) -> NDArray[np.float64]:
    """Sum `of(rows)` over all rows in double precision, (R,); `of` maps a block of rows to an array of its shape."""
    parts = _by_rows(lambda rows: of(rows).sum(axis=0, dtype=np.float64), factor, BLOCK_ROWS)
    return sum(parts, np.zeros(factor.shape[1]))


def arrange_columns(factor: NDArray[Any], order: NDArray[Any], divisor: NDArray[Any]) -> None:
    """Permute the columns by `order`, then divide each by its `divisor`, in place."""
    _by_rows(lambda rows: np.divide(rows[:, order], divisor, out=rows), factor, ARRANGED_ROWS)


def scale_columns(factor: NDArray[Any], scales: NDArray[Any]) -> None:
    """Multiply each column by its scale, in place."""
    _by_rows(lambda rows: np.multiply(rows, scales, out=rows), factor, ARRANGED_ROWS)


def _by_rows(work: Callable[[NDArray[Any]], NDArray[Any]], factor: NDArray[Any], size: int) -> list[NDArray[Any]]:
    """Apply `work` to each block of `size` rows, in threads; return the results in order."""
    blocks = [factor[b : b + size] for b in range(0, len(factor), size)]
    return parallel_map(work, blocks, threads_for(len(blocks)))
