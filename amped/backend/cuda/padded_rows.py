"""Copies of matrices whose rows may be padded, by the copy engine: for a kernel CuPy would first run a compiler."""

from __future__ import annotations

import cupy
import numpy as np
from numpy.typing import NDArray

from partitioner.array_types import HostArray

from ..device import Array

SMALL = 1 << 20  # bytes: the copy engine is slow for many short rows
TO_DEVICE, TO_HOST, ON_DEVICE = 1, 2, 3  # cudaMemcpyKind
Place = tuple[int, int]  # an address, and the bytes from row to row


def is_small(array: Array) -> bool:
    """Return whether an array is a small matrix of adjacent columns."""
    if array.ndim != 2 or not 0 < array.nbytes <= SMALL:
        return False
    return bool(array.strides[1] == array.itemsize and array.strides[0] >= array.shape[1] * array.itemsize)


def from_host(target: Array, rows: HostArray) -> None:
    """Copy a C-contiguous matrix to a matrix on the device."""
    _copy(_place(target), (rows.ctypes.data, rows.strides[0]), target, TO_DEVICE)
    cupy.cuda.get_current_stream().synchronize()  # the caller may change page-locked memory


def to_host(source: Array) -> NDArray[np.generic]:
    """Return a copy of a matrix in host memory."""
    rows = np.empty(source.shape, source.dtype)
    _copy((rows.ctypes.data, rows.strides[0]), _place(source), source, TO_HOST)
    cupy.cuda.get_current_stream().synchronize()
    return rows


def on_device(target: Array, source: Array) -> None:
    """Queue the copy of a matrix to another one."""
    _copy(_place(target), _place(source), source, ON_DEVICE)


def _place(matrix: Array) -> Place:
    return matrix.data.ptr, matrix.strides[0]


def _copy(to: Place, source: Place, like: Array, kind: int) -> None:
    width, stream = like.shape[1] * like.itemsize, cupy.cuda.get_current_stream()
    cupy.cuda.runtime.memcpy2DAsync(*to, *source, width, len(like), kind, stream.ptr)
