"""Host memory that a GPU copies from and to without the host's help: page-locked."""

from __future__ import annotations

import mmap
import weakref
from contextlib import suppress
from typing import Any

import cupy
import numpy as np
from numpy.typing import NDArray

from ..host.threads import side_by_side, usable_cores

TOUCHED = 1 << 26  # bytes that a thread touches at a time


class Locked:
    """Page-locked memory of an array, as long as it lives."""

    def __init__(self, array: NDArray[Any]) -> None:
        self._array = array  # is there as long
        cupy.cuda.runtime.hostRegister(array.ctypes.data, array.nbytes, 0)
        weakref.finalize(self, _unlock, array.ctypes.data).atexit = False


def pinned_empty(nbytes: int) -> NDArray[np.uint8]:
    """Return new page-locked memory.

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
