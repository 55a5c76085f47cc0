"""Distribution of a sparse tensor by whole rows of a mode: a rank has all nonzeros of the rows that it owns."""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from partitioner.array_types import FloatDType, Floats
from partitioner.shards.partition import Cut, mode_order

from ...parallel.mpi import Comm
from ..sources.blocks import on_host
from ..sources.protocols import SparseSource


def cut_by_rows(source: SparseSource, comm: Comm, modes: list[int]) -> tuple[int, Cut]:
    """Return the mode by whose rows nonzeros are distributed to ranks, and its cut; see `fewest_split`. Collective."""
    return fewest_split(source, comm.size, modes)


def fewest_split(source: SparseSource, parts: int, modes: list[int]) -> tuple[int, Cut]:
    """Return the mode whose cut into parts splits the fewest rows, and its cut. Collective."""
    cuts = {mode: source.cut(mode, parts) for mode in modes}
    along = min(modes, key=lambda m: (cuts[m].split_rows.size, -source.shape[m]))
    return along, cuts[along]


def load_rows(
    source: SparseSource, comm: Comm, along: int, cut: Cut, dtype: FloatDType
) -> tuple[list[NDArray[np.int32]], Floats]:
    """Return the nonzeros of all rows that this rank owns: the columns by mode, and the values. Collective."""
    arrays = [on_host(column) for column in source.load(along, cut, dtype)]
    *indices, values = arrays
    head = int(cut.heads[comm.rank])
    theirs = int(np.searchsorted(indices[0], head, "right")) if head >= 0 else 0
    if cut.split_rows.size:  # send the nonzeros of rows that other ranks own
        sent = comm.allgather([array[:theirs] for array in arrays])
        begin, end = int(cut.rows[comm.rank]), int(cut.rows[comm.rank + 1])
        mine = [part for part in sent if part[0].size and begin <= part[0][0] < end]
        arrays = [np.concatenate([array[theirs:], *(p[k] for p in mine)]) for k, array in enumerate(arrays)]
        *indices, values = arrays
    order = mode_order(len(source.shape), along)
    return [indices[order.index(m)] for m in range(len(order))], values
