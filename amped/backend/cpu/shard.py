"""A shard of nonzeros in the layout of the CPU kernels."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
from numpy.typing import NDArray

from partitioner.array_types import Element, FloatDType, IntDType, Integers
from partitioner.tensors.columns import StoredColumn

from ..ops.mttkrp import NOTHING_STORED, Kernel
from .layout import NO_BLOCKS, Blocks, Column, FibreRuns, Pieces, ThreadParts


@dataclass(frozen=True)
class HostShard:
    """Nonzeros in pieces of output rows, or with a permutation to that order. See `Shard`.

    The permutation is the order in which nonzeros are computed. The nonzeros then belong to the shard of mode 0, which
    accounts for their memory, and any output row may already have a sum.
    """

    kernel: Kernel
    # Arrays, or `StoredColumn` objects if they pass through slots.
    indices: Sequence[Any]  # (nnz,) of the input modes, ascending
    values: Any  # (nnz,)
    rows: Column | None  # (nnz,) output indices in the original order; kept if shards of other modes need them
    pieces: Pieces
    parts: ThreadParts  # work of the threads
    row_begin: int  # output index of row 0 of the output
    # Types of indices and values in a slot: the shortest that shape and precision allow.
    slot_types: tuple[IntDType, FloatDType]
    ahead: int = 0  # prefetch distance in nonzeros; 0 disables prefetching
    panels: bool = False  # whether columns are computed panel by panel, from contiguous copies
    fibres: FibreRuns | None = None
    blocks: Blocks = NO_BLOCKS
    permutation: Integers | None = None  # (nnz,)

    @property
    def nnz(self) -> int:
        """Number of nonzeros."""
        return int(self.values.size)

    @property
    def units(self) -> int:
        """Number of units of each part."""
        return (self.parts.bounds.size - 1) // max(1, self.parts.shared.size)

    @property
    def apart(self) -> bool:
        """Whether each part may have any output row."""
        return self.blocks.lows.size > 0

    @property
    def nbytes(self) -> int:
        """Size in bytes, without arrays that another shard accounts for."""
        arrays = [self.permutation] if self.permutation is not None else [*self.indices, self.values, self.rows]
        return sum(array.nbytes for array in (*self.pieces, *(self.fibres or ()), *arrays) if array is not None)

    def unloaded(self, stored: Mapping[int, Any] = NOTHING_STORED) -> HostShard:
        """See `Shard`. Output indices are not streamed, because the pieces contain them."""
        indices, values = ([stored.get(id(a), a) for a in arrays] for arrays in (self.indices, [self.values]))
        return replace(self, indices=indices, values=values[0], rows=None)

    def copied(self, buffer: NDArray[np.uint8]) -> HostShard:
        index, value = self.slot_types
        views, at = [], 0  # values first, so that all arrays are aligned
        for source, dtype in ((self.values, value), *((column, index) for column in self.indices)):
            view = buffer[at : at + self.nnz * dtype.itemsize].view(dtype)
            if isinstance(source, StoredColumn):
                source.copy_to(view)
            else:
                np.copyto(view, source, casting="unsafe")
            views.append(constant(view))
            at += view.nbytes
        return replace(self, values=views[0], indices=views[1:])


def constant(array: NDArray[Element]) -> NDArray[Element]:
    """Return a read-only view: memory-mapped arrays are read-only too, so kernels are compiled for one type only."""
    if array.flags.writeable:
        array = array.view()
        array.flags.writeable = False
    return array
