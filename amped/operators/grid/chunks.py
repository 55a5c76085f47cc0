"""The rows of a mode in chunks: while one is computed, the rows of the one before are summed over the ranks of a layer.

A chunk has the same part of the rows of each owner, so that all owners solve at the same time.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
from numpy.typing import NDArray

from ...backend.exchange import RowRanges
from ...parallel.mpi import Comm

CHUNKS = 4
LEAST_CHUNK = 8 << 20  # bytes of sums


def chunk_count(rows: int, row_bytes: int) -> int:
    """Return the number of chunks for a layer's rows."""
    return max(1, min(CHUNKS, rows * row_bytes // LEAST_CHUNK))


def chunk_edges(
    indices: NDArray[np.int32], length: int, owners: NDArray[np.int64], count: int, comm: Comm
) -> NDArray[np.int64]:
    """Return the edges of the chunks of each owner's rows, (owners, count + 1), the same on all ranks of a layer.

    RowChunks have about equal numbers of nonzeros. Collective.

    Parameters
    ----------
    indices : (nnz,) int32 array
        The rows of this rank's nonzeros, in any order.
    length : int
        The number of rows.
    owners : (ranks + 1,) int64 array
        See `ProcessGrid.owners`.
    count : int
    comm : Comm
        The ranks of the layer.
    """
    offsets = np.concatenate([[0], np.cumsum(np.bincount(indices, minlength=length))])
    edges = np.empty((owners.size - 1, count + 1), np.int64)
    for own, begin, end in zip(edges, owners[:-1], owners[1:], strict=True):
        own[:] = np.searchsorted(offsets, np.linspace(offsets[begin], offsets[end], count + 1))
    edges = np.mean(comm.allgather(edges), axis=0).astype(np.int64)
    edges[:, 0], edges[:, -1] = owners[:-1], owners[1:]
    # The last row of a layer may be split with the next one: it is summed at the end.
    last = np.maximum(edges[:, :1], edges[:, -1:] - 1)
    edges[:, 1:-1] = np.clip(edges[:, 1:-1], edges[:, :1], last)
    return np.maximum.accumulate(edges, axis=1)


def row_parts(edges: NDArray[np.int64]) -> tuple[slice, ...]:
    """Return the row ranges in the order in which they are computed: each owner's rows of the first chunk, ..."""
    parts = [slice(int(own[k]), int(own[k + 1])) for k in range(edges.shape[1] - 1) for own in edges]
    return slice(0, parts[0].stop), *parts[1:]  # with a row split with the layer before


class RowChunks:
    """The chunks of a mode on a rank.

    Attributes
    ----------
    rows : list of RowRanges
        For each chunk the rows of each owner, and this rank's number of shards.
    blank : list of list of slice
        For each chunk the row ranges in which this rank has no nonzeros.
    """

    def __init__(self, edges: NDArray[np.int64], shards: Sequence[int]) -> None:
        """`shards` has this rank's number of shards of each row part."""
        owners, count = edges.shape[0], edges.shape[1] - 1
        parts, self.rows, self.blank = row_parts(edges), list[RowRanges](), list[list[slice]]()
        for k in range(count):
            of_chunk = range(k * owners, (k + 1) * owners)
            number = sum(shards[part] for part in of_chunk)
            self.rows.append(RowRanges(number, edges[:, k], edges[:, k + 1], last=k == count - 1))
            self.blank.append([parts[part] for part in of_chunk if not shards[part]])
