"""A GPU as a device."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from typing import Any

import cupy
import numpy as np
from numpy.typing import DTypeLike, NDArray

from partitioner.array_types import FloatDType, HostArray
from partitioner.cuda import sort_keys
from partitioner.cuda.code import prepare
from partitioner.cuda.copies import READING_SLOTS, Copies, copies, readings
from partitioner.cuda.cubins import CudaSource
from partitioner.cuda.pinned import Locked
from partitioner.host.threads import usable_cores
from partitioner.tensors.npy_file import PART, READERS

from ...parallel.mpi import Comm
from ..blas import limit_blas
from ..device import Array, Collectives, Movable, Write
from . import padded_rows
from .clock import HIGHEST, CudaClock, untimed
from .layout import VECTOR, Limits
from .replay import CudaReplay
from .source import packer, unit

RUNTIME_BYTES = 600 << 20  # CUDA context, cuBLAS workspace and NCCL buffers
LARGE = 1 << 24  # copies of at least this many bytes are staged by threads, whose memory takes 20 ms to allocate


class CudaDevice:
    """See `Device`. Work is queued on the caller's current stream, copies from the host on a separate one."""

    name = folder = "cuda"
    xp = cupy
    on_host = False
    queues = True
    steady = True
    cores = 1
    host_bytes = 170 << 20  # includes staging memory
    code_bytes = 0
    sample = 1 << 26
    together = 256
    least_speed = 5e9

    def __init__(self, local_rank: int) -> None:
        # The host inverts only small matrices. One BLAS thread per core on every rank would cost 10 ms each.
        limit_blas(1)
        self._devices: int = cupy.cuda.runtime.getDeviceCount()
        device = cupy.cuda.Device(local_rank % self._devices)
        device.use()
        self.number: int = device.id  # among the devices visible to this process
        self.capability = int(device.compute_capability)  # 80 is 8.0
        self.identity = str(device.pci_bus_id)
        properties = cupy.cuda.runtime.getDeviceProperties(self.number)
        name = properties["name"].decode()
        self.description = f"{name} ({self.identity})"
        self.limits = Limits(
            properties["multiProcessorCount"], properties["sharedMemPerBlockOptin"], properties["l2CacheSize"]
        )
        self.model = f"{name}, {self.limits}"
        prepare(
            [unit("combine", {}), CudaSource("cuda_sort", sort_keys.text(), sort_keys.OPTIONS)]
        )  # needed by nearly every run
        self._copies = cupy.cuda.Stream(non_blocking=True)
        # Runs small work that others wait for ahead of kernels that fill the device.
        self._side_stream = cupy.cuda.Stream(non_blocking=True, priority=HIGHEST)
        self._done: Any = None  # event that `wait_side` waits for, if any
        self._pool = cupy.get_default_memory_pool()
        self._pool.free_all_blocks()
        self._resting_bytes: int = self._pool.total_bytes()
        self._peak_bytes = 0

    def stride(self, rank: int, itemsize: int) -> int:
        unit = VECTOR // itemsize
        return -(-rank // unit) * unit

    def rest(self) -> None:
        self._pool.free_all_blocks()
        self._peak_bytes = 0

    def reading_bytes(self, size: int, copies: int) -> int:
        return (READING_SLOTS + copies * READERS) * PART if size >= LARGE else (1 + copies) * size

    def memory(self, local_ranks: int) -> int:
        """See `Device`: memory in use plus an equal share of the free memory, minus the runtime's own needs."""
        free: int = cupy.cuda.runtime.memGetInfo()[0]
        return self._used_bytes() + free * 95 // 100 // max(1, -(-local_ranks // self._devices)) - RUNTIME_BYTES

    def peak_bytes(self) -> int:
        return max(self._peak_bytes, self._used_bytes())

    def _used_bytes(self) -> int:
        used: int = self._pool.total_bytes()
        return used - self._resting_bytes

    def trim(self) -> None:
        """See `Device`."""
        self._peak_bytes = max(self._peak_bytes, self._used_bytes())
        self._pool.free_all_blocks()

    def empty(self, shape: tuple[int, ...], dtype: DTypeLike) -> Array:
        return cupy.empty(shape, dtype)

    def zeros(self, shape: tuple[int, ...], dtype: DTypeLike) -> Array:
        return cupy.zeros(shape, dtype)

    def to_device(self, array: HostArray) -> Array:
        return cupy.asarray(array)

    def fill(self, targets: Sequence[Array], sources: Sequence[HostArray]) -> None:
        if sum(target.nbytes for target in targets) < LARGE:
            with np.errstate(over="ignore"):  # overflowing numbers become infinite; the caller rejects these
                for target, source in zip(targets, sources, strict=True):
                    target.set(np.ascontiguousarray(source, target.dtype))
            return
        staging = self._staging()
        pairs = zip(sources, targets, strict=True)
        staging.wait([piece for source, target in pairs for piece in staging.send(source, target)])

    def prepare(self, order: int, dtype: FloatDType) -> None:
        prepare([packer(order - 1, dtype)])

    def set_rows(self, target: Array, source: HostArray) -> None:
        """See `Device`: a small matrix without a kernel, for which CuPy would run a compiler."""
        rows = np.ascontiguousarray(source, target.dtype)
        if padded_rows.is_small(target):
            padded_rows.from_host(target, rows)
        else:
            target[...] = cupy.asarray(rows)

    def begin_fill(self, runs: Sequence[Sequence[tuple[Array, Write]]], whole: int) -> Callable[[], None]:
        if whole >= LARGE:
            return readings(self.number).begin(runs).wait
        for target, write in (part for run in runs for part in run):
            write(host_array := np.empty(target.shape, target.dtype))
            target.set(host_array)
        return lambda: None

    def lock(self, array: HostArray) -> object | None:
        """See `Device`: memory-mapped files are not locked, because that would load them completely."""
        if isinstance(array, np.memmap) or not array.nbytes:
            return None
        try:
            return Locked(array)
        except cupy.cuda.runtime.CUDARuntimeError:  # the limit of locked memory is reached, or others have locked it
            return None

    def to_host(self, array: Array) -> NDArray[Any]:
        if not array.flags.c_contiguous and padded_rows.is_small(array):
            return padded_rows.to_host(array)
        if array.nbytes < LARGE or not array.flags.c_contiguous:
            small: NDArray[Any] = cupy.asnumpy(array)
            return small
        result = np.empty(array.shape, array.dtype)
        self.fetch(array, result)
        return result

    def fetch(self, array: Array, result: NDArray[Any]) -> None:
        """Copy a contiguous array to host memory; threads copy from page-locked memory."""
        self._staging().fetch([array.reshape(-1)], [result.reshape(-1)])

    @contextmanager
    def side_stream(self) -> Iterator[None]:
        stream, before = self._side_stream, cupy.cuda.get_current_stream()
        stream.wait_event(before.record(untimed()))
        with stream:
            yield
        self._done = stream.record(untimed())

    def wait_side(self) -> None:
        if self._done is not None:
            cupy.cuda.get_current_stream().wait_event(self._done)
            self._done = None

    def capture(self, queue: Callable[[], None], read: Array, clock: CudaClock) -> CudaReplay:
        """See `Device`: captured as CUDA graphs."""
        return CudaReplay(queue, read, clock)

    def _staging(self) -> Copies:
        return copies(self.number, usable_cores() // self._devices)

    def slot(self, nbytes: int, clock: CudaClock) -> CudaSlot:
        return CudaSlot(nbytes, clock, self._copies)

    def clock(self) -> CudaClock:
        return CudaClock()

    def synchronize(self) -> None:
        cupy.cuda.get_current_stream().synchronize()

    def collectives(self, comm: Comm) -> Collectives | None:
        """See `Device`: NCCL, if installed."""
        try:
            from .nccl import connected
        except (ImportError, AttributeError):  # CuPy without NCCL
            return None
        return connected(comm)


class CudaSlot:
    """See `Slot`. Events order copies and kernels on the device; the host never waits."""

    def __init__(self, nbytes: int, clock: CudaClock, copies: Any) -> None:
        self._memory = cupy.empty(nbytes, np.uint8)
        self._clock, self._copies = clock, copies
        self._filled, self._released = (cupy.cuda.Event(disable_timing=True) for _ in range(2))
        self.release()
        self._shard: Any

    def fill(self, shard: Movable, mode: int) -> None:
        self._copies.wait_event(self._released)
        with self._clock.span_on(self._copies, "copy", mode), self._copies:
            self._shard = shard.copied(self._memory)
        self._filled.record(self._copies)

    def shard(self) -> Any:
        cupy.cuda.get_current_stream().wait_event(self._filled)
        return self._shard

    def release(self) -> None:
        self._released.record(cupy.cuda.get_current_stream())
