"""How evenly the blocks of grids share the nonzeros of a tensor, from a sample of them."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
from numpy.typing import NDArray

from partitioner.array_types import FloatDType
from partitioner.shards.partition import Cut
from partitioner.shards.process_grid import ProcessGrid

from ...parallel.mpi import Comm, together
from ..placement import GridParts
from .blocks import on_host
from .protocols import ModeCopies

WINDOWS, LENGTH = 1 << 11, 1 << 10  # places of mode 0's nonzeros from which a sample is taken, and nonzeros from each


def sampled_blocks(
    source: ModeCopies, grids: Sequence[GridParts], comm: Comm, dtype: FloatDType
) -> list[NDArray[np.int64]]:
    """Return for each grid how many nonzeros of a sample each block has, (ranks,) int64. Collective.

    Of large tensors the sample has `WINDOWS` times `LENGTH` nonzeros; small ones are taken as a whole.
    """
    whole = source.cut(0, comm.size)
    windows = _windows(int(np.diff(whole.nonzeros)[comm.rank]), comm.size)
    loaded = source.load(0, whole, dtype, 0)
    columns = [next(loaded) for _ in source.shape]
    sample = together(comm, lambda: [_taken(each, windows) for each in columns])  # reads those of a store
    result = list[NDArray[np.int64]]()
    for parts in grids:
        cuts = tuple(source.cut(mode, count) for mode, count in enumerate(parts.layers))
        spans = tuple(_spans(cut, column, comm) for cut, column in zip(cuts, sample, strict=True))
        grid = ProcessGrid(cuts, spans, parts.nodes)
        mine = np.bincount(grid.ranks_of(sample), minlength=grid.ranks)
        result.append(np.asarray(np.sum(comm.allgather(mine), axis=0), np.int64))
    return result


def fullest_block(counts: NDArray[np.int64]) -> float:
    """Return the nonzeros of the fullest block relative to the mean, less what chance adds to a sample's maximum."""
    mean = counts.mean()
    if not mean:
        return 1.0
    chance = np.sqrt(2 * np.log(counts.size) / mean) if counts.size > 1 else 0.0
    return float(max(1.0, counts.max() / mean - chance))


def _windows(nnz: int, ranks: int) -> list[slice]:
    """Return the slices of this rank's part of a sample."""
    count = max(1, WINDOWS // ranks)
    if nnz <= count * LENGTH:
        return [slice(0, nnz)]
    return [slice(start, start + LENGTH) for start in (np.arange(count) * (nnz - LENGTH) // max(1, count - 1)).tolist()]


def _taken(column: object, windows: Sequence[slice]) -> NDArray[np.int32]:
    parts = [on_host(column[window]) for window in windows]  # type: ignore[index]
    return np.concatenate(parts)


def _spans(cut: Cut, rows: NDArray[np.int32], comm: Comm) -> NDArray[np.int64]:
    """Return the spans of split rows, see `ProcessGrid`, estimated from a sample of rows. Collective."""
    if not cut.split_rows.size:
        return np.empty((0, 2), np.int64)
    ordered = np.sort(rows)
    ends = [np.searchsorted(ordered, cut.split_rows, side) for side in ("left", "right")]
    counts = np.sum(comm.allgather(np.stack(ends, axis=1)), axis=0)
    size = max(1, sum(comm.allgather(rows.size)))
    return np.asarray(counts / size * cut.nonzeros[-1], np.int64)
