"""Copy large arrays between the host's memory and a GPU's at the speed of the link.

Threads move pieces through page-locked memory, each on a stream of its own: while one piece travels, the next is
staged. The driver's own copies from ordinary memory are staged by one thread, at a fifth of that speed.
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

from ..host.threads import submit
from ..tensors.npy_file import PART, READERS
from .pinned import pinned_empty

PIECE = 4 << 20  # bytes of one copy of an array
COPIERS = 6  # copying threads at most: more are not faster
SLOTS = 2  # per copying thread: one is in transfer while the other is filled
READING_SLOTS = READERS + 2  # reading takes longer than a transfer

Array = Any
"""An array on the device; CuPy has no types."""
Sent = Sequence[Future[None]]
"""Copies under way."""
Part = tuple[Array, Callable[[NDArray[Any]], object]]
"""An array on the device, and what writes to host memory what it is to hold."""
Runs = Sequence[Sequence[Part]]


class PinnedSlot:
    """Page-locked memory for one piece in transfer."""

    def __init__(self, host: NDArray[np.uint8]) -> None:
        self.host = host
        self.stream = cupy.cuda.Stream(non_blocking=True)
        self.done = cupy.cuda.Event(block=True, disable_timing=True)


class Coming:
    """Copies to the device that are under way. Once nobody waits for them, their targets' memory may serve others."""

    def __init__(self, through: Copies, runs: Runs, sent: Sent) -> None:
        self._through, self._runs, self._sent = through, runs, sent

    def wait(self) -> None:
        """See `Copies`."""
        self._through.wait(self._sent)
        self._runs, self._sent = (), ()

    def __del__(self) -> None:
        if self._sent:
            self._through.give_up(self._sent)


class Copies:
    """Copies between host memory and the current device, by so many `threads` of a name, through so many `slots`."""

    def __init__(self, name: str, threads: int, slots: int, piece: int) -> None:
        """Take page-locked memory for so many slots of `piece` bytes."""
        device, self._name = cupy.cuda.Device(), name
        self._pool = ThreadPoolExecutor(threads, name, initializer=device.use)
        self._piece, memory = piece, pinned_empty(slots * piece)  # together: locking costs more than the memory
        self.nbytes = memory.nbytes
        self._slots = [PinnedSlot(memory[at : at + piece]) for at in range(0, memory.nbytes, piece)]
        self._free = SimpleQueue[PinnedSlot]()
        for slot in self._slots:
            self._free.put(slot)

    def send(self, source: NDArray[Any], target: Array) -> Sent:
        """Start to copy a 1-d array to the device, perhaps as another type, after all work queued so far.

        `source` must not change until `wait` has returned.
        """
        ready = cupy.cuda.get_current_stream().record()  # what used the target's memory before
        return [submit(self._pool, self._send, source[piece], target[piece], ready) for piece in self._pieces(target)]

    def _send(self, source: NDArray[Any], target: Array, ready: Any) -> None:
        self._write(lambda staged: np.copyto(staged, source, casting="same_kind"), target, ready)

    def begin(self, runs: Runs) -> Coming:
        """Start to copy to 1-d arrays on the device, of at most a slot's bytes, what functions write to memory.

        One thread does those of a run, one after the other.
        """
        ready = cupy.cuda.get_current_stream().record()

        def copy(run: Sequence[Part]) -> None:
            for target, write in run:
                self._write(write, target, ready)

        return Coming(self, runs, [submit(self._pool, copy, run) for run in runs])

    def give_up(self, sent: Sent) -> None:
        """Return when nothing of these copies will be written any more."""
        going = [each for each in sent if not each.cancel()]
        if current_thread().name.startswith(self._name):  # which collects garbage, and would wait for itself
            return
        for piece in going:
            piece.exception()
        for slot in self._slots:
            slot.done.synchronize()

    def _write(self, write: Callable[[NDArray[Any]], object], target: Array, ready: Any) -> None:
        with self._slot() as slot:
            staged = slot.host[: target.nbytes].view(target.dtype)
            write(staged)
            slot.stream.wait_event(ready)
            target.set(staged, stream=slot.stream)
            slot.done.record(slot.stream)

    def wait(self, sent: Sent) -> None:
        """Make the current stream wait for these copies."""
        for piece in sent:
            piece.result()
        stream = cupy.cuda.get_current_stream()
        for slot in self._slots:
            stream.wait_event(slot.done)

    def fetch(self, sources: Sequence[Array], targets: Sequence[NDArray[Any]]) -> None:
        """Copy 1-d arrays to the host, after all work queued so far."""
        ready = cupy.cuda.get_current_stream().record()
        fetched = [
            submit(self._pool, self._fetch, source[piece], target[piece], ready)
            for source, target in zip(sources, targets, strict=True)
            for piece in self._pieces(target)
        ]
        for each in fetched:
            each.result()

    def _fetch(self, source: Array, target: NDArray[Any], ready: Any) -> None:
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
        """Take the slot free for longest, once its transfer is complete."""
        slot = self._free.get()
        try:
            slot.done.synchronize()
            yield slot
        finally:
            self._free.put(slot)


@cache
def copies(device: int, threads: int) -> Copies:
    """Return the copies of a device, the current one, made once in a process: page-locked memory is slow to make."""
    copiers = min(COPIERS, max(2, threads))
    return Copies("amped-copy", copiers, SLOTS * copiers, PIECE)


@cache
def readings(device: int) -> Copies:
    """Return the copies to a device, the current one, of what threads read from files."""
    return Copies("amped-read", READERS, READING_SLOTS, PART)
