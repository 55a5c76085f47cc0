"""What a device is: arrays, memory, a clock and slots. What it computes is in `ops`."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from contextlib import AbstractContextManager
from typing import Any, Protocol

import numpy as np
from numpy.typing import NDArray

from ..parallel.mpi import Comm, Reduction

Array = Any  # a NumPy or a CuPy array, according to the device
NOTHING = slice(0, 0)
Write = Callable[[NDArray[Any]], object]
"""Called with a 1-d array in host memory, to be filled."""


class Movable(Protocol):
    """What passes through a slot: data that a kernel made, in device memory or on the host."""

    @property
    def nbytes(self) -> int:
        """The memory that it takes."""

    def copied(self, buffer: Array) -> Any:
        """Queue a copy into `buffer`, a (bytes,) uint8 device array; return the same thing as it lies there.

        Or copy it, if it cannot be queued; on a GPU, the current stream is that of the slot's copies.
        """


class Slot(Protocol):
    """A device buffer that holds one streamed shard at a time."""

    def fill(self, shard: Movable, mode: int) -> None:
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
        """Wait for the device, return the seconds by (kind, mode) and start anew.

        After `Replay.wait` they are those of that launch, and nothing is waited for.
        """


class Replay(Protocol):
    """Work that a device has noted down, to be queued again and again at once."""

    def launch(self) -> None:
        """Queue all of it."""

    def wait(self) -> NDArray[np.uint8]:
        """Wait for the oldest launch that was not waited for; return what the memory to be read held after it."""


class Collectives(Protocol):
    """Collectives on the arrays of a device, in place."""

    name: str  # what carries the data, for reports
    overlaps: bool  # whether rows travel while the device computes

    def comm_stream(self) -> AbstractContextManager[None]:
        """Queue what is within, to send rows, beside the work that is queued from now on, until `join`."""

    def wait_comm(self, forget: bool = True) -> None:
        """Let the work that is queued from now on wait for all that was queued aside; the next `join` does not, unless
        this one does not `forget`."""

    def gather_rows(
        self, matrix: Array, begin: NDArray[np.int64], end: NDArray[np.int64], sums: Array | None = None
    ) -> None:
        """All-gather of unequal blocks: rank ``r`` gives rows ``begin[r]`` to ``end[r]`` of `matrix`.

        With it the ranks' arrays `sums` are added up: one message is there sooner than two.
        """

    def reduce_rows(self, matrix: Array, offsets: NDArray[np.int64]) -> None:
        """Add up the ranks' matrices: rank ``r`` gets rows ``offsets[r]`` to ``offsets[r + 1]``, others are lost."""

    def reduce(self, array: Array, reduction: Reduction) -> None:
        """Combine the ranks' arrays elementwise, on all ranks."""

    def abort(self) -> None:
        """Give up what is queued: the other ranks will not come."""


class Device(Protocol):
    """One GPU, or the host's cores, as one rank uses it."""

    name: str  # the folder of its kernels in `amped.backend`, and its name in messages
    description: str
    model: str  # devices of one model are equally fast
    on_host: bool  # whether its memory is the host's: arrays are NumPy's, and nothing is copied to be computed
    queues: bool  # whether work is done after it was queued, so that it can be queued ahead of the host
    steady: bool  # whether equal work takes equal times, so that times tell how to share work out
    host_bytes: int  # host memory that its libraries take once a run computes
    code_bytes: int  # host memory of one compiled kernel
    sample: int  # nonzeros whose time tells that of more of them
    together: int  # columns of a pass that serves several runs, where it takes least time for each; 0: it gains nothing
    least_speed: float  # bytes a second of factor rows, or of nonzeros, that it takes at the very least

    @property
    def xp(self) -> Any:
        """The array module: NumPy or CuPy."""

    def stride(self, rank: int, itemsize: int) -> int:
        """Return the columns of a factor matrix of `rank` columns in memory, where kernels read items of that size."""

    def reading_bytes(self, size: int, copies: int) -> int:
        """Return the host memory that elements take on their way from a file: of a transfer of so many bytes in all.

        Threads make so many `copies` of what each has read.
        """

    def memory(self, local_ranks: int) -> int:
        """Bytes that a plan may count on, when so many ranks share the node."""

    def peak_bytes(self) -> int | None:
        """Most bytes of device memory in use at once since the last `rest`; None if it is the host's."""

    def rest(self) -> None:
        """Give back the memory that is kept for later use."""

    def trim(self) -> None:
        """Give back free memory: arrays of other sizes are needed next."""

    def empty(self, shape: tuple[int, ...], dtype: Any) -> Array:
        """Return a new array of unset contents."""

    def zeros(self, shape: tuple[int, ...], dtype: Any) -> Array:
        """Return a new array of zeros."""

    def to_device(self, array: NDArray[Any]) -> Array:
        """Return a copy (or, on the host, the array itself) in device memory."""

    def fill(self, targets: Sequence[Array], sources: Sequence[NDArray[Any]]) -> None:
        """Copy 1-d arrays in host memory into device arrays, perhaps of other types, at the full speed of the link."""

    def begin_fill(self, runs: Sequence[Sequence[tuple[Array, Write]]], whole: int) -> Callable[[], None]:
        """Begin to fill 1-d device arrays by what threads call; return what waits.

        They are all, or part of a transfer of `whole` bytes. One thread fills those of a run, one after the other. Each
        has at most `npy_file.PART` bytes. Work queued after waiting has them. On the host, all is done on return.
        """

    def lock(self, array: NDArray[Any]) -> object | None:
        """Let slots be filled from a C-contiguous array in host memory at once, at the full speed of the link, as long
        as what is returned lives. None if that cannot be: then `fill` does it."""

    def to_host(self, array: Array) -> NDArray[Any]:
        """Return the array's contents in host memory (on the host, the array itself)."""

    def side_stream(self) -> AbstractContextManager[None]:
        """Queue what is within after all that is queued, beside the work that is queued from now on, until `meet`."""

    def wait_side(self) -> None:
        """Let the work that is queued from now on wait for all that was queued beside."""

    def capture(self, queue: Callable[[], None], read: Array, clock: Any) -> Replay | None:
        """Return the work that `queue` queues, without doing it; None if the device does nothing ahead of the host.

        After each launch `read`, a (bytes,) uint8 array, is copied to the host, and a `clock` of this device has its
        seconds. Nothing in it may be allocated or wait for the host.
        """

    def slot(self, nbytes: int, clock: Any) -> Slot:
        """Return a buffer of so many bytes for streamed shards; its copies are counted by a `clock` of this device."""

    def clock(self) -> Clock:
        """Return a new clock."""

    def synchronize(self) -> None:
        """Wait until all queued work is done."""

    def collectives(self, comm: Comm) -> Collectives | None:
        """Return the device's own way between ranks that each have one, None if there is none. Collective."""
