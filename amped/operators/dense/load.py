"""Elements of a dense tensor on their way to a device: from an array, or a file that threads read."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator
from itertools import islice
from typing import Any

import numpy as np
from numpy.typing import NDArray

from partitioner.host.threads import parallel_map
from partitioner.tensors.dense import Place, Stored, expect, forget, pieces
from partitioner.tensors.npy_file import PART, READERS, RUN
from partitioner.tensors.statistics import ElementStatistics, facts_of

from ...backend.device import Array, Device
from ...backend.ops.dense import RowLayout

PIECE = 1 << 24  # elements that are copied at once
MAPPED = 1 << 22  # of a file that is mapped
AHEAD = 4  # pieces of such a file that the system reads ahead

Look = Callable[[NDArray[Any]], object] | None
"""What is called with elements as they were read, if they are to be looked at."""


def on_device(
    elements: Any,
    dtype: np.dtype[Any],
    sent: np.dtype[Any],
    device: Device,
    threads: int,
    rows: RowLayout | None = None,
    look: Look = None,
) -> Array:
    """Return elements in device memory, of a type, in such rows or C-contiguous; as they are, if they are like that.

    Others are `sent` as that type, which the device converts; the host's are copied by threads. Those that are read to
    the host's memory may be looked at on their way.
    """
    there = type(elements) is device.xp.ndarray
    if there and rows is None and elements.dtype == dtype and elements.flags.c_contiguous:
        return elements
    target = device.empty(elements.shape, dtype) if rows is None else _in_rows(elements.shape, dtype, rows, device)
    if there and not device.on_host:
        target[...] = elements
    elif sent != dtype or rows is not None:
        _convert(target, elements, sent, device)
        device.trim()
    elif device.on_host and not isinstance(elements, Stored):
        parallel_map(lambda place: _copy(target, elements, place), list(_places(elements)), threads)
    else:
        begin_copy(target, elements, device, look)()
    return target


def _in_rows(shape: tuple[int, ...], dtype: np.dtype[Any], rows: RowLayout, device: Device) -> Array:
    """Return an array that lies in rows with gaps, which are zero."""
    every = device.zeros((math.prod(shape[: rows.split]), rows.pitch), dtype)
    return every[:, : math.prod(shape[rows.split :])].reshape(shape)


def begin_copy(
    target: Array, elements: NDArray[Any] | Stored, device: Device, look: Look = None, whole: int | None = None
) -> Callable[[], None]:
    """Begin to copy elements into a C-contiguous array of a device, perhaps of another type; return what waits for it.

    They are all, or part of a transfer of `whole` bytes. A device with memory of its own goes on meanwhile, where a
    file has elements as they are; else all is done at once.
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


def _reading(part: Stored, look: Look) -> Callable[[NDArray[Any]], None]:
    """Return what reads a part into memory, and looks at it."""

    def read(room: NDArray[Any]) -> None:
        part.into(room.reshape(part.shape), look)

    return read


def known_of(block: NDArray[Any], shape: tuple[int, ...]) -> ElementStatistics:
    """Return what is known of some elements of a tensor of that shape; where they lie is not told."""
    return facts_of(block.reshape(-1), (slice(0, block.size),), (math.prod(shape),))


def _convert(target: Array, elements: NDArray[Any] | Stored, sent: np.dtype[Any], device: Device) -> None:
    """Copy elements as they are, or as another type, and convert them there, or leave gaps, while others come."""
    whole = math.prod(elements.shape) * sent.itemsize
    rooms = device.empty((2, max(1, min(PIECE, math.prod(elements.shape)) // 2)), sent)
    coming: list[tuple[Array, Array, Callable[[], None]]] = []
    for number, place in enumerate(pieces(elements.shape, (), rooms.shape[1])):
        part = elements.within(place) if isinstance(elements, Stored) else elements[place]
        room = rooms[number % 2, : math.prod(part.shape)].reshape(part.shape)
        coming.append((target[place], room, begin_copy(room, part, device, whole=whole)))
        if number:
            _converted(*coming.pop(0))
    for each in coming:
        _converted(*each)


def _converted(to: Array, room: Array, wait: Callable[[], None]) -> None:
    wait()
    to[...] = room


def _parts(target: Array, elements: NDArray[Any] | Stored) -> Iterator[tuple[Array, NDArray[Any]]]:
    """Yield parts of an array, and what is to be copied there."""
    coming = _places(elements) if isinstance(elements, np.memmap) else iter(())
    _expect(elements, coming, AHEAD)
    for place in _places(elements):
        _expect(elements, coming, 1)
        part = elements[place]
        yield target[place], part
        forget(part)
        del part


def _expect(elements: NDArray[Any] | Stored, coming: Iterator[Place], count: int) -> None:
    """Let the system read the next parts of a mapped file."""
    for place in islice(coming, count):
        expect(elements[place])


def _places(elements: NDArray[Any] | Stored) -> Iterator[Place]:
    """Yield where parts are that are copied at once; those of a file that is mapped are smaller."""
    return pieces(elements.shape, (), MAPPED if isinstance(elements, np.memmap) else PIECE)


def _copy(target: Array, elements: NDArray[Any], place: Place) -> None:
    part = elements[place]
    expect(part)
    with np.errstate(over="ignore"):  # whoever wants them knows how large they may be
        np.copyto(target[place], part, casting="same_kind")
    forget(part)
