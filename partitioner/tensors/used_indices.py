"""The indices of a mode that are in use, in memory bounded by the number of nonzeros.

An index may be a time stamp or an identifier: a mode with 2**31 indices may have a thousand nonzeros.
"""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from ..host.ranks import Ranks
from .columns import StoredColumn

SPARSE = 4  # indices per nonzero above which a mode is long
BLOCK = 1 << 20  # nonzeros processed at a time


def is_long(length: int, nonzeros: int) -> bool:
    """Return whether a mode is so long that memory per nonzero must be used instead of memory per index."""
    return length > SPARSE * nonzeros


def distinct(rows: NDArray[np.int32], length: int) -> NDArray[np.int32]:
    """Return the used indices of a mode of `length` indices, ascending."""
    if is_long(length, rows.size):
        return np.unique(rows)
    used = np.zeros(length, bool)
    used[rows] = True
    return np.flatnonzero(used).astype(np.int32)


def all_distinct(rows: NDArray[np.int32], length: int, ranks: Ranks) -> NDArray[np.int32]:
    """Return, on every rank, the indices that any rank uses; see `distinct`. Collective."""
    return joined(distinct(rows, length), ranks)


def joined(used: NDArray[np.int32], ranks: Ranks) -> NDArray[np.int32]:
    """Return the union of all ranks' used indices. Collective."""
    return used if ranks.size == 1 else np.unique(np.concatenate(ranks.allgather(used)))


def count_runs(rows: NDArray[np.int32] | StoredColumn) -> int:
    """Return the number of distinct values in ascending indices."""
    blocks = range(0, rows.size, BLOCK)
    return 1 + sum(int(np.count_nonzero(np.diff(rows[b : b + BLOCK + 1]))) for b in blocks)


def distinct_runs(rows: NDArray[np.int32] | StoredColumn) -> NDArray[np.int32]:
    """Return the distinct values in ascending indices."""
    parts = [np.unique(rows[b : b + BLOCK]) for b in range(0, rows.size, BLOCK)]
    return np.unique(np.concatenate(parts)) if parts else np.empty(0, np.int32)


def renumbered(rows: NDArray[np.int32], used: NDArray[np.int32]) -> NDArray[np.int32]:
    """Return the position of each index in `used`, which is ascending."""
    length = int(used[-1]) + 1
    table = np.empty(0 if is_long(length, rows.size) else length, np.int32)
    if table.size:
        table[used] = np.arange(used.size, dtype=np.int32)
    result = np.empty_like(rows)
    for b in range(0, rows.size, BLOCK):
        part = rows[b : b + BLOCK]
        result[b : b + BLOCK] = table[part] if table.size else np.searchsorted(used, part)
    return result


def labels_of(used: NDArray[np.int32], base: int) -> NDArray[np.int64]:
    """Return used indices as labels, counted from `base` as in their file."""
    return used.astype(np.int64) + base
