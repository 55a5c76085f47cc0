"""Columns of factor matrices: what is done with all rows, some at a time, in threads."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
from numpy.typing import NDArray

from partitioner.host.threads import side_by_side, usable_cores

BLOCK_ROWS = 1 << 16  # of sums, whose rounding depends on it
ARRANGED_ROWS = 1 << 12  # at a time


def column_norms(factor: NDArray[np.floating], norm: int) -> NDArray[np.float64]:
    """Return the 2-norms of columns, or else their 1-norms, (R,)."""

    def powers(rows: NDArray[Any]) -> NDArray[Any]:
        found: NDArray[Any] = np.square(rows, dtype=np.float64) if norm == 2 else np.abs(rows, dtype=np.float64)
        return found

    total = column_sums(powers, factor)
    return np.sqrt(total) if norm == 2 else total


def column_sums(of: Callable[[NDArray[Any]], NDArray[Any]], factor: NDArray[Any]) -> NDArray[np.float64]:
    """Return the sums of columns, (R,), of what is made of some rows."""
    parts = _by_rows(lambda rows: of(rows).sum(axis=0, dtype=np.float64), factor, BLOCK_ROWS)
    return sum(parts, np.zeros(factor.shape[1]))


def arrange_columns(factor: NDArray[Any], order: NDArray[Any], divisor: NDArray[Any]) -> None:
    """Bring columns into another order, and divide them, in place."""
    _by_rows(lambda rows: np.divide(rows[:, order], divisor, out=rows), factor, ARRANGED_ROWS)


def scale_columns(factor: NDArray[Any], scales: NDArray[Any]) -> None:
    """Multiply columns, in place."""
    _by_rows(lambda rows: np.multiply(rows, scales, out=rows), factor, ARRANGED_ROWS)


def _by_rows(work: Callable[[NDArray[Any]], NDArray[Any]], factor: NDArray[Any], size: int) -> list[NDArray[Any]]:
    """Do some work on every `size` rows, in threads; return the results in order."""
    blocks = [factor[b : b + size] for b in range(0, len(factor), size)]
    return side_by_side(work, blocks, min(usable_cores(), max(1, len(blocks))))
