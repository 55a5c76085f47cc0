"""The MTTKRP operation: what its kernels are given, what they hold, and what they do."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from enum import Flag, auto
from typing import Any, NamedTuple, Protocol

import numpy as np

from partitioner.tensors.sparse import ValueRange

from ...options import GatherName
from ..device import NOTHING, Array, Movable
from ..registry import Op

NOTHING_STORED: Mapping[int, Any] = {}


@dataclass(frozen=True)
class Share:
    """The nonzeros of one mode that a rank computes, as they are known before they are loaded.

    `column` is which of the nonzeros' columns is the output index. 0: they are sorted by it. Otherwise the nonzeros are
    those of mode 0, in columns of ascending modes, and their shards are made by `Kernel.derive`.
    """

    lengths: tuple[int, ...]  # of the input modes, ascending
    rows: slice  # of the output
    nnz: int
    stride: int  # columns of a factor matrix in memory
    dtype: np.dtype[Any]  # of values and factors
    values: ValueRange
    column: int = 0
    gather: GatherName = "full"  # whether kernels read factor matrices as they are, or copies in 16 bits
    streamed: bool = False  # the nonzeros stay in host memory and are copied into slots

    def __hash__(self) -> int:
        """Compiled code is cached by what it depends on; a slice has no hash before Python 3.12."""
        return hash((self.lengths, self.rows.start, self.rows.stop, self.nnz, self.stride, self.dtype, self.gather))

    @property
    def row_bytes(self) -> int:
        """Bytes of a row of a factor matrix, as kernels read it."""
        return self.stride * (self.dtype.itemsize if self.gather == "full" else 2)


class KernelBytes(NamedTuple):
    """Device memory that a kernel takes for some nonzeros of a share."""

    shard: int  # of their shards, at most
    making: int  # while a shard is made, beside it
    running: int  # scratch memory that `Kernel.run` is given


class Offers(Flag):
    """What a kernel's shards offer, beside MTTKRP, to other operations."""

    NOTHING = 0
    ROWS = auto()  # the nonzeros of a row lie side by side
    SORTED = auto()  # those of a row are in ascending order of their input indices, and read in one pass
    TREE = auto()  # they are a tree of index prefixes, which serves all modes
    PACKED = auto()  # they are in packed records, of the layout that the device makes for the kernel


class Shard(Movable, Protocol):
    """Nonzeros of a run of output rows as a kernel wants them, in device memory or on their way there."""

    @property
    def kernel(self) -> Kernel:
        """The kernel that computes it."""

    @property
    def nnz(self) -> int:
        """The number of nonzeros."""

    def unloaded(self, stored: Mapping[int, Any] = NOTHING_STORED) -> Shard:
        """Return a copy in host memory, from which slots are filled fastest.

        `stored` are columns in files by the ``id`` of the array that a column was read into: a shard on the host reads
        such a one again whenever it is copied.
        """


class Kernel(Protocol):
    """One way to compute MTTKRP on a device: a provider of the operation."""

    name: str
    code: str  # the compiled code that it runs; kernels that share it are compiled once
    most_nonzeros: int  # of a shard
    repeatable: bool  # whether its results are bitwise equal every time
    reads_narrow: bool  # whether it reads factor matrices in 16 bits
    offers: Offers  # what its shards are, so that other operations can read them

    @property
    def derive(self) -> Callable[[Any, Share], Shard] | None:
        """Make the shard of another mode, ``derive(shard, share)``, from that of mode 0, so that they share one copy.

        It has that one's columns and values, and a permutation that puts them in ascending order of the column
        ``share.column``, ties in the order of mode 0. ``share.rows`` are all rows of the mode, and ``bytes`` counts the
        permutation alone. None for a kernel that wants nonzeros sorted by output row.
        """

    def suits(self, share: Share) -> bool:
        """Tell whether it computes such nonzeros."""

    def gains(self, share: Share) -> bool:
        """Tell whether it may be the fastest for them, so that timing it is worth the time."""

    def keeps_columns(self, share: Share) -> bool:
        """Tell whether shards are made of the index columns themselves, not of copies in another form."""

    def prepare(self, share: Share) -> None:
        """Begin to make what does not depend on the nonzeros themselves, such as compiled code, and return at once."""

    def bytes(self, share: Share, nnz: int) -> KernelBytes:
        """Return the memory that so many nonzeros of a share take."""

    def make(self, columns: Sequence[Array], values: Array, share: Share, continues: bool) -> Shard:
        """Return nonzeros as this kernel wants them, in device memory.

        Parameters
        ----------
        columns : sequence of (nnz,) int32 arrays
            Output indices, ascending, then those of the input modes; in host or device memory.
        values : (nnz,) array
        share : Share
        continues : bool
            The first row already has a sum, from the shard before this one, to be added to.
        """

    def run(
        self,
        shard: Any,
        factors: Sequence[Array],
        out: Array,
        new: slice = NOTHING,
        scratch: Array = None,
        double: bool = False,
    ) -> None:
        """Queue the addition of a shard's MTTKRP to `out`; allocate nothing, wait for nothing.

        Parameters
        ----------
        shard : Shard
        factors : sequence of (I_m, stride) arrays
            The input modes' factor matrices, ascending, as the share's `gather` says.
        out : (rows, stride) float64 array
            Of the share.
        new : slice
            Rows of `out` that hold nothing yet: they get the shard's sums, or zeros.
        scratch : (bytes,) uint8 array
            At least as large as `bytes` says. Its contents mean nothing before and after.
        double : bool
            Whether products and short sums are in double precision too, of the same numbers in single precision:
            slower, and compiled when it is first asked for. Not of factor matrices in 16 bits.
        """


MTTKRP = Op[Kernel]("mttkrp")
"""The first provider suits all nonzeros and gives bitwise equal results every time."""
