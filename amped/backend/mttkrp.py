"""The MTTKRP family: what its kernels are given, what they hold, and what they do."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple, Protocol

import numpy as np

from partitioner.coo import ValueRange

from ..options import GatherName
from .base import NOTHING, Array, Movable

FAMILY = "mttkrp"


@dataclass(frozen=True)
class Share:
    """The nonzeros of one mode that a rank computes, as they are known before they are loaded.

    Attributes
    ----------
    lengths : tuple of int
        Of the input modes, ascending.
    rows : slice
        The output rows.
    nnz : int
    stride : int
        Columns of a factor matrix in memory.
    dtype : numpy.dtype
        Of values and factors.
    values : ValueRange
    column : int
        Which of the nonzeros' columns is the output index. 0: they are sorted by it. Otherwise the nonzeros are those
        of mode 0, in columns of ascending modes, and their shards are made by `Kernel.derive`.
    gather : {"full", "fp16", "bf16"}
        Whether kernels read factor matrices as they are, or copies in 16 bits.
    streamed : bool
        The nonzeros stay in host memory and are copied into slots.
    """

    lengths: tuple[int, ...]
    rows: slice
    nnz: int
    stride: int
    dtype: np.dtype[Any]
    values: ValueRange
    column: int = 0
    gather: GatherName = "full"
    streamed: bool = False

    @property
    def row_bytes(self) -> int:
        """Bytes of a row of a factor matrix, as kernels read it."""
        return self.stride * (self.dtype.itemsize if self.gather == "full" else 2)


class Bytes(NamedTuple):
    """Device memory that a kernel takes for some nonzeros of a share.

    Attributes
    ----------
    shard : int
        Of their shards, at most.
    making : int
        While a shard is made, beside it.
    running : int
        Scratch memory that `Kernel.run` is given.
    """

    shard: int
    making: int
    running: int


class Shard(Movable, Protocol):
    """Nonzeros of a run of output rows as a kernel wants them, in device memory or on their way there."""

    @property
    def kernel(self) -> Kernel:
        """Which computes it."""

    @property
    def nnz(self) -> int:
        """The number of nonzeros."""

    def unloaded(self) -> Shard:
        """Return a copy in host memory, from which slots are filled fastest."""


class Kernel(Protocol):
    """One way to compute MTTKRP on a device: a provider of the family.

    Attributes
    ----------
    name : str
    code : str
        The compiled code that it runs; kernels that share it are compiled once.
    most_nonzeros : int
        Of a shard.
    repeatable : bool
        Whether its results are bitwise equal every time.
    reads_narrow : bool
        Whether it reads factor matrices in 16 bits.
    derive : callable or None
        ``derive(shard, share)`` makes the shard of another mode from that of mode 0, whose columns and values it
        shares, with a permutation that puts them in ascending order of the column ``share.column``, ties in the order
        of mode 0. ``share.rows`` are all rows of the mode, and ``bytes`` counts the permutation alone. The modes then
        share one copy of the nonzeros. None for a kernel that wants nonzeros sorted by output row.
    """

    name: str
    code: str
    most_nonzeros: int
    repeatable: bool
    reads_narrow: bool

    @property
    def derive(self) -> Callable[[Any, Share], Shard] | None:
        """Make the shard of another mode from that of mode 0; see above."""

    def suits(self, share: Share) -> bool:
        """Tell whether it computes such nonzeros."""

    def gains(self, share: Share) -> bool:
        """Tell whether it may be the fastest for them, so that timing it is worth the time."""

    def keeps_columns(self, share: Share) -> bool:
        """Tell whether shards are made of the index columns themselves, not of copies in another form."""

    def bytes(self, share: Share, nnz: int) -> Bytes:
        """Return the memory that so many nonzeros of a share take."""

    def make(self, columns: Sequence[Array], values: Array, share: Share, continues: bool) -> Shard:
        """Return nonzeros as this kernel wants them, in device memory.

        Parameters
        ----------
        columns : sequence of (nnz,) int32 arrays
            Output indices, ascending, then those of the input modes; in host or device memory.
        values : (nnz,) array
        share : Share
            What they are a part of.
        continues : bool
            The first row already has a sum, from the shard before this one, to be added to.
        """

    def run(
        self, shard: Any, factors: Sequence[Array], out: Array, new: slice = NOTHING, scratch: Array = None
    ) -> None:
        """Queue the addition of a shard's MTTKRP to `out`; allocate nothing, wait for nothing.

        Parameters
        ----------
        shard : Shard
            Made by this kernel.
        factors : sequence of (I_m, stride) arrays
            The input modes' factor matrices, ascending, as the share's `gather` says.
        out : (rows, stride) float64 array
            Of the share.
        new : slice
            Rows of `out` that hold nothing yet: they get the shard's sums, or zeros.
        scratch : (bytes,) uint8 array
            At least as large as `bytes` says. Its contents mean nothing before and after.
        """
