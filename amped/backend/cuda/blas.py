"""Matrix products of cuBLAS. CuPy's own calls refuse to be noted down in a CUDA graph; cuBLAS itself does not."""

from __future__ import annotations

import ctypes
from functools import cache
from typing import Any

import cupy
import numpy as np
from cupy.cuda import cublas

from ..base import Array

SCRATCH_BYTES = 32 << 20  # of cuBLAS: as large as its own on a Hopper GPU; counted as the runtime's
PER_MAJOR = 10000  # versions of cuBLAS that have one file name
LETTERS = {4: "S", 8: "D"}


def multiply(matrix: Array, product: Array, out: Array, adds: bool, transposed: bool) -> None:
    """Queue ``out = matrix @ product``, or that of the transposed matrix, or add that to `out`."""
    columns, (depth, rows) = product.shape[1], matrix.shape if transposed else matrix.shape[::-1]
    one, other = _scalars(matrix, 1, int(adds))
    name = f"cublas{LETTERS[matrix.itemsize]}gemm_v2_64"
    _call(
        name, cublas.CUBLAS_OP_N, _operation(transposed), *_integers(columns, rows, depth),
        one, *_matrix(product), *_matrix(matrix), other, *_matrix(out),
    )  # fmt: skip


def multiply_parts(matrix: Array, product: Array, parts: Array, count: int, rows: int, transposed: bool) -> None:
    """Queue `count` products of equal shares of the depth: into `parts`, `rows` each, one after the other."""
    columns, depth, pitch = product.shape[1], len(product) // count, matrix.strides[0] // matrix.itemsize
    one, none = _scalars(matrix, 1, 0)
    steps = [ctypes.c_longlong(n) for n in (depth * columns, depth * (pitch if transposed else 1), rows * columns)]
    name = f"cublas{LETTERS[matrix.itemsize]}gemmStridedBatched_64"
    _call(
        name, cublas.CUBLAS_OP_N, _operation(transposed), *_integers(columns, rows, depth),
        one, *_matrix(product), steps[0], *_matrix(matrix), steps[1],
        none, *_matrix(parts), steps[2], *_integers(count),
    )  # fmt: skip


def _call(name: str, *arguments: Any) -> None:
    """Queue a call on the current stream, with scratch memory of its own: a graph then allocates nothing."""
    handle, stream = ctypes.c_void_p(cupy.cuda.device.get_cublas_handle()), cupy.cuda.get_current_stream().ptr
    scratch, size = _scratch(cupy.cuda.runtime.getDevice()), ctypes.c_size_t(SCRATCH_BYTES)
    _check("cublasSetStream_v2", handle, ctypes.c_void_p(stream))
    _check("cublasSetWorkspace_v2", handle, ctypes.c_void_p(scratch.ptr), size)
    _check(name, handle, *arguments)


def _check(name: str, *arguments: Any) -> None:
    status = getattr(_library(), name)(*arguments)
    if status:
        raise RuntimeError(f"{name}: status {status}")


@cache
def _library() -> ctypes.CDLL:
    """Return the library that CuPy has loaded."""
    version = cublas.getVersion(cupy.cuda.device.get_cublas_handle())
    return ctypes.CDLL(f"libcublas.so.{version // PER_MAJOR}")


@cache
def _scratch(device: int) -> Any:
    return cupy.cuda.MemoryPointer(cupy.cuda.Memory(SCRATCH_BYTES), 0)


def _operation(transposed: bool) -> int:
    return int(cublas.CUBLAS_OP_T if transposed else cublas.CUBLAS_OP_N)


def _scalars(like: Array, *numbers: int) -> list[ctypes.c_void_p]:
    """Return where numbers are; cuBLAS has read them once a call has returned, and they live as long as the process."""
    return [ctypes.c_void_p(_constant(number, like.dtype.char).ctypes.data) for number in numbers]


@cache
def _constant(number: int, kind: str) -> Any:
    return np.array(number, kind)


def _integers(*numbers: int) -> list[ctypes.c_int64]:
    return [ctypes.c_int64(number) for number in numbers]


def _matrix(array: Array) -> tuple[ctypes.c_void_p, ctypes.c_int64]:
    """Return a matrix as cuBLAS takes it: its address, and the numbers from row to row."""
    return ctypes.c_void_p(array.data.ptr), ctypes.c_int64(array.strides[0] // array.itemsize)
