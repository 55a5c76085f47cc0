"""Copy large arrays between host memory and a GPU at the speed of the link.

Several threads copy pieces through page-locked memory, each on a separate stream: while one piece is in transfer, the
next is staged. The driver stages ordinary memory with one thread, at a fifth of that speed.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import contextmanager
from functools import cache
from queue import SimpleQueue
from threading import current_thread
from typing import Any

import cupy
import numpy as np
from numpy.typing import NDArray

from ..array_types import HostArray
from ..host.threads import submit
from ..tensors.npy_file import PART, READERS
from .pinned import pinned_empty

PIECE = 4 << 20  # bytes per transfer of an array
COPIERS = 6  # maximum number of copying threads; more are not faster
SLOTS = 2  # per copying thread, so that one is filled while the other is in transfer
READING_SLOTS = READERS + 2  # reading takes longer than a transfer

Array = Any
"""A device array; CuPy has no type annotations."""
Pending = Sequence[Future[None]]
"""Copies in progress."""
Part = tuple[Array, Callable[[HostArray], object]]
"""A device array, and a function that writes its content to host memory."""
Runs = Sequence[Sequence[Part]]


class PinnedSlot:
    """Page-locked memory for one piece in transfer."""

    def __init__(self, host: NDArray[np.uint8]) -> None:
        self.host = host
        self.stream = cupy.cuda.Stream(non_blocking=True)
        self.done = cupy.cuda.Event(block=True, disable_timing=True)


class PendingCopies:
    """Copies to the device in progress.

    If it is deleted before `wait`, the copies are cancelled, so that their targets can be freed.
    """

    def __init__(self, copies: Copies, runs: Runs, pending: Pending) -> None:
        self._copies, self._runs, self._pending = copies, runs, pending

    def wait(self) -> None:
        """Make the current stream wait for these copies."""
        self._copies.wait(self._pending)
        self._runs, self._pending = (), ()

    def __del__(self) -> None:
        if self._pending:
            self._copies.cancel(self._pending)


class Copies:
    """Copies between host memory and the current device.

    Parameters
    ----------
    name : str
        Name of the threads.
    threads : int
        Number of threads.
    slots : int
        Number of pieces in page-locked memory.
    piece : int
        Bytes per slot.
    """

    def __init__(self, name: str, threads: int, slots: int, piece: int) -> None:
        device, self._name = cupy.cuda.Device(), name
        self._pool = ThreadPoolExecutor(threads, name, initializer=device.use)
        self._piece, memory = piece, pinned_empty(slots * piece)  # one allocation, as locking memory is slow
        self.nbytes = memory.nbytes
        self._slots = [PinnedSlot(memory[at : at + piece]) for at in range(0, memory.nbytes, piece)]
        self._free = SimpleQueue[PinnedSlot]()
        for slot in self._slots:
            self._free.put(slot)

    def send(self, source: HostArray, target: Array) -> Pending:
        """Start to copy a 1-d array to the device, converting its type if necessary, after all work queued so far.

        `source` must not change until `wait` returns.
        """
        ready = cupy.cuda.get_current_stream().record()  # after previous users of the target's memory
        return [submit(self._pool, self._send, source[piece], target[piece], ready) for piece in self._pieces(target)]

    def _send(self, source: HostArray, target: Array, ready: object) -> None:
        self._write(lambda staged: np.copyto(staged, source, casting="same_kind"), target, ready)

    def begin(self, runs: Runs) -> PendingCopies:
        """Start to fill 1-d device arrays, each at most a slot in size, with what functions write to host memory.

        One thread processes the parts of a run in order.
        """
        ready = cupy.cuda.get_current_stream().record()

        def copy(run: Sequence[Part]) -> None:
            for target, write in run:
                self._write(write, target, ready)

        return PendingCopies(self, runs, [submit(self._pool, copy, run) for run in runs])

    def cancel(self, pending: Pending) -> None:
        """Cancel these copies; return when their targets are no longer written."""
        running = [each for each in pending if not each.cancel()]
        if current_thread().name.startswith(self._name):  # deleted by a copying thread, which cannot wait for itself
            return
        for piece in running:
            piece.exception()
        for slot in self._slots:
            slot.done.synchronize()

    def _write(self, write: Callable[[HostArray], object], target: Array, ready: object) -> None:
        with self._slot() as slot:
            staged = slot.host[: target.nbytes].view(target.dtype)
            write(staged)
            slot.stream.wait_event(ready)
            target.set(staged, stream=slot.stream)
            slot.done.record(slot.stream)

    def wait(self, pending: Pending) -> None:
        """Make the current stream wait for these copies."""
        for piece in pending:
            piece.result()
        stream = cupy.cuda.get_current_stream()
        for slot in self._slots:
            stream.wait_event(slot.done)

    def fetch(self, sources: Sequence[Array], targets: Sequence[HostArray]) -> None:
        """Copy 1-d arrays to the host, after all work queued so far."""
        ready = cupy.cuda.get_current_stream().record()
        fetched = [
            submit(self._pool, self._fetch, source[piece], target[piece], ready)
            for source, target in zip(sources, targets, strict=True)
            for piece in self._pieces(target)
        ]
        for each in fetched:
            each.result()

    def _fetch(self, source: Array, target: HostArray, ready: object) -> None:
        with self._slot() as slot:
            staged = slot.host[: target.nbytes].view(target.dtype)
            slot.stream.wait_event(ready)
            source.get(stream=slot.stream, out=staged, blocking=False)
            slot.done.record(slot.stream)
            slot.done.synchronize()
            np.copyto(target, staged)

    def _pieces(self, array: Any) -> Iterator[slice]:
        step = self._piece // array.itemsize
        return (slice(begin, min(begin + step, array.size)) for begin in range(0, array.size, step))

    @contextmanager
    def _slot(self) -> Iterator[PinnedSlot]:
        """Take the slot that has been free the longest, after its last transfer is complete."""
        slot = self._free.get()
        try:
            slot.done.synchronize()
            yield slot
        finally:
            self._free.put(slot)


@cache
def copies(device: int, threads: int) -> Copies:
    """Return the copies of the current device, created once per process, as page-locking is slow."""
    copiers = min(COPIERS, max(2, threads))
    return Copies("amped-copy", copiers, SLOTS * copiers, PIECE)


@cache
def readings(device: int) -> Copies:
    """Return the copies of the current device for data that threads read from files."""
    return Copies("amped-read", READERS, READING_SLOTS, PART)
