"""A rank's block of a dense tensor, as Tucker decompositions read it: pieces, on its device or from the host."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator
from copy import copy
from typing import Any, TypeVar

import numpy as np
from numpy.typing import NDArray

from partitioner.host.threads import fair_threads, in_order, parallel_map
from partitioner.tensors.dense import DenseTensor, Stored
from partitioner.tensors.npy_file import BAND
from partitioner.tensors.statistics import ElementStatistics, joined

from ...backend.blas import packing_bytes
from ...backend.contract import contracted
from ...backend.device import Array, Device
from ...backend.exchange import Machine
from .load import on_device

T = TypeVar("T")
HOST_PIECE, DEVICE_PIECE = 1 << 20, 1 << 26  # elements that are contracted at once
FREED = 8  # bytes of host memory for each element of a piece that a thread has freed and does not use again, at most
DOUBLE = np.dtype(np.float64)


def piece_elements(device: Device) -> int:
    """Return how many elements are contracted at once, unless an index of the mode that is cut has more."""
    return HOST_PIECE if device.on_host else DEVICE_PIECE


def _step(shape: tuple[int, ...], axis: int, device: Device) -> int:
    """Return how many indices of a mode a piece has."""
    return max(1, piece_elements(device) * shape[axis] // max(1, math.prod(shape)))


def _pieces(shape: tuple[int, ...], axis: int, device: Device) -> tuple[int, int]:
    """Return the elements of a piece, a range of a mode, and the number of pieces."""
    length, step = max(1, shape[axis]), _step(shape, axis, device)
    return math.prod(shape) // length * min(step, length), -(-length // step)


def _copied(dtype: np.dtype[Any], axis: int, device: Device, read: np.dtype[Any] | None) -> int:
    """Return the bytes that an element of a piece takes while the piece is copied and converted."""
    item, converted = dtype.itemsize, 0 if dtype == DOUBLE else DOUBLE.itemsize
    if not device.on_host:
        return DOUBLE.itemsize + (item if converted else 0)
    if read is not None:
        return read.itemsize + (item if read != dtype else 0) + converted
    return (item if axis else 0) + converted


def summed_bytes(
    shape: tuple[int, ...],
    axis: int,
    dtype: np.dtype[Any],
    device: Device,
    threads: int,
    sums: tuple[int, int],
    read: np.dtype[Any] | None = None,
) -> int:
    """Return the bytes that `DenseBlock.summed` takes.

    Parameters
    ----------
    shape : tuple of int
        Of the block.
    axis : int
        The mode of which pieces are ranges.
    dtype : dtype
        In which the block is held.
    device : Device
    threads : int
    sums : (rows, columns)
        Of the sums, in double precision. Sums that are not square are of an iteration, with a pass in each step.
    read : dtype, optional
        In which elements are in a file, if pieces are read from there.
    """
    piece, count = _pieces(shape, axis, device)
    copied = _copied(dtype, axis, device, read)
    each, together = copied * piece + 2 * 8 * math.prod(sums), min(threads, count)
    if device.on_host:
        each += packing_bytes(piece, sums[1])
        if read is not None and axis:
            each += min(BAND, math.prod(shape) * read.itemsize)
        if copied and (count > together or sums[0] != sums[1]):
            each += FREED * piece
    return together * each


def contracted_bytes(
    shape: tuple[int, ...], axis: int, rank: int, dtype: np.dtype[Any], device: Device, threads: int
) -> int:
    """Return the bytes that `DenseBlock.contracted` takes beside its result, of `rank` indices in a mode."""
    piece, count = _pieces(shape, 0, device)
    copied, together = _copied(dtype, 0, device, None), min(threads, count)
    each = copied * piece + 8 * (piece // max(1, shape[axis]) * rank)
    if device.on_host:
        each += packing_bytes(piece, rank)
        if copied and count > together:
            each += FREED * piece
    return together * each


class DenseBlock:
    """Elements of a rank, C-contiguous; on a host, threads take pieces side by side.

    Parameters
    ----------
    elements : array or `Stored`
    machine : Machine
    dtype : dtype
        In which they are held on the device.
    resident : bool
        Whether they are to be on the device; else each pass copies them there.
    """

    def __init__(self, elements: Array | Stored, machine: Machine, dtype: np.dtype[Any], resident: bool = True) -> None:
        self._device, self._comm, self.dtype = machine.device, machine.comm, dtype
        self.shape: tuple[int, ...] = tuple(elements.shape)
        self._threads = fair_threads(machine.comm) if machine.device.on_host else 1
        self.resident, self._elements = resident, elements
        if resident and isinstance(elements, (np.ndarray, Stored)):
            self._elements = on_device(elements, dtype, dtype, self._device, self._threads)

    def _cuts(self, axis: int) -> list[slice]:
        """Return the pieces' ranges of a mode."""
        length, step = self.shape[axis], _step(self.shape, axis, self._device)
        return [slice(at, min(at + step, length)) for at in range(0, length if math.prod(self.shape) else 0, step)]

    def hold(self, elements: Array | Stored) -> None:
        """Take the same elements from host memory, or a file, in every pass; those on the device are let go."""
        self._elements, self.resident = elements, False

    def each(self, work: Callable[[slice, Array], T]) -> Iterator[T]:
        """Yield what `work` makes of all pieces, ranges of the first mode, in their order.

        Each thread has a piece, and at most as many results wait as there are threads.
        """

        def one(part: slice) -> T:
            return work(part, self._piece((part,), self.dtype))

        return in_order(one, self._cuts(0), self._threads)

    def _piece(self, place: tuple[slice, ...], dtype: np.dtype[Any]) -> Array:
        args = self._elements[place]
        if isinstance(args, np.ndarray):
            result: NDArray[Any] = np.ascontiguousarray(args, self.dtype)
            return self._device.to_device(result).astype(dtype, copy=False)
        return self._device.xp.ascontiguousarray(args, dtype)

    def summed(self, work: Callable[[Array, Array], object], shape: tuple[int, ...], axis: int = 0) -> Array:
        """Return what `work` adds of all pieces, in double precision, to sums; pieces are ranges of a mode."""
        cuts = self._cuts(axis)
        parts = [cuts[k :: self._threads] for k in range(min(self._threads, len(cuts)))]

        def some(mine: list[slice]) -> Array:
            total = self._device.zeros(shape, DOUBLE)
            for part in mine:
                work(self._piece((slice(None),) * axis + (part,), DOUBLE), total)
            return total

        result = parallel_map(some, parts, self._threads)
        total = result[0] if result else self._device.zeros(shape, DOUBLE)
        for other in result[1:]:
            total += other
        return total

    def contracted(self, factor: Array, axis: int) -> DenseBlock:
        """Return the block times the transpose of a factor matrix in one mode, but the first; in double precision."""
        shape = (*self.shape[:axis], factor.shape[1], *self.shape[axis + 1 :])
        target, xp = self._device.empty(shape, DOUBLE), self._device.xp

        def work(part: slice) -> None:
            target[part] = contracted(xp, self._piece((part,), DOUBLE), factor, axis)

        parallel_map(work, self._cuts(0), self._threads)
        result = copy(self)
        result.shape, result.dtype, result._elements = shape, DOUBLE, target
        return result

    def facts(self) -> ElementStatistics:
        """Return what is known of the elements as they are held."""
        return joined([DenseTensor(self._elements).facts(threads=self._threads)] if math.prod(self.shape) else [])

    @property
    def whole(self) -> Array:
        """All elements, on the device, in double precision."""
        return self._piece((slice(None),), DOUBLE)
