"""A shard of nonzeros as the CPU's kernels read it."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
from numpy.typing import NDArray

from partitioner.tensors.columns import StoredColumn

from ..ops.mttkrp import NOTHING_STORED, Kernel
from .layout import NO_BLOCKS, Blocks, Column, FibreRuns, Numbers, Pieces, ThreadParts


@dataclass(frozen=True)
class HostShard:
    """Nonzeros in pieces of output rows, or with a permutation that brings them there. See `Shard`.

    A permutation is the order in which nonzeros are computed. They then belong to a shard of mode 0, which counts their
    memory, and any output row may have a sum already.
    """

    kernel: Kernel
    # Arrays, or each a `StoredColumn` where they pass through slots.
    indices: Sequence[Any]  # (nnz,), of the input modes, ascending
    values: Any  # (nnz,)
    rows: Column | None  # (nnz,) output indices in the order they were given; kept where other modes' shards need them
    pieces: Pieces
    parts: ThreadParts  # what threads compute side by side
    row_begin: int  # the output index that is row 0 of the output
    # Of indices and values once they are in a slot: as short as the tensor's shape and the precision allow.
    slot_types: tuple[np.dtype[Any], np.dtype[Any]]
    ahead: int = 0  # prefetch distance in nonzeros; 0 disables prefetching
    panels: bool = False  # whether columns are computed panel by panel, from matrices that hold no other columns
    fibres: FibreRuns | None = None
    blocks: Blocks = NO_BLOCKS
    permutation: Numbers | None = None  # (nnz,)

    @property
    def nnz(self) -> int:
        """The number of nonzeros."""
        return int(self.values.size)

    @property
    def units(self) -> int:
        """The units of each part."""
        return (self.parts.bounds.size - 1) // max(1, self.parts.shared.size)

    @property
    def apart(self) -> bool:
        """Whether each part may have any output row."""
        return self.blocks.lows.size > 0

    @property
    def nbytes(self) -> int:
        """The bytes that no other shard counts."""
        own = [self.permutation] if self.permutation is not None else [*self.indices, self.values, self.rows]
        return sum(array.nbytes for array in (*self.pieces, *(self.fibres or ()), *own) if array is not None)

    def unloaded(self, stored: Mapping[int, Any] = NOTHING_STORED) -> HostShard:
        """See `Shard`. Output indices are not streamed: pieces have them."""
        indices, values = ([stored.get(id(a), a) for a in arrays] for arrays in (self.indices, [self.values]))
        return replace(self, indices=indices, values=values[0], rows=None)

    def copied(self, buffer: NDArray[np.uint8]) -> HostShard:
        index, value = self.slot_types
        views, at = [], 0  # values first: so all are aligned as their types want
        for source, dtype in ((self.values, value), *((column, index) for column in self.indices)):
            view = buffer[at : at + self.nnz * dtype.itemsize].view(dtype)
            if isinstance(source, StoredColumn):
                source.copy_to(view)
            else:
                np.copyto(view, source, casting="unsafe")
            views.append(constant(view))
            at += view.nbytes
        return replace(self, values=views[0], indices=views[1:])


def constant(array: NDArray[Any]) -> NDArray[Any]:
    """Return an array as one that cannot be written to, as those of mapped files are: kernels are compiled once."""
    if array.flags.writeable:
        array = array.view()
        array.flags.writeable = False
    return array
