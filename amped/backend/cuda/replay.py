"""Work that a GPU has noted down: CUDA graphs."""

from __future__ import annotations

from collections.abc import Callable
from contextlib import suppress

import cupy
import numpy as np
from numpy.typing import NDArray

from ..device import Array
from .clock import CudaClock, Marks, seconds_of, untimed

TO_HOST = 2  # cudaMemcpyDeviceToHost
AT_ONCE = 2  # launches that may be queued: each has its own events, and memory that it writes on the host


class CudaReplay:
    """See `Replay`."""

    def __init__(self, queue: Callable[[], None], read: Array, clock: CudaClock) -> None:
        self._queue, self._read, self._clock = queue, read, clock
        self._graphs: list[_Graph] = []
        self._launched = self._waited = 0

    def launch(self) -> None:
        if len(self._graphs) < AT_ONCE:
            self._graphs.append(_Graph(self._queue, self._read, self._clock))
        self._graphs[self._launched % AT_ONCE].launch()
        self._launched += 1

    def wait(self) -> NDArray[np.uint8]:
        graph = self._graphs[self._waited % AT_ONCE]
        self._waited += 1
        graph.done.synchronize()
        self._clock.replayed(seconds_of(graph.marks.spans))
        return graph.told.copy()


class _Graph:
    """A graph of the work, and of the copy of what is to be read."""

    def __init__(self, queue: Callable[[], None], read: Array, clock: CudaClock) -> None:
        self.marks, self.done = Marks(), untimed()
        self.told = np.frombuffer(cupy.cuda.alloc_pinned_memory(read.nbytes), np.uint8, read.nbytes)
        stream = cupy.cuda.Stream(non_blocking=True)
        with stream, clock.noting(self.marks):
            stream.begin_capture()
            try:
                queue()
                # Not by `get`, which CuPy refuses here.
                cupy.cuda.runtime.memcpyAsync(self.told.ctypes.data, read.data.ptr, read.nbytes, TO_HOST, stream.ptr)
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
        self.done.synchronize()  # or memory that it writes would be given to others
