"""A rank's block of a dense tensor for Tucker decompositions, processed in pieces on its device or from the host."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator
from copy import copy
from typing import TypeVar

import numpy as np

from partitioner.array_types import DType, FloatDType, Floats
from partitioner.host.threads import fair_threads, in_order, parallel_map
from partitioner.tensors.dense import DenseTensor
from partitioner.tensors.npy_file import BAND
from partitioner.tensors.statistics import ElementStatistics, joined
from partitioner.tensors.stored import Stored

from ...backend.blas import packing_bytes
from ...backend.contract import contracted
from ...backend.device import Array, Device
from ...backend.exchange import Machine
from .load import on_device

T = TypeVar("T")
HOST_PIECE, DEVICE_PIECE = 1 << 20, 1 << 26  # elements contracted at a time
FREED = 8  # bytes per element of a piece of freed host memory that a thread may not reuse
DOUBLE = np.dtype(np.float64)


def piece_elements(device: Device) -> int:
    """Return the number of elements contracted at a time, unless a single index of the cut mode has more."""
    return HOST_PIECE if device.on_host else DEVICE_PIECE


def _step(shape: tuple[int, ...], axis: int, device: Device) -> int:
    """Return the number of indices of a mode per piece."""
    return max(1, piece_elements(device) * shape[axis] // max(1, math.prod(shape)))


def _pieces(shape: tuple[int, ...], axis: int, device: Device) -> tuple[int, int]:
    """Return the number of elements per piece, a range of a mode, and the number of pieces."""
    length, step = max(1, shape[axis]), _step(shape, axis, device)
    return math.prod(shape) // length * min(step, length), -(-length // step)


def _copied(dtype: FloatDType, axis: int, device: Device, read: DType | None) -> int:
    """Return the bytes per element while a piece is copied and converted."""
    item, converted = dtype.itemsize, 0 if dtype == DOUBLE else DOUBLE.itemsize
    if not device.on_host:
        return DOUBLE.itemsize + (item if converted else 0)
    if read is not None:
        return read.itemsize + (item if read != dtype else 0) + converted
    return (item if axis else 0) + converted


def summed_bytes(
    shape: tuple[int, ...],
    axis: int,
    dtype: FloatDType,
    device: Device,
    threads: int,
    sums: tuple[int, int],
    read: DType | None = None,
) -> int:
    """Return the memory that `DenseBlock.summed` needs.

    Parameters
    ----------
    shape : tuple of int
        Shape of the block.
    axis : int
        The mode of which pieces are ranges.
    dtype : dtype
        Type of the block's elements.
    device : Device
    threads : int
    sums : (rows, columns)
        Shape of the sums, in double precision. Sums that are not square belong to an iteration with several passes.
    read : dtype, optional
        Type of elements in a file, if pieces are read from it.
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
    shape: tuple[int, ...], axis: int, rank: int, dtype: FloatDType, device: Device, threads: int
) -> int:
    """Return the memory that `DenseBlock.contracted` needs in addition to its result."""
    piece, count = _pieces(shape, 0, device)
    copied, together = _copied(dtype, 0, device, None), min(threads, count)
    each = copied * piece + 8 * (piece // max(1, shape[axis]) * rank)
    if device.on_host:
        each += packing_bytes(piece, rank)
        if copied and count > together:
            each += FREED * piece
    return together * each


class DenseBlock:
    """The C-contiguous elements of a rank; on a host, threads process pieces in parallel.

    Parameters
    ----------
    elements : array or `Stored`
    machine : Machine
    dtype : dtype
        Type of the elements on the device.
    resident : bool
        Whether elements stay on the device; otherwise each pass copies them there.
    """

    def __init__(self, elements: Array | Stored, machine: Machine, dtype: FloatDType, resident: bool = True) -> None:
        self._device, self._comm, self.dtype = machine.device, machine.comm, dtype
        self.shape: tuple[int, ...] = tuple(elements.shape)
        self._threads = fair_threads(machine.comm) if machine.device.on_host else 1
        self.resident, self._elements = resident, elements
        if resident and isinstance(elements, (np.ndarray, Stored)):
            self._elements = on_device(elements, dtype, dtype, self._device, self._threads)

    def _cuts(self, axis: int) -> list[slice]:
        """Return the ranges of a mode that are the pieces."""
        length, step = self.shape[axis], _step(self.shape, axis, self._device)
        return [slice(at, min(at + step, length)) for at in range(0, length if math.prod(self.shape) else 0, step)]

    def hold(self, elements: Array | Stored) -> None:
        """Replace the elements on the device by the same elements in host memory or a file, read in every pass."""
        self._elements, self.resident = elements, False

    def each(self, work: Callable[[slice, Array], T]) -> Iterator[T]:
        """Yield the results of `work` for all pieces, ranges of the first mode, in order.

        Each thread processes a piece, and at most as many results as threads are computed in advance.
        """

        def one(part: slice) -> T:
            return work(part, self._piece((part,), self.dtype))

        cuts = self._cuts(0)
        return in_order(one, cuts, max(1, min(self._threads, len(cuts))))

    def _piece(self, place: tuple[slice, ...], dtype: FloatDType) -> Array:
        args = self._elements[place]
        if isinstance(args, np.ndarray):
            result: Floats = np.ascontiguousarray(args, self.dtype)
            return self._device.to_device(result).astype(dtype, copy=False)
        return self._device.xp.ascontiguousarray(args, dtype)

    def summed(self, work: Callable[[Array, Array], object], shape: tuple[int, ...], axis: int = 0) -> Array:
        """Return the sums to which `work` adds all pieces, in double precision; pieces are ranges of a mode."""
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
        """Return the block times a transposed factor matrix in one mode other than the first, in double precision."""
        shape = (*self.shape[:axis], factor.shape[1], *self.shape[axis + 1 :])
        target, xp = self._device.empty(shape, DOUBLE), self._device.xp

        def work(part: slice) -> None:
            target[part] = contracted(xp, self._piece((part,), DOUBLE), factor, axis)

        parallel_map(work, self._cuts(0), self._threads)
        result = copy(self)
        result.shape, result.dtype, result._elements = shape, DOUBLE, target
        return result

    def statistics(self) -> ElementStatistics:
        """Return statistics of the stored elements."""
        return joined([DenseTensor(self._elements).facts(threads=self._threads)] if math.prod(self.shape) else [])

    @property
    def whole(self) -> Array:
        """All elements, on the device, in double precision."""
        return self._piece((slice(None),), DOUBLE)
