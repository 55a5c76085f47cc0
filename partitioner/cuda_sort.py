"""Sort nonzeros on a GPU: upload columns in pieces, sort, download in pieces.

Threads copy the pieces through page-locked memory, each on its own stream: indices are packed while other columns
are still uploading, and pieces are gathered while others download.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import contextmanager
from functools import cache
from queue import SimpleQueue
from typing import Any, Unpack

import cupy
import numpy as np
from numpy.typing import NDArray

from .cubins import Source
from .cuda_code import load
from .errors import InputError
from .sort import How, Sorted, result_room, sort_nonzeros
from .tables import Indices, Values
from .words import KERNELS, MOST, OPTIONS, passes, place_bits, text

PIECE = 4 << 20  # bytes of one copy
COPIERS = 8  # copying threads at most: more are not faster
SLOTS = 2  # per copying thread: one is in transfer while the other is filled
SORTING = 40  # scratch bytes a nonzero: word, radix sort and position; merging needs no more
FREE_SHARE = 0.9  # of the device's free memory
THREADS = 256  # of a block

Array = Any
"""An array on the device; CuPy has no types."""


class CudaSorter:
    """The `Sorter` of one GPU: `local_rank`, this rank's number on its node, modulo the number of GPUs.

    Nonzeros that do not fit its memory are sorted on the CPU. Its `identity`, the PCI bus ID, is unique on its node.
    """

    def __init__(self, local_rank: int, threads: int) -> None:
        self._device = cupy.cuda.Device(local_rank % cupy.cuda.runtime.getDeviceCount())
        self.identity = str(self._device.pci_bus_id)
        copiers = min(COPIERS, max(2, threads))
        self._pool = ThreadPoolExecutor(copiers, initializer=self._device.use)
        with _memory_errors(), self._device:
            _functions(self._device.id)  # before threads ask for them
            self._stream, self._ready = _stream(), _event()
            self._slots = [_Slot() for _ in range(SLOTS * copiers)]
        self._free = SimpleQueue[_Slot]()
        for slot in self._slots:
            self._free.put(slot)
        # A first sort loads and compiles the kernels, so that free memory is measured after it.
        self._room = PIECE
        self.sort(np.array([[0, 1, 1]], np.int32), np.array([0.0, 1.0, 1.0]), [0], [2], merge=True)

    def share_memory(self, ranks: int) -> None:
        """Limit this rank to an equal share of the GPU's free memory, among `ranks` ranks."""
        with self._device:
            free: int = cupy.cuda.runtime.memGetInfo()[0]
        self._room = int(FREE_SHARE * free) // ranks

    def most(self, order: int, dtype: np.dtype[Any]) -> int:
        """See `Sorter`."""
        return min(MOST, self._room // (4 * order + dtype.itemsize + SORTING))

    def sort(
        self, columns: Indices, values: Values, modes: Sequence[int], lengths: Sequence[int], **how: Unpack[How]
    ) -> Sorted:
        """See `sort_nonzeros`."""
        order, nonzeros = columns.shape
        dtype = how.get("dtype") or values.dtype
        if not 0 < nonzeros <= self.most(order, dtype):
            return sort_nonzeros(columns, values, modes, lengths, **how)
        with _memory_errors(), self._device, self._stream:
            table, numbers = cupy.empty(columns.shape, np.int32), cupy.empty(nonzeros, dtype)
            needed = [*reversed(modes), *(m for m in range(order) if m not in modes)]
            sent = {m: self._send(columns[m], table[m]) for m in needed}
            sent_values = self._send(values, numbers)
            places = self._order(table, modes, lengths, lambda mode: self._wait(sent[mode]))
            self._wait(sum(sent.values(), sent_values))
            distinct = nonzeros
            if how.get("merge"):
                places, distinct = _merge(table, numbers, places)
            self._ready.record()
            result = result_room(columns, values, places.size, dtype, how.get("overwrite", False))
            self._fetch([*table, numbers], places, [*result[0], result[1]])
        room = len(self._slots) * PIECE
        return Sorted(*result, room, nonzeros - distinct, distinct - places.size)

    def _order(self, table: Array, modes: Sequence[int], lengths: Sequence[int], wait: Callable[[int], None]) -> Array:
        """Return the sorting permutation; call `wait` for each column before it is used."""
        nonzeros = table.shape[1]
        places, mask = None, np.uint64((1 << place_bits(nonzeros)) - 1)
        for fields in passes(modes, lengths, nonzeros):
            words = cupy.arange(nonzeros, dtype=np.uint64)
            for mode, down, bits, up in fields:
                wait(mode)
                low = np.uint64((1 << bits) - 1)
                _launch("join", nonzeros, table[mode], _pointer(places), np.int32(down), low, np.int32(up), words)
            words.sort()  # a radix sort, as the words are integers
            after = cupy.empty(nonzeros, np.uint32)
            _launch("split", nonzeros, words, mask, _pointer(places), after)
            places = after
        return places

    def _send(self, source: NDArray[Any], target: Array) -> list[Future[None]]:
        """Start copying an array to the device."""
        return [self._pool.submit(self._send_piece, source[piece], target[piece]) for piece in _pieces(target)]

    def _send_piece(self, source: NDArray[Any], target: Array) -> None:
        with self._slot() as slot:
            staged = slot.host[: target.nbytes].view(target.dtype)
            np.copyto(staged, source, casting="same_kind")
            target.set(staged, stream=slot.stream)
            slot.done.record(slot.stream)

    def _wait(self, sent: Sequence[Future[None]]) -> None:
        """Make the stream wait for these copies."""
        for piece in sent:
            piece.result()
        for slot in self._slots:
            self._stream.wait_event(slot.done)

    def _fetch(self, sources: Sequence[Array], places: Array, targets: Sequence[NDArray[Any]]) -> None:
        """Gather arrays in sorted order and copy them to the host."""
        fetched = [
            self._pool.submit(self._fetch_piece, source, places[piece], target[piece])
            for source, target in zip(sources, targets, strict=True)
            for piece in _pieces(places, source.itemsize)
        ]
        for piece in fetched:
            piece.result()

    def _fetch_piece(self, source: Array, places: Array, target: NDArray[Any]) -> None:
        with self._slot() as slot, slot.stream:
            nbytes = places.size * source.itemsize
            picked, staged = slot.device[:nbytes].view(source.dtype), slot.host[:nbytes].view(source.dtype)
            slot.stream.wait_event(self._ready)
            _launch(f"gather_{8 * source.itemsize}", places.size, source, places, picked)
            picked.get(stream=slot.stream, out=staged, blocking=False)
            slot.done.record(slot.stream)
            slot.done.synchronize()
            np.copyto(target, staged)

    @contextmanager
    def _slot(self) -> Iterator[_Slot]:
        """Take the slot free for longest, once its transfer is complete."""
        slot = self._free.get()
        try:
            slot.done.synchronize()
            yield slot
        finally:
            self._free.put(slot)


class _Slot:
    """Buffers for one piece in transfer: page-locked host memory and device memory."""

    def __init__(self) -> None:
        memory = cupy.cuda.PinnedMemoryPointer(cupy.cuda.PinnedMemory(PIECE), 0)
        self.host = np.frombuffer(memory, np.uint8, PIECE)
        self.device = cupy.empty(PIECE, np.uint8)
        self.stream, self.done = _stream(), _event()


def _merge(table: Array, numbers: Array, places: Array) -> tuple[Array, int]:
    """Sum nonzeros of equal indices into the first of them.

    Returns the permutation without zero sums, and the number of distinct coordinates.
    """
    order, nonzeros = table.shape
    first = cupy.empty(nonzeros, np.bool_)
    _launch("mark", nonzeros, table, np.int32(order), places, first)
    starts = cupy.flatnonzero(first)
    del first
    kept = cupy.empty(starts.size, np.bool_)
    _launch(f"add_up_{8 * numbers.itemsize}", starts.size, numbers, places, starts, np.int64(nonzeros), kept)
    if starts.size < nonzeros:
        places = places[starts]
    return (places if kept.all() else places[kept]), int(starts.size)


def _pieces(array: Array, itemsize: int = 0) -> Iterator[slice]:
    step = PIECE // (itemsize or array.itemsize)
    return (slice(begin, min(begin + step, array.size)) for begin in range(0, array.size, step))


def _launch(name: str, threads: int, *arguments: Any) -> None:
    """Launch a kernel on the current stream; the number of threads is appended to its arguments."""
    function = _functions(cupy.cuda.runtime.getDevice())[name]
    function((-(-threads // THREADS),), (THREADS,), (*arguments, np.int64(threads)))


def _pointer(array: Array | None) -> Any:
    return np.uint64(0) if array is None else array


@cache
def _functions(device: int) -> dict[str, Any]:
    module = load(Source("cuda_sort", text(), OPTIONS))
    return {name: module.get_function(name) for name in KERNELS}


def _stream() -> Any:
    return cupy.cuda.Stream(non_blocking=True)


def _event() -> Any:
    return cupy.cuda.Event(block=True, disable_timing=True)


@contextmanager
def _memory_errors() -> Iterator[None]:
    try:
        yield
    except cupy.cuda.memory.OutOfMemoryError as error:
        raise InputError(f"--device cuda: {error}") from None
