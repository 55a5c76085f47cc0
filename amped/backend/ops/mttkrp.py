"""The MTTKRP operation: kernels, the shards that they build from nonzeros, and the shares that describe these."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from enum import Flag, auto
from typing import Any, NamedTuple, Protocol

from partitioner.array_types import FloatDType
from partitioner.tensors.value_range import ValueRange

from ...options import GatherName
from ..device import NOTHING, Array, Movable
from ..registry import Op

NOTHING_STORED: Mapping[int, Any] = {}


@dataclass(frozen=True)
class Share:
    """Properties of a rank's nonzeros of one mode that are known before they are loaded.

    `column` is the number of the nonzeros' column that holds the output index. If it is 0, nonzeros are sorted by it.
    Otherwise the nonzeros are those of mode 0, with columns in ascending order of modes, and `Kernel.derive` builds
    their shards.
    """

    lengths: tuple[int, ...]  # of the input modes, ascending
    rows: slice  # of the output
    nnz: int
    stride: int  # columns of a factor matrix in memory, including padding
    dtype: FloatDType  # of values and factors
    values: ValueRange
    column: int = 0
    gather: GatherName = "full"  # format in which kernels read factor matrices: full, or a 16-bit copy
    streamed: bool = False  # whether the nonzeros stay in host memory and are copied to slots

    def __hash__(self) -> int:
        """Hash for caches of compiled code; slices are not hashable before Python 3.12."""
        return hash((self.lengths, self.rows.start, self.rows.stop, self.nnz, self.stride, self.dtype, self.gather))

    @property
    def row_bytes(self) -> int:
        """Bytes of a row of a factor matrix, as kernels read it."""
        return self.stride * (self.dtype.itemsize if self.gather == "full" else 2)


class Operands(NamedTuple):
    """The device arrays that a computation for one mode reads and writes."""

    factors: Sequence[Array]  # (I_m, stride): the input modes' factor matrices as kernels read them, ascending
    own: Array  # (rows, stride): the share's rows of the output mode's factor matrix, of the same type
    out: Array  # (rows, width) float64: the output rows of the share
    scratch: Array = None  # (bytes,) uint8; allocated by the computation if None


class KernelBytes(NamedTuple):
    """Device memory, in bytes, that a kernel needs for some nonzeros of a share."""

    shard: int  # upper bound of the shards
    making: int  # additionally, while a shard is built
    running: int  # scratch memory for `Kernel.run`


class Offers(Flag):
    """Properties of a kernel's shards that other operations can use."""

    NOTHING = 0
    ROWS = auto()  # the nonzeros of a row are contiguous
    SORTED = auto()  # the nonzeros of a row are sorted by their input indices, and read in one pass
    TREE = auto()  # the nonzeros form a tree of index prefixes, which serves all modes
    PACKED = auto()  # nonzeros are in packed records, in the layout that the device creates for the kernel


class Shard(Movable, Protocol):
    """Nonzeros of consecutive output rows in the format of a kernel, in device or host memory."""

    @property
    def kernel(self) -> Kernel:
        """The kernel that computes it."""

    @property
    def nnz(self) -> int:
        """The number of nonzeros."""

    def unloaded(self, stored: Mapping[int, Any] = NOTHING_STORED) -> Shard:
        """Return a copy in host memory that is suited to fill slots.

        `stored` maps the ``id`` of an array to the column in a file from which it was read: a shard on the host reads
        such a column again whenever it is copied.
        """


class Kernel(Protocol):
    """A kernel that computes MTTKRP on a device: a provider of the operation."""

    name: str
    code: str  # key of its compiled code; kernels with equal keys are compiled once
    most_nonzeros: int  # largest number of nonzeros of a shard
    repeatable: bool  # whether results are bitwise reproducible
    reads_narrow: bool  # whether it supports 16-bit copies of factor matrices
    offers: Offers  # properties of its shards

    @property
    def derive(self) -> Callable[[Any, Share], Shard] | None:
        """Function ``derive(shard, share)`` that builds another mode's shard from mode 0's, so that they share a copy.

        The new shard has the columns and values of mode 0, and a permutation that sorts them by the column
        ``share.column``, ties in the order of mode 0. ``share.rows`` are all rows of the mode, and ``bytes`` counts
        the permutation only. None if the kernel requires nonzeros sorted by output row.
        """

    def suits(self, share: Share) -> bool:
        """Return whether it supports such nonzeros."""

    def gains(self, share: Share) -> bool:
        """Return whether it may be the fastest kernel for them and so should be timed."""

    def keeps_columns(self, share: Share) -> bool:
        """Return whether shards use the index columns themselves, not converted copies."""

    def prepare(self, share: Share) -> None:
        """Start preparations that do not depend on the nonzeros, such as compiling; return immediately."""

    def bytes(self, share: Share, nnz: int) -> KernelBytes:
        """Return the memory that `nnz` nonzeros of a share need."""

    def make(self, columns: Sequence[Array], values: Array, share: Share, continues: bool) -> Shard:
        """Return a shard of nonzeros in device memory.

        Parameters
        ----------
        columns : sequence of (nnz,) int32 arrays
            Output indices, ascending, then those of the input modes; in host or device memory.
        values : (nnz,) array
        share : Share
        continues : bool
            Whether the first row already has a sum from the previous shard, to be added to.
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
        """Queue the addition of a shard's MTTKRP to `out`, without allocating memory or waiting.

        Parameters
        ----------
        shard : Shard
        factors : sequence of (I_m, stride) arrays
            The input modes' factor matrices, in ascending order of modes and in the format of the share's `gather`.
        out : (rows, stride) float64 array
            The output rows of the share.
        new : slice
            Uninitialised rows of `out`, which are set to the shard's sums or zeros.
        scratch : (bytes,) uint8 array
            At least of the size that `bytes` returns; its contents are not preserved.
        double : bool
            Whether to compute products and short sums in double precision, too, from numbers in single precision. This
            is slower and compiled on first use. Not supported for 16-bit factor matrices.
        """


MTTKRP = Op[Kernel]("mttkrp")
"""The first provider supports all nonzeros, and its results are bitwise reproducible."""
