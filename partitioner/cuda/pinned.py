"""Page-locked host memory, which a GPU can read and write directly."""

from __future__ import annotations

import mmap
import weakref
from contextlib import suppress

import cupy
import numpy as np
from numpy.typing import NDArray

from ..array_types import HostArray
from ..host.threads import parallel_map, usable_cores

TOUCH_BYTES = 1 << 26  # bytes whose pages a thread touches at a time


class Locked:
    """Page-locks the memory of an array for its own lifetime."""

    def __init__(self, array: HostArray) -> None:
        self._array = array  # keeps the array alive
        cupy.cuda.runtime.hostRegister(array.ctypes.data, array.nbytes, 0)
        weakref.finalize(self, _unlock, array.ctypes.data).atexit = False


def pinned_empty(nbytes: int) -> NDArray[np.uint8]:
    """Return new page-locked memory.

    It consists of huge pages if available, which several threads touch in parallel. CUDA's allocator uses one thread,
    which would dominate the time to load streamed nonzeros.
    """
    if not nbytes:
        return np.empty(0, np.uint8)
    pages = mmap.mmap(-1, nbytes, mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS)
    with suppress(OSError):  # no huge pages
        pages.madvise(mmap.MADV_HUGEPAGE)
    memory = np.frombuffer(pages, np.uint8)
    pieces = [memory[at : at + TOUCH_BYTES : mmap.PAGESIZE] for at in range(0, nbytes, TOUCH_BYTES)]
    threads = usable_cores() // cupy.cuda.runtime.getDeviceCount()
    parallel_map(lambda piece: piece.fill(0), pieces, max(1, threads))
    cupy.cuda.runtime.hostRegister(memory.ctypes.data, nbytes, 0)
    weakref.finalize(memory, _unlock, memory.ctypes.data).atexit = False
    return memory


def _unlock(address: int) -> None:
    cupy.cuda.runtime.deviceSynchronize()  # transfers may still use it
    cupy.cuda.runtime.hostUnregister(address)
