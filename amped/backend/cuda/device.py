"""One GPU as a device."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from typing import Any

import cupy
import numpy as np
import threadpoolctl
from numpy.typing import NDArray

from ..base import Array, Clock, Shard
from .mttkrp import KERNELS, VECTOR, mttkrp, scratch_bytes

PADDING = 32  # nonzeros: kernels load several at once, also past the end


class CudaBackend:
    """See `Backend`. Work is queued on the caller's current stream, copies from the host on one of their own."""

    name = "cuda"
    xp = cupy
    kernels: Sequence[str] = KERNELS
    vector_bytes = VECTOR
    runtime_bytes = 600 << 20  # CUDA context, cuBLAS workspace, NCCL buffers
    host_runtime_bytes = 120 << 20
    dense_blocks = 3

    def __init__(self, local_rank: int) -> None:
        # The host inverts small matrices only; a BLAS thread for each core on every rank would cost 10 ms for each.
        threadpoolctl.threadpool_limits(1)
        devices: int = cupy.cuda.runtime.getDeviceCount()
        self._device = cupy.cuda.Device(local_rank % devices)
        self._device.use()
        self._devices = devices
        self.identity = str(self._device.pci_bus_id)
        properties = cupy.cuda.runtime.getDeviceProperties(self._device.id)
        self.description = f"{properties['name'].decode()} ({self.identity})"
        self._copies = cupy.cuda.Stream(non_blocking=True)
        self._pool = cupy.get_default_memory_pool()
        self._pool.free_all_blocks()
        one = cupy.ones((1, 1))
        cupy.matmul(one, one)  # makes the cuBLAS handle and its workspace
        self._resting_bytes: int = self._pool.total_bytes()

    def memory(self, local_ranks: int) -> int:
        """See `Backend`: an equal share of what is free, less the runtime's own need."""
        free: int = cupy.cuda.runtime.memGetInfo()[0]
        return free * 95 // 100 // max(1, -(-local_ranks // self._devices)) - self.runtime_bytes

    def peak_bytes(self) -> int:
        """See `Backend`: the memory pool gives nothing back, so what it holds is its peak."""
        held: int = self._pool.total_bytes()
        return held - self._resting_bytes

    def empty(self, shape: tuple[int, ...], dtype: Any) -> Array:
        """See `Backend`."""
        return cupy.empty(shape, dtype)

    def zeros(self, shape: tuple[int, ...], dtype: Any) -> Array:
        """See `Backend`."""
        return cupy.zeros(shape, dtype)

    def to_device(self, array: NDArray[Any]) -> Array:
        """See `Backend`."""
        return cupy.asarray(array)

    def to_host(self, array: Array) -> NDArray[Any]:
        """See `Backend`."""
        result: NDArray[Any] = cupy.asnumpy(array)
        return result

    def source(self, host: NDArray[Any], dtype: Any) -> NDArray[Any]:
        """See `Backend`: page-locked memory, which the copy engine reads at the full speed of the link."""
        pinned = pinned_empty(host.size, dtype)
        np.copyto(pinned, host, casting="same_kind")
        return pinned

    def column(self, host: NDArray[Any], dtype: Any) -> Array:
        """See `Backend`."""
        column = cupy.empty(-(-host.size // PADDING) * PADDING, dtype)
        column[: host.size].set(np.ascontiguousarray(host, dtype))
        return column

    def slot(self, order: int, capacity: int, dtype: Any, clock: Clock) -> CudaSlot:
        """See `Backend`."""
        assert isinstance(clock, CudaClock)
        return CudaSlot(order, capacity, dtype, clock, self._copies)

    def clock(self) -> CudaClock:
        """See `Backend`."""
        return CudaClock()

    def scratch_bytes(self, nnz: int, stride: int) -> int:
        """See `Backend`."""
        return scratch_bytes(nnz, stride)

    def mttkrp(self, shard: Shard, factors: Sequence[Array], out: Array, row_begin: int, kernel: str) -> None:
        """See `Backend`."""
        mttkrp(shard, factors, out, row_begin, kernel)

    def synchronize(self) -> None:
        """See `Backend`."""
        cupy.cuda.get_current_stream().synchronize()


class CudaSlot:
    """See `Slot`. Events order copies and kernels on the device; the host only queues."""

    def __init__(self, order: int, capacity: int, dtype: Any, clock: CudaClock, copies: Any) -> None:
        size = -(-capacity // PADDING) * PADDING
        self._indices = [cupy.empty(size, np.int32) for _ in range(order)]
        self._values = cupy.empty(size, dtype)
        self._clock, self._copies = clock, copies
        self._filled, self._released = (cupy.cuda.Event(disable_timing=True) for _ in range(2))
        self.release()
        self._staging: dict[int, NDArray[Any]] = {}
        self._shard = Shard(self._indices, self._values, 0, False)

    def fill(self, indices: Sequence[NDArray[np.int32]], values: NDArray[Any], continues: bool, mode: int) -> None:
        """See `Slot`."""
        staged = [self._staged(k, array) for k, array in enumerate((*indices, values))]
        self._copies.wait_event(self._released)
        with self._clock.span_on(self._copies, "copy", mode):
            for source, target in zip(staged, (*self._indices, self._values), strict=True):
                target[: source.size].set(source, stream=self._copies)
        self._filled.record(self._copies)
        self._shard = Shard(self._indices, self._values, values.size, continues)

    def _staged(self, k: int, array: NDArray[Any]) -> NDArray[Any]:
        """Return `array` in pinned memory: itself, or a copy where it is (say) a file mapped into memory."""
        target = (*self._indices, self._values)[k]
        if not array.size or (array.dtype == target.dtype and is_pinned(array)):
            return array
        if k not in self._staging:
            self._staging[k] = pinned_empty(target.size, target.dtype)
        self._filled.synchronize()  # the last copy out of this buffer
        np.copyto(self._staging[k][: array.size], array, casting="same_kind")
        return self._staging[k][: array.size]

    def shard(self) -> Shard:
        """See `Slot`."""
        cupy.cuda.get_current_stream().wait_event(self._filled)
        return self._shard

    def release(self) -> None:
        """See `Slot`."""
        self._released.record(cupy.cuda.get_current_stream())


class CudaClock:
    """See `Clock`. Times are taken by events, so nothing waits until they are collected."""

    def __init__(self) -> None:
        self._spans: list[tuple[str, int, Any, Any]] = []
        self._spare: list[Any] = []

    @contextmanager
    def span(self, kind: str, mode: int) -> Iterator[None]:
        """See `Clock`."""
        with self.span_on(cupy.cuda.get_current_stream(), kind, mode):
            yield

    @contextmanager
    def span_on(self, stream: Any, kind: str, mode: int) -> Iterator[None]:
        """Count the work queued on another stream."""
        start, stop = (self._spare.pop() if self._spare else cupy.cuda.Event() for _ in range(2))
        start.record(stream)
        try:
            yield
        finally:
            stop.record(stream)
            self._spans.append((kind, mode, start, stop))

    def collect(self) -> dict[tuple[str, int], float]:
        """See `Clock`."""
        seconds: dict[tuple[str, int], float] = defaultdict(float)
        for kind, mode, start, stop in self._spans:
            stop.synchronize()
            seconds[kind, mode] += cupy.cuda.get_elapsed_time(start, stop) * 1e-3
            self._spare += [start, stop]
        self._spans.clear()
        return dict(seconds)


def pinned_empty(size: int, dtype: Any) -> NDArray[Any]:
    """Return a new array in page-locked host memory."""
    nbytes = size * np.dtype(dtype).itemsize
    if not nbytes:
        return np.empty(0, dtype)
    return np.frombuffer(cupy.cuda.alloc_pinned_memory(nbytes), dtype, size)


def is_pinned(array: NDArray[Any]) -> bool:
    """Tell whether the copy engine can read `array` directly."""
    attributes = cupy.cuda.runtime.pointerGetAttributes(array.ctypes.data)
    return bool(attributes.type == cupy.cuda.runtime.memoryTypeHost) and array.flags.c_contiguous
