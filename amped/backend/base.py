"""What a backend is: the operations that the engine asks for, and the choice among the backends."""

from __future__ import annotations

from collections.abc import Sequence
from contextlib import AbstractContextManager
from dataclasses import dataclass
from typing import Any, Literal, Protocol, get_args

import numpy as np
from numpy.typing import NDArray

from ..errors import InputError
from ..mpi import Comm

Array = Any  # a NumPy or a CuPy array, according to the backend
DeviceName = Literal["auto", "cpu", "cuda"]
DEVICES = get_args(DeviceName)


@dataclass
class Shard:
    """Nonzeros in device memory, sorted by output row.

    Attributes
    ----------
    indices : sequence of (capacity,) int32 arrays
        The output index, then the input modes' indices in ascending order of modes.
    values : (capacity,) array
    nnz : int
        How many nonzeros are in use.
    continues : bool
        The first row already has a sum, from the shard before this one, to be added to.
    """

    indices: Sequence[Array]
    values: Array
    nnz: int
    continues: bool


class Slot(Protocol):
    """A device buffer that holds one streamed shard at a time."""

    def fill(self, indices: Sequence[NDArray[np.int32]], values: NDArray[Any], continues: bool, mode: int) -> None:
        """Start to copy a shard in from the host, once the last one is no longer in use."""

    def shard(self) -> Shard:
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

    kernels: Sequence[str]
    vector_bytes: int
    """Rows of factor matrices are padded to a multiple of this."""
    runtime_bytes: int
    """Device memory that the device's own runtime takes, outside what the plan counts."""
    host_runtime_bytes: int
    """Host memory that libraries load and allocate once a run computes."""
    dense_blocks: int
    """Blocks of rows that `dense` has in memory at once."""

    def memory(self, local_ranks: int) -> int:
        """Bytes that a plan may count on, when so many ranks share the node."""

    def peak_bytes(self) -> int | None:
        """Most bytes of device memory in use at once since the backend was made; None if it is the host's."""

    def empty(self, shape: tuple[int, ...], dtype: Any) -> Array:
        """Return a new array of unset contents."""

    def zeros(self, shape: tuple[int, ...], dtype: Any) -> Array:
        """Return a new array of zeros."""

    def to_device(self, array: NDArray[Any]) -> Array:
        """Return a copy (or, on the host, the array itself) in device memory."""

    def to_host(self, array: Array) -> NDArray[Any]:
        """Return the array's contents in host memory."""

    def source(self, host: NDArray[Any], dtype: Any) -> NDArray[Any]:
        """Return an array in host memory from which slots are filled fastest: a copy, if need be."""

    def column(self, host: NDArray[Any], dtype: Any) -> Array:
        """Return one column of a resident shard, padded as the kernels need."""

    def slot(self, order: int, capacity: int, dtype: Any, clock: Clock) -> Slot:
        """Return a buffer for shards of up to `capacity` nonzeros."""

    def clock(self) -> Clock:
        """Return a new clock."""

    def scratch_bytes(self, nnz: int, stride: int) -> int:
        """Bytes of working memory that `mttkrp` takes for a shard of `nnz` nonzeros."""

    def mttkrp(self, shard: Shard, factors: Sequence[Array], out: Array, row_begin: int, kernel: str) -> None:
        """Add a shard's MTTKRP to `out`.

        Parameters
        ----------
        shard : Shard
        factors : sequence of (I_m, stride) arrays
            The input modes' factor matrices, ascending.
        out : (rows, stride) float64 array
            Row 0 stands for output row `row_begin`; rows that no nonzero names are left alone.
        row_begin : int
        kernel : str
            One of `kernels`.
        """

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
    if device not in DEVICES:
        raise InputError(f"device {device!r}: expected {', '.join(DEVICES)}")
    missing = "not asked for"
    if device != "cpu":
        from .cuda import probe

        missing = probe()
    # All ranks take the same kind of device, or they could not exchange.
    lacking = {rank: why for rank, why in enumerate(comm.allgather(missing)) if why}
    if not lacking:
        from .cuda.device import CudaBackend

        return CudaBackend(comm.local_rank)
    if device == "cuda":
        rank, why = next(iter(lacking.items()))
        raise InputError(f"--device cuda: {why}" + (f" (rank {rank})" if comm.size > 1 else ""))
    from .cpu.device import CpuBackend

    return CpuBackend(comm, threads)
