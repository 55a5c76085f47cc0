"""A shard of nonzeros as the CPU's kernels read it."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
from numpy.typing import NDArray

from ..mttkrp import Kernel
from .layout import NO_BLOCKS, Blocks, Column, Fibres, Numbers, Parts, Pieces


@dataclass(frozen=True)
class HostShard:
    """Nonzeros in pieces of output rows, or with a permutation that brings them there.

    Attributes
    ----------
    kernel : Kernel
        Which computes it.
    indices : sequence of (nnz,) int32 or uint16 arrays
        Those of the input modes, in ascending order of modes.
    values : (nnz,) array
    rows : (nnz,) int32 array, optional
        The output indices, in the order in which the nonzeros were given; kept where other modes' shards need them.
    pieces : Pieces
    parts : Parts
        What threads compute side by side.
    row_begin : int
        The output index that is row 0 of the output.
    slot_types : (numpy.dtype, numpy.dtype)
        Of indices and values once they are in a slot: as short as the tensor's shape and the precision allow.
    ahead : int
        Prefetch distance in nonzeros; 0 disables prefetching.
    panels : bool
        Whether columns are computed one panel after the other, each from matrices that hold no other columns.
    fibres : Fibres, optional
    blocks : Blocks
    permutation : (nnz,) uint32 array, optional
        The order in which nonzeros are computed; they then belong to a shard of mode 0, which counts their memory, and
        any output row may have a sum already.
    """

    kernel: Kernel
    indices: Sequence[Column]
    values: NDArray[Any]
    rows: Column | None
    pieces: Pieces
    parts: Parts
    row_begin: int
    slot_types: tuple[np.dtype[Any], np.dtype[Any]]
    ahead: int = 0
    panels: bool = False
    fibres: Fibres | None = None
    blocks: Blocks = NO_BLOCKS
    permutation: Numbers | None = None

    @property
    def nnz(self) -> int:
        """The number of nonzeros."""
        return int(self.values.size)

    @property
    def nbytes(self) -> int:
        """The bytes that no other shard counts."""
        arrays: list[NDArray[Any]] = [*self.pieces, *(self.fibres or ())]
        if self.permutation is None:
            arrays += [*self.indices, self.values, *([] if self.rows is None else [self.rows])]
        else:
            arrays += [self.permutation]
        return sum(array.nbytes for array in arrays)

    def unloaded(self) -> HostShard:
        """See `Shard`: it is in host memory, or mapped from a file."""
        return self

    def copied(self, buffer: NDArray[np.uint8]) -> HostShard:
        """See `Movable`."""
        index, value = self.slot_types
        views, at = [], 0  # values first: so all are aligned as their types want
        for source, dtype in ((self.values, value), *((column, index) for column in self.indices)):
            view = buffer[at : at + self.nnz * dtype.itemsize].view(dtype)
            np.copyto(view, source, casting="unsafe")
            views.append(view)
            at += view.nbytes
        return replace(self, values=views[0], indices=views[1:])
