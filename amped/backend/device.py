"""The interface of devices: arrays, memory, clocks, slots and collectives. `ops` has the operations."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from contextlib import AbstractContextManager
from typing import Any, Protocol

import numpy as np
from numpy.typing import DTypeLike, NDArray

from partitioner.array_types import FloatDType, HostArray

from ..parallel.mpi import Comm, Reduction

Array = Any  # a NumPy or CuPy array, depending on the device
NOTHING = slice(0, 0)
Write = Callable[[HostArray], object]
"""Fills a 1-d array in host memory."""


class Movable(Protocol):
    """An object that can be streamed through a slot: data prepared by a kernel, on the device or the host."""

    @property
    def nbytes(self) -> int:
        """Size in bytes."""

    def copied(self, buffer: Array) -> Any:
        """Copy the data into `buffer`, a (bytes,) uint8 device array; return the object with its arrays there.

        On a GPU the copy is queued on the current stream, which is the slot's copy stream.
        """


class Slot(Protocol):
    """A device buffer that holds one streamed shard at a time."""

    def fill(self, shard: Movable, mode: int) -> None:
        """Start copying a shard from the host, after the last use of the previous one."""

    def shard(self) -> Any:
        """Return the shard for use by work queued afterwards."""

    def release(self) -> None:
        """Declare that no work queued later uses the shard."""


class Clock(Protocol):
    """Measures seconds per kind of work (`compute`, `exchange`, ...) and mode, in the device's own time."""

    def span(self, kind: str, mode: int) -> AbstractContextManager[None]:
        """Measure the work queued in the block."""

    def collect(self) -> dict[tuple[str, int], float]:
        """Wait for the device, return the seconds by (kind, mode) and reset them.

        After `Replay.wait` they are those of that launch, and there is no waiting.
        """


class Replay(Protocol):
    """Captured work that a device can queue repeatedly with little overhead."""

    def launch(self) -> None:
        """Queue all of it."""

    def wait(self) -> NDArray[np.uint8]:
        """Wait for the oldest launch not yet waited for; return the contents of the captured `read` array after it."""


class Collectives(Protocol):
    """In-place collective operations on device arrays."""

    name: str  # the transport, for reports
    overlaps: bool  # whether rows are sent while the device computes

    def comm_stream(self) -> AbstractContextManager[None]:
        """Queue work of the block, which sends rows, on the communication stream, concurrently with later work."""

    def wait_comm(self, forget: bool = True) -> None:
        """Make the compute stream wait for the communication stream. With forget=False the next call waits too."""

    def gather_rows(
        self, matrix: Array, begin: NDArray[np.int64], end: NDArray[np.int64], sums: Array | None = None
    ) -> None:
        """All-gather of unequal blocks: rank ``r`` contributes rows ``begin[r]`` to ``end[r]`` of `matrix`.

        The arrays `sums` of all ranks are summed in the same message, which has less latency than two.
        """

    def reduce_rows(self, matrix: Array, offsets: NDArray[np.int64]) -> None:
        """Sum the ranks' matrices: rank ``r`` gets rows ``offsets[r]`` to ``offsets[r + 1]``; others are undefined."""

    def reduce(self, array: Array, reduction: Reduction) -> None:
        """Combine the ranks' arrays elementwise; every rank gets the result."""

    def part(self, comm: Comm) -> Collectives:
        """Return the collectives of some of the ranks, whose work is queued in order with this object's. Collective."""

    def abort(self) -> None:
        """Abandon queued operations, because other ranks will not take part."""


class Device(Protocol):
    """One GPU, or the host's cores, as used by one rank."""

    name: str  # in messages
    folder: str  # name of the folder in `amped.backend` that has its providers
    description: str
    on_host: bool  # whether device memory is host memory: arrays are NumPy's, and nothing is copied
    queues: bool  # whether work is asynchronous, so that it can be queued ahead
    steady: bool  # whether equal work takes equal time, so that timings can be used to balance work
    cores: int  # threads for NumPy; 1 unless it is the host
    host_bytes: int  # host memory of its libraries during a run
    code_bytes: int  # host memory of one compiled kernel
    sample: int  # number of nonzeros that a timing needs to be representative
    together: int  # columns of a pass shared by several runs, at the least time per run; 0: no gain
    least_speed: float  # lower bound of the bytes per second of factor rows or nonzeros it processes

    @property
    def model(self) -> str:
        """The hardware and its use; devices of equal model are equally fast."""

    @property
    def xp(self) -> Any:
        """The array module: NumPy or CuPy."""

    def stride(self, rank: int, itemsize: int) -> int:
        """Return the padded number of columns in memory of a factor matrix with `rank` columns."""

    def reading_bytes(self, size: int, copies: int) -> int:
        """Return the host memory used while reading `size` bytes from a file in one transfer.

        Threads make `copies` copies of what each has read.
        """

    def memory(self, local_ranks: int) -> int:
        """Return the bytes that a plan may use if `local_ranks` ranks share the node."""

    def peak_bytes(self) -> int | None:
        """Return the peak of device memory in bytes since the last `rest`; None if it is host memory."""

    def rest(self) -> None:
        """Free cached memory and reset the peak."""

    def trim(self) -> None:
        """Free cached memory, because arrays of other sizes follow."""

    def empty(self, shape: tuple[int, ...], dtype: DTypeLike) -> Array:
        """Return an uninitialised array."""

    def zeros(self, shape: tuple[int, ...], dtype: DTypeLike) -> Array:
        """Return a new array of zeros."""

    def to_device(self, array: HostArray) -> Array:
        """Return a copy in device memory (on the host, the array itself)."""

    def fill(self, targets: Sequence[Array], sources: Sequence[HostArray]) -> None:
        """Copy 1-d host arrays into device arrays, possibly of other types, at the full speed of the link."""

    def prepare(self, order: int, dtype: FloatDType) -> None:
        """Start compiling what shards of any sparse tensor of this order need; return immediately."""

    def set_rows(self, target: Array, source: HostArray) -> None:
        """Copy a host matrix into a device matrix whose rows may be padded."""

    def begin_fill(self, runs: Sequence[Sequence[tuple[Array, Write]]], whole: int) -> Callable[[], None]:
        """Start filling 1-d device arrays from functions that write to host memory; return a function that waits.

        The arrays are all or part of a transfer of `whole` bytes. Each run is filled by one thread, in order; each
        array has at most `npy_file.PART` bytes. Work queued after waiting sees the data. On the host, filling is done
        on return.
        """

    def lock(self, array: HostArray) -> object | None:
        """Page-lock a C-contiguous host array while the returned object lives; None if that is impossible."""

    def to_host(self, array: Array) -> NDArray[Any]:
        """Return the array's contents in host memory (on the host, the array itself)."""

    def side_stream(self) -> AbstractContextManager[None]:
        """Queue work of the block after all work queued so far, concurrently with later work, until `wait_side`."""

    def wait_side(self) -> None:
        """Make later work wait for the side stream."""

    def capture(self, queue: Callable[[], None], read: Array, clock: Any) -> Replay | None:
        """Capture the work that `queue` queues, without executing it; None if the device is synchronous.

        After each launch `read`, a (bytes,) uint8 array, is copied to the host, and `clock`, of this device, has the
        seconds. The work must not wait for the host. It may allocate temporary arrays.
        """

    def slot(self, nbytes: int, clock: Any) -> Slot:
        """Return a buffer of `nbytes` bytes for streamed shards; `clock`, of this device, measures its copies."""

    def clock(self) -> Clock:
        """Return a new clock."""

    def synchronize(self) -> None:
        """Wait until all queued work is done."""

    def collectives(self, comm: Comm) -> Collectives | None:
        """Return the device's own collectives if each rank has a device to itself, otherwise None. Collective."""
