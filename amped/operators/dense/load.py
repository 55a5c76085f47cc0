"""Copying of a dense tensor's elements to a device, from an array or from a file that threads read."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator
from itertools import islice
from typing import Any

import numpy as np

from partitioner.array_types import DType, HostArray
from partitioner.host.threads import parallel_map
from partitioner.tensors.npy_file import PART, READERS, RUN
from partitioner.tensors.statistics import ElementStatistics, facts_of
from partitioner.tensors.stored import Place, Stored, expect, forget, pieces

from ...backend.device import Array, Device
from ...backend.ops.dense import RowLayout

PIECE = 1 << 24  # elements copied at a time
MAPPED = 1 << 22  # elements copied at a time from a memory-mapped file
AHEAD = 4  # pieces of a memory-mapped file that the system reads in advance

Look = Callable[[HostArray], object] | None
"""Called with elements after reading, to compute their statistics."""


def on_device(
    elements: Any,
    dtype: DType,
    sent: DType,
    device: Device,
    threads: int,
    rows: RowLayout | None = None,
    look: Look = None,
) -> Array:
    """Return elements in device memory, of type `dtype`, C-contiguous or in padded rows; unchanged if they are already.

    Otherwise elements are transferred as type `sent` and converted by the device; on the host, threads copy them.
    `look` is called with elements that are read into host memory.
    """
    native = type(elements) is device.xp.ndarray
    if native and rows is None and elements.dtype == dtype and elements.flags.c_contiguous:
        return elements
    target = device.empty(elements.shape, dtype) if rows is None else _in_rows(elements.shape, dtype, rows, device)
    if native and not device.on_host:
        target[...] = elements
    elif sent != dtype or rows is not None:
        _convert(target, elements, sent, device)
        device.trim()
    elif device.on_host and not isinstance(elements, Stored):
        parallel_map(lambda place: _copy(target, elements, place), list(_places(elements)), threads)
    else:
        begin_copy(target, elements, device, look)()
    return target


def _in_rows(shape: tuple[int, ...], dtype: DType, rows: RowLayout, device: Device) -> Array:
    """Return an array in padded rows; the padding is zero."""
    every = device.zeros((math.prod(shape[: rows.split]), rows.pitch), dtype)
    return every[:, : math.prod(shape[rows.split :])].reshape(shape)


def begin_copy(
    target: Array, elements: HostArray | Stored, device: Device, look: Look = None, whole: int | None = None
) -> Callable[[], None]:
    """Start copying elements to a C-contiguous device array, converting types; return a function that waits.

    The elements are all or part of a transfer of `whole` bytes. If a file stores plain elements, a GPU continues
    meanwhile; otherwise the copy is complete on return.
    """
    if isinstance(elements, Stored) and elements.plain:
        size = PART * RUN if device.on_host else PART  # a host needs no parts
        places = list(pieces(elements.shape, (), size // max(target.itemsize, elements.dtype.itemsize)))
        parts = [(target[place].reshape(-1), _reading(elements.within(place), look)) for place in places]
        run = 1 if device.on_host else max(1, min(RUN, 2 * len(parts) // READERS))  # for at least half of the threads
        runs = [parts[at : at + run] for at in range(0, len(parts), run)]
        return device.begin_fill(runs, target.nbytes if whole is None else whole)
    for to, part in _parts(target, elements):
        if look is not None:
            look(part)
        device.fill([to.reshape(-1)], [np.ascontiguousarray(part).reshape(-1)])
        del part  # before the next one is read
    return lambda: None


def _reading(part: Stored, look: Look) -> Callable[[HostArray], None]:
    """Return a function that reads a part into memory and passes it to `look`."""

    def read(buffer: HostArray) -> None:
        part.into(buffer.reshape(part.shape), look)

    return read


def known_of(block: HostArray, shape: tuple[int, ...]) -> ElementStatistics:
    """Return statistics of some elements of a tensor of that shape, without their positions."""
    return facts_of(block.reshape(-1), (slice(0, block.size),), (math.prod(shape),))


def _convert(target: Array, elements: HostArray | Stored, sent: DType, device: Device) -> None:
    """Copy elements as type `sent`, and convert or pad them on the device while others are copied."""
    whole = math.prod(elements.shape) * sent.itemsize
    buffers = device.empty((2, max(1, min(PIECE, math.prod(elements.shape)) // 2)), sent)
    coming: list[tuple[Array, Array, Callable[[], None]]] = []
    for number, place in enumerate(pieces(elements.shape, (), buffers.shape[1])):
        part = elements.within(place) if isinstance(elements, Stored) else elements[place]
        buffer = buffers[number % 2, : math.prod(part.shape)].reshape(part.shape)
        coming.append((target[place], buffer, begin_copy(buffer, part, device, whole=whole)))
        if number:
            _converted(*coming.pop(0))
    for each in coming:
        _converted(*each)


def _converted(to: Array, buffer: Array, wait: Callable[[], None]) -> None:
    wait()
    to[...] = buffer


def _parts(target: Array, elements: HostArray | Stored) -> Iterator[tuple[Array, HostArray]]:
    """Yield parts of the target array and the elements to copy to them."""
    coming = _places(elements) if isinstance(elements, np.memmap) else iter(())
    _expect(elements, coming, AHEAD)
    for place in _places(elements):
        _expect(elements, coming, 1)
        part = elements[place]
        yield target[place], part
        forget(part)
        del part


def _expect(elements: HostArray | Stored, coming: Iterator[Place], count: int) -> None:
    """Ask the system to read the next parts of a memory-mapped file."""
    for place in islice(coming, count):
        expect(elements[place])


def _places(elements: HostArray | Stored) -> Iterator[Place]:
    """Yield the slices of the parts that are copied at a time; parts of memory-mapped files are smaller."""
    return pieces(elements.shape, (), MAPPED if isinstance(elements, np.memmap) else PIECE)


def _copy(target: Array, elements: HostArray, place: Place) -> None:
    part = elements[place]
    expect(part)
    with np.errstate(over="ignore"):  # the caller checks the range
        np.copyto(target[place], part, casting="same_kind")
    forget(part)
