"""Captured GPU work: CUDA graphs."""

from __future__ import annotations

from collections.abc import Callable
from contextlib import suppress

import cupy
import numpy as np
from numpy.typing import NDArray

from ..device import Array
from .clock import CudaClock, Marks, seconds_of, untimed

TO_HOST = 2  # cudaMemcpyDeviceToHost
AT_ONCE = 2  # launches queued at once; each has its own events and host memory


class CudaReplay:
    """See `Replay`."""

    def __init__(self, queue: Callable[[], None], read: Array, clock: CudaClock) -> None:
        self._queue, self._read, self._clock = queue, read, clock
        self._pool = cupy.cuda.MemoryPool()  # of temporary arrays, which no other work may use between launches
        self._graphs: list[_Graph] = []
        self._launched = self._waited = 0

    def launch(self) -> None:
        if len(self._graphs) < AT_ONCE:
            with cupy.cuda.using_allocator(self._pool.malloc):
                self._graphs.append(_Graph(self._queue, self._read, self._clock))
        self._graphs[self._launched % AT_ONCE].launch()
        self._launched += 1

    def wait(self) -> NDArray[np.uint8]:
        graph = self._graphs[self._waited % AT_ONCE]
        self._waited += 1
        graph.done.synchronize()
        self._clock.replayed(seconds_of(graph.marks.spans))
        return graph.result.copy()


class _Graph:
    """A graph of the captured work and of the copy of `read` to the host."""

    def __init__(self, queue: Callable[[], None], read: Array, clock: CudaClock) -> None:
        self.marks, self.done = Marks(), untimed()
        self.result = np.frombuffer(cupy.cuda.alloc_pinned_memory(read.nbytes), np.uint8, read.nbytes)
        stream = cupy.cuda.Stream(non_blocking=True)
        with stream, clock.capturing(self.marks):
            stream.begin_capture()
            try:
                queue()
                # CuPy's `get` is not allowed during a capture.
                cupy.cuda.runtime.memcpyAsync(self.result.ctypes.data, read.data.ptr, read.nbytes, TO_HOST, stream.ptr)
                self.marks.join()
            except BaseException:
                with suppress(cupy.cuda.runtime.CUDARuntimeError):  # it would hide the cause
                    stream.end_capture()
                raise
            self._graph = stream.end_capture()

    def launch(self) -> None:
        stream = cupy.cuda.get_current_stream()
        self._graph.launch(stream)
        self.done.record(stream)

    def __del__(self) -> None:
        self.done.synchronize()  # the graph writes to host memory that is freed afterwards
