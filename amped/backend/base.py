"""What a backend is: the operations that the engine asks for, and the choice among the backends."""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping, Sequence
from contextlib import AbstractContextManager
from dataclasses import dataclass
from typing import Any, Literal, Protocol, get_args

import numpy as np
from numpy.typing import NDArray

from partitioner.coo import ValueRange
from partitioner.device import DEVICES as DEVICES
from partitioner.device import DeviceName as DeviceName
from partitioner.device import pick

from ..parallel.mpi import Comm

Array = Any  # a NumPy or a CuPy array, according to the backend
GatherName = Literal["full", "fp16", "bf16"]
GATHERS = get_args(GatherName)
NOTHING = slice(0, 0)
ATOMIC = "atomic"
"""The kernel of Algorithm 2 of AMPED as published, to compare with: each nonzero is added to its row by itself."""
PERMUTED = "permuted"
"""GenTen's MTTKRP-C (Phipps and Kolda, SIAM J. Sci. Comput. 41(3), 2019), the kernel of least memory: mode 0's copy of
the nonzeros alone, and a permutation for each other mode, whose output is a whole matrix on every rank."""


@dataclass(frozen=True)
class Share:
    """What is known of the nonzeros of one mode that a rank computes, before they are loaded.

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
    kernels : tuple of str
        The kernels that may compute them.
    column : int
        Which of the nonzeros' columns is the output index. 0 where they are sorted by it; otherwise the nonzeros are
        those of mode 0, in columns of ascending modes, and their shards are made by `Backend.permuted`.
    gather : {"full", "fp16", "bf16"}
        Whether kernels read factor matrices as they are, or copies in 16 bits.
    streamed : bool
        The nonzeros stay where they are in host memory, and are copied into slots.
    """

    lengths: tuple[int, ...]
    rows: slice
    nnz: int
    stride: int
    dtype: np.dtype[Any]
    values: ValueRange
    kernels: tuple[str, ...] = ()
    column: int = 0
    gather: GatherName = "full"
    streamed: bool = False

    @property
    def row_bytes(self) -> int:
        """Bytes of a row of a factor matrix, as kernels read it."""
        return self.stride * (self.dtype.itemsize if self.gather == "full" else 2)


class Shard(Protocol):
    """Nonzeros of a run of output rows, in device memory or on their way there."""

    @property
    def nnz(self) -> int:
        """How many there are."""

    @property
    def nbytes(self) -> int:
        """The memory that they take."""


class Slot(Protocol):
    """A device buffer that holds one streamed shard at a time."""

    def fill(self, shard: Any, mode: int) -> None:
        """Start to copy a shard in from the host, once the last one is no longer in use."""

    def shard(self) -> Any:
        """Return the shard, usable by the work queued next."""

    def release(self) -> None:
        """Say that the work queued so far is the last to use the shard."""


class Clock(Protocol):
    """Seconds spent in each kind of work (`compute`, `exchange`, ...) for each mode, on the device's own time line."""

    def span(self, kind: str, mode: int) -> AbstractContextManager[None]:
        """Count the work queued within."""

    def collect(self) -> dict[tuple[str, int], float]:
        """Wait for the device, return the seconds by (kind, mode) and start anew."""


class Backend(Protocol):
    """One device (or the host's cores) as one rank uses it."""

    name: str
    description: str

    @property
    def xp(self) -> Any:
        """The array module: NumPy or CuPy."""

    runtime_bytes: int
    """Device memory that the device's own runtime takes, outside what the plan counts."""
    most_nonzeros: int
    """Of a shard."""
    repeatable: tuple[str, ...]
    """The kernels that give bitwise equal results every time."""
    steady: bool
    """Whether equal work takes equal times, so that these tell how to share it out."""
    keeps_scratch: bool
    """Whether what a kernel needs for a while stays there for the next one, also while something else is done."""
    roundings: Mapping[GatherName, Callable[[Array, Array], object]]
    """Ways to read factor matrices beside "full": what rounds a float32 matrix to a uint16 array of its shape."""

    def kernels(self, order: int) -> Sequence[str]:
        """Return the names of the kernels for tensors of `order` modes, `PERMUTED` among them if there is one."""

    def stride(self, rank: int, itemsize: int) -> int:
        """Return the columns of a factor matrix of `rank` columns in memory, where kernels read items of that size."""

    def candidates(self, share: Share) -> tuple[str, ...]:
        """Return the kernels worth timing on such nonzeros; the first gives bitwise equal results every time.

        `PERMUTED` is not one: it is for those who ask for it.
        """

    def host_runtime_bytes(self, kernels: Collection[str]) -> int:
        """Return the host memory that libraries, and such kernels, take once a run computes."""

    def memory(self, local_ranks: int) -> int:
        """Bytes that a plan may count on, when so many ranks share the node."""

    def peak_bytes(self) -> int | None:
        """Most bytes of device memory in use at once since the last `rest`; None if it is the host's."""

    def rest(self) -> None:
        """Give back the memory that is kept for later use."""

    def empty(self, shape: tuple[int, ...], dtype: Any) -> Array:
        """Return a new array of unset contents."""

    def zeros(self, shape: tuple[int, ...], dtype: Any) -> Array:
        """Return a new array of zeros."""

    def to_device(self, array: NDArray[Any]) -> Array:
        """Return a copy (or, on the host, the array itself) in device memory."""

    def to_host(self, array: Array) -> NDArray[Any]:
        """Return the array's contents in host memory."""

    def shard(self, columns: Sequence[Array], values: Array, share: Share, kernel: str, continues: bool) -> Any:
        """Return nonzeros as a kernel wants them, in device memory.

        Parameters
        ----------
        columns : sequence of (nnz,) int32 arrays
            Output indices, ascending, then those of the input modes; in host or device memory.
        values : (nnz,) array
        share : Share
            What they are a part of.
        kernel : str
            One of `kernels`.
        continues : bool
            The first row already has a sum, from the shard before this one, to be added to.
        """

    def permuted(self, shard: Any, share: Share) -> Any:
        """Return the nonzeros of a shard of mode 0 as a shard of another mode.

        It shares the columns and values of `shard`, in the same memory, and adds a permutation that puts them in
        ascending order of the column `share.column`, ties in the order of mode 0.

        Parameters
        ----------
        shard : Shard
            Made by `Backend.shard` for the kernel `PERMUTED` and mode 0's share, of which `kernels` is that kernel
            alone: it keeps every column. Both shards live as long as the engine, and both are computed.
        share : Share
            Of the other mode: `column` is above 0, `kernels` is `PERMUTED` alone, `lengths` are of its input modes,
            ascending, that is, of the columns other than `column`, and `rows` are all rows of the mode.

        Returns
        -------
        Shard
            `nnz` as of `shard`; `nbytes` are those of the permutation, and of what goes with it, alone. That is what
            ``shard_bytes(share, nnz)`` counts for a share with `column` above 0, too. `mttkrp` adds its rows, which
            may be any, to what `out` has: a mode is the sum of several shards that share rows.
        """

    def unload(self, shard: Any) -> Any:
        """Return a copy of a shard in host memory, from which slots are filled fastest."""

    def shard_bytes(self, share: Share, nnz: int) -> int:
        """Return the most bytes that shards of so many nonzeros of a share take; see `permuted` for its shards."""

    def keeps_columns(self, share: Share) -> bool:
        """Tell whether shards are made of the index columns themselves, not of copies in another form."""

    def packing_bytes(self, share: Share, nnz: int) -> int:
        """Return the device memory that `shard`, or `permuted`, needs for a while, beside the shard."""

    def scratch_bytes(self, share: Share, nnz: int) -> int:
        """Return the device memory that `mttkrp` of a shard of so many nonzeros needs for a while."""

    def slot(self, shares: Sequence[Share], capacity: int, clock: Clock) -> Slot:
        """Return a buffer for shards, of any of the shares, of up to `capacity` nonzeros."""

    def clock(self) -> Clock:
        """Return a new clock."""

    def mttkrp(self, shard: Any, factors: Sequence[Array], out: Array, new: slice = NOTHING) -> None:
        """Add a shard's MTTKRP to `out`.

        Parameters
        ----------
        shard : Shard
        factors : sequence of (I_m, stride) arrays
            The input modes' factor matrices, ascending, as the share's `gather` says.
        out : (rows, stride) float64 array
            Of the share.
        new : slice
            Rows of `out` that hold nothing yet: they get the shard's sums, or zeros.
        """

    def dense_blocks(self, rank: int) -> int:
        """Return how many blocks of rows `solve` and `dense` have in memory at once, as doubles."""

    def solve(
        self, source: Array, inverse: Array, target: Array, gram: Array, largest: Array, dots: Array | None = None
    ) -> None:
        """Solve rows of a factor matrix, and add up what is to be known of it; see `dense.solve`."""

    def synchronize(self) -> None:
        """Wait until all queued work is done."""


def choose(device: DeviceName, comm: Comm, threads: int | None = None) -> Backend:
    """Return the backend for this rank.

    Parameters
    ----------
    device : {"auto", "cpu", "cuda"}
        "auto" takes a GPU if there is one. Ranks of a node take its GPUs in turn.
    comm : Comm
    threads : int, optional
        Host threads; by default the cores that this rank may use, shared among the ranks of the node.

    Raises
    ------
    InputError
        If "cuda" is asked for and there is no usable GPU or no CuPy.
    """
    if pick(device, comm) == "cuda":
        from .cuda.device import CudaBackend

        return CudaBackend(comm.local_rank)
    from .cpu.device import CpuBackend

    return CpuBackend(comm, threads)
