"""Elements of a dense tensor on their way to a device: from an array, or a file that is read ahead."""

from __future__ import annotations

import math
from collections.abc import Iterator
from itertools import islice
from typing import Any

import numpy as np
from numpy.typing import NDArray

from partitioner.dense import Place, Stored, expect, forget, pieces
from partitioner.threads import side_by_side

from ..backend.base import Array, Device
from ..backend.dense import Rows

PIECE = 1 << 24  # elements that are copied at once
MAPPED = 1 << 22  # of a file that is mapped
AHEAD = 4  # pieces of such a file that the system reads ahead


def on_device(
    elements: Any, dtype: np.dtype[Any], sent: np.dtype[Any], device: Device, threads: int, rows: Rows | None = None
) -> Array:
    """Return elements in device memory, of a type, in such rows or C-contiguous; as they are, if they are like that.

    Others are `sent` as that type, which the device converts; the host's are copied by threads.
    """
    there = type(elements) is device.xp.ndarray
    if there and rows is None and elements.dtype == dtype and elements.flags.c_contiguous:
        return elements
    target = device.empty(elements.shape, dtype) if rows is None else _in_rows(elements.shape, dtype, rows, device)
    if there and not device.on_host:
        target[...] = elements
    elif sent != dtype or rows is not None:
        _convert(target, elements, sent, device)
    elif device.on_host and not isinstance(elements, Stored):
        side_by_side(lambda place: _copy(target, elements, place), list(_places(elements)), threads)
    else:
        copy(target, elements, device)
    return target


def _in_rows(shape: tuple[int, ...], dtype: np.dtype[Any], rows: Rows, device: Device) -> Array:
    """Return an array that lies in rows with gaps, which are zero."""
    every = device.zeros((math.prod(shape[: rows.split]), rows.pitch), dtype)
    return every[:, : math.prod(shape[rows.split :])].reshape(shape)


def copy(target: Array, elements: NDArray[Any] | Stored, device: Device) -> None:
    """Copy elements into a C-contiguous array of a device, perhaps of another type."""
    for to, part in _parts(target, elements):
        device.fill([to.reshape(-1)], [np.ascontiguousarray(part).reshape(-1)])


def _convert(target: Array, elements: NDArray[Any] | Stored, sent: np.dtype[Any], device: Device) -> None:
    """Copy elements as they are, or as another type, and convert them on the device, or leave gaps there."""
    room = device.empty((min(PIECE, math.prod(elements.shape)),), sent)
    for to, part in _parts(target, elements):
        device.fill([room[: to.size]], [np.ascontiguousarray(part).reshape(-1)])
        to[...] = room[: to.size].reshape(to.shape)


def _parts(target: Array, elements: NDArray[Any] | Stored) -> Iterator[tuple[Array, NDArray[Any]]]:
    """Yield parts of an array, and what is to be copied there."""
    coming = _places(elements) if isinstance(elements, np.memmap) else iter(())
    _expect(elements, coming, AHEAD)
    for place in _places(elements):
        _expect(elements, coming, 1)
        part = elements[place]
        yield target[place], part
        forget(part)


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
    np.copyto(target[place], part, casting="same_kind")
    forget(part)
