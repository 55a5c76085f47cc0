"""One GPU as a device."""

from __future__ import annotations

import mmap
import weakref
from collections import defaultdict
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from dataclasses import replace
from typing import Any

import cupy
import numpy as np
import threadpoolctl
from numpy.typing import NDArray

from partitioner.threads import side_by_side, usable_cores

from .. import rows as dense
from ..base import NOTHING, Array, Clock, GatherName, Share
from . import coordinates, shard
from .coordinates import CoordinateShard
from .kernels import mttkrp, solve
from .layout import VECTOR, Layout, Limits, kernel_names, make_layout, shard_bytes, worthwhile
from .shard import CudaShard

AnyShard = CudaShard | CoordinateShard

TOUCHED = 1 << 26  # bytes of page-locked memory that a thread touches at a time

_to_bf16 = cupy.ElementwiseKernel(
    "float32 x", "uint16 y",
    "const unsigned b = __float_as_uint(x); y = isnan(x) ? 0x7fc0 : (b + 0x7fff + (b >> 16 & 1)) >> 16",
    "amped_to_bf16",
)  # fmt: skip


def _to_fp16(matrix: Array, out: Array) -> None:
    out.view(np.float16)[...] = matrix


class CudaBackend:
    """See `Backend`. Work is queued on the caller's current stream, copies from the host on one of their own."""

    name = "cuda"
    xp = cupy
    runtime_bytes = 600 << 20  # CUDA context, cuBLAS workspace, NCCL buffers
    most_nonzeros = 1 << 30
    repeatable: tuple[str, ...] = ("segmented", "fibre")
    steady = True
    keeps_scratch = False
    roundings: Mapping[GatherName, Callable[[Array, Array], object]] = {"fp16": _to_fp16, "bf16": _to_bf16}

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
        self._limits = Limits(
            properties["multiProcessorCount"], properties["sharedMemPerBlockOptin"], properties["l2CacheSize"]
        )
        self._copies = cupy.cuda.Stream(non_blocking=True)
        self._pool = cupy.get_default_memory_pool()
        self._pool.free_all_blocks()
        one = cupy.ones((1, 1))
        cupy.matmul(one, one)  # makes the cuBLAS handle and its workspace
        self._resting_bytes: int = self._pool.total_bytes()
        self._peak_bytes = 0

    def kernels(self, order: int) -> Sequence[str]:
        """See `Backend`."""
        return *kernel_names(order), *coordinates.KERNELS

    def stride(self, rank: int, itemsize: int) -> int:
        """See `Backend`."""
        unit = VECTOR // itemsize
        return -(-rank // unit) * unit

    def candidates(self, share: Share) -> tuple[str, ...]:
        """See `Backend`."""
        return worthwhile(share, self._limits)

    def rest(self) -> None:
        """See `Backend`."""
        self._pool.free_all_blocks()
        self._peak_bytes = 0

    def host_runtime_bytes(self, kernels: Collection[str]) -> int:
        """See `Backend`."""
        return 120 << 20

    def memory(self, local_ranks: int) -> int:
        """See `Backend`: an equal share of what is free, less the runtime's own need."""
        free: int = cupy.cuda.runtime.memGetInfo()[0]
        return free * 95 // 100 // max(1, -(-local_ranks // self._devices)) - self.runtime_bytes

    def peak_bytes(self) -> int:
        """See `Backend`."""
        return max(self._peak_bytes, self._held())

    def _held(self) -> int:
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

    def shard(self, columns: Sequence[Array], values: Array, share: Share, kernel: str, continues: bool) -> AnyShard:
        """See `Backend`."""
        made = self._make(columns, values, share, kernel, continues)
        self._free()
        return made

    def _make(self, columns: Sequence[Array], values: Array, share: Share, kernel: str, continues: bool) -> AnyShard:
        columns = [cupy.asarray(column, np.int32) for column in columns]
        values = cupy.asarray(values, share.dtype)
        if kernel in coordinates.KERNELS:
            return coordinates.make_shard(columns, values, share, kernel)
        layout = make_layout(kernel, share, self._limits)
        return shard.make_shard(columns, values, layout, share.rows.start, continues, self._limits)

    def permuted(self, shard: CoordinateShard, share: Share) -> CoordinateShard:
        """See `Backend`."""
        made = coordinates.permuted(shard, share)
        self._free()
        return made

    def _free(self) -> None:
        self._peak_bytes = max(self._peak_bytes, self._held())
        self._pool.free_all_blocks()  # blocks of other sizes are needed next

    def unload(self, shard: AnyShard) -> AnyShard:
        """See `Backend`: page-locked memory, which the copy engine reads at the full speed of the link."""
        pinned = pinned_empty(shard.nbytes)
        shard.memory.get(out=pinned)
        return replace(shard, memory=pinned)

    def shard_bytes(self, share: Share, nnz: int) -> int:
        """See `Backend`."""
        if share.kernels[0] in coordinates.KERNELS:
            return coordinates.shard_bytes(share, nnz)
        # The first one's bytes: what others take more than that is not used, or made anew with the first.
        layout = make_layout(share.kernels[0], share, self._limits)
        return shard_bytes(layout, nnz, self.most_nonzeros, self._limits) if nnz else 0

    def keeps_columns(self, share: Share) -> bool:
        """See `Backend`."""
        return False

    def packing_bytes(self, share: Share, nnz: int) -> int:
        """See `Backend`."""
        if share.kernels[0] in coordinates.KERNELS:
            return coordinates.packing_bytes(share, nnz)
        return max(shard.packing_bytes(layout, nnz) for layout in self._layouts(share))

    def scratch_bytes(self, share: Share, nnz: int) -> int:
        """See `Backend`."""
        if share.kernels[0] in coordinates.KERNELS:
            return coordinates.scratch_bytes(share, share.kernels[0])
        return max(mttkrp.scratch_bytes(layout, nnz, self._limits) for layout in self._layouts(share))

    def _layouts(self, share: Share) -> list[Layout]:
        return [make_layout(kernel, share, self._limits) for kernel in share.kernels]

    def slot(self, shares: Sequence[Share], capacity: int, clock: Clock) -> CudaSlot:
        """See `Backend`."""
        assert isinstance(clock, CudaClock)
        return CudaSlot(max(self.shard_bytes(share, capacity) for share in shares), clock, self._copies)

    def clock(self) -> CudaClock:
        """See `Backend`."""
        return CudaClock()

    def mttkrp(self, shard: AnyShard, factors: Sequence[Array], out: Array, new: slice = NOTHING) -> None:
        """See `Backend`."""
        if not shard.nnz:
            out[new] = 0
        elif isinstance(shard, CoordinateShard):
            out[new] = 0
            coordinates.mttkrp(shard, factors, out)
        else:
            mttkrp.mttkrp(shard, factors, out, new)

    def dense_blocks(self, rank: int) -> int:
        """See `Backend`: in one pass the parts of Gram matrices, which few rows have; a block for the first one."""
        return -(-(rank + 2) // solve.FEWEST) if solve.suits(rank, self._limits, self._device) else 3

    def solve(
        self, source: Array, inverse: Array, target: Array, gram: Array, largest: Array, dots: Array | None = None
    ) -> None:
        """See `Backend`."""
        if solve.suits(source.shape[1], self._limits, self._device):
            solve.solve(source, inverse, target, gram, largest, dots, self._limits)
        else:
            dense.solve(cupy, source, inverse, target, gram, largest, dots)

    def synchronize(self) -> None:
        """See `Backend`."""
        cupy.cuda.get_current_stream().synchronize()


class CudaSlot:
    """See `Slot`. Events order copies and kernels on the device; the host only queues."""

    def __init__(self, nbytes: int, clock: CudaClock, copies: Any) -> None:
        self._memory = cupy.empty(nbytes, np.uint8)
        self._clock, self._copies = clock, copies
        self._filled, self._released = (cupy.cuda.Event(disable_timing=True) for _ in range(2))
        self.release()
        self._shard: AnyShard

    def fill(self, shard: AnyShard, mode: int) -> None:
        """See `Slot`."""
        self._copies.wait_event(self._released)
        memory = self._memory[: shard.nbytes]
        with self._clock.span_on(self._copies, "copy", mode):
            memory.set(shard.memory, stream=self._copies)
        self._filled.record(self._copies)
        self._shard = replace(shard, memory=memory)

    def shard(self) -> AnyShard:
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


def pinned_empty(nbytes: int) -> NDArray[np.uint8]:
    """Return new page-locked host memory.

    It is made of huge pages where the system has them, and threads touch them side by side: CUDA's own allocation, one
    thread's, is what loading streamed nonzeros would take longest for.
    """
    if not nbytes:
        return np.empty(0, np.uint8)
    pages = mmap.mmap(-1, nbytes, mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS)
    with suppress(OSError):  # a kernel without huge pages
        pages.madvise(mmap.MADV_HUGEPAGE)
    memory = np.frombuffer(pages, np.uint8)
    pieces = [memory[at : at + TOUCHED : mmap.PAGESIZE] for at in range(0, nbytes, TOUCHED)]
    threads = usable_cores() // cupy.cuda.runtime.getDeviceCount()
    side_by_side(lambda piece: piece.fill(0), pieces, max(1, threads))
    cupy.cuda.runtime.hostRegister(memory.ctypes.data, nbytes, 0)
    weakref.finalize(memory, _unlock, memory.ctypes.data).atexit = False
    return memory


def _unlock(address: int) -> None:
    cupy.cuda.runtime.deviceSynchronize()  # it may still be copied from
    cupy.cuda.runtime.hostUnregister(address)
