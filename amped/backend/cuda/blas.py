"""Matrix products by cuBLAS. CuPy's own functions cannot be captured in a CUDA graph; cuBLAS itself can."""

from __future__ import annotations

import ctypes
from collections.abc import Callable
from functools import cache
from typing import Any

import cupy
import numpy as np
from cupy.cuda import cublas

from partitioner.array_types import HostArray

from ..device import Array

SCRATCH_BYTES = 32 << 20  # of cuBLAS: the size that it uses itself on a Hopper GPU; accounted for in RUNTIME_BYTES
MOST_AT_ONCE = 65535  # products per call
PER_MAJOR = 10000  # the file name has the version divided by this
LETTERS = {4: "S", 8: "D"}
POINTER, SIZE, STEP = ctypes.c_void_p, ctypes.c_int64, ctypes.c_longlong
# Parameters of all products: handle, operations, sizes.
PRODUCT = [POINTER, ctypes.c_int, ctypes.c_int, SIZE, SIZE, SIZE]
GEMM = [*PRODUCT, POINTER, *2 * [POINTER, SIZE], POINTER, POINTER, SIZE]
BATCH = [*PRODUCT, POINTER, *2 * [POINTER, SIZE, STEP], POINTER, POINTER, SIZE, STEP, SIZE]
PARAMETERS = {
    "SetStream_v2": [POINTER, POINTER],
    "SetWorkspace_v2": [POINTER, POINTER, ctypes.c_size_t],
    "Sgemm_v2_64": GEMM,
    "Dgemm_v2_64": GEMM,
    **dict.fromkeys(("SgemmStridedBatched_64", "DgemmStridedBatched_64"), BATCH),
}


def multiply(matrix: Array, product: Array, out: Array, adds: bool, transposed: bool, concurrent: bool = False) -> None:
    """Queue ``out = matrix @ product``, with the matrix transposed if `transposed`; add to `out` if `adds`.

    `concurrent`: the call may overlap with other products, so it uses separate scratch memory.
    """
    columns, (depth, rows) = product.shape[1], matrix.shape if transposed else matrix.shape[::-1]
    one, other = (_constant(number, matrix.dtype.char).ctypes.data for number in (1, int(adds)))
    _call(
        f"{LETTERS[matrix.itemsize]}gemm_v2_64", cublas.CUBLAS_OP_N, _operation(transposed), columns, rows, depth,
        one, *_matrix(product), *_matrix(matrix), other, *_matrix(out), concurrent=concurrent,
    )  # fmt: skip


def multiply_parts(
    matrix: Array, product: Array, parts: Array, count: int, rows: int, transposed: bool, concurrent: bool = False
) -> None:
    """Queue `count` products of equal parts of the summed dimension, each into the next `rows` rows of `parts`."""
    columns, depth, pitch = product.shape[1], len(product) // count, matrix.strides[0] // matrix.itemsize
    one, none = (_constant(number, matrix.dtype.char).ctypes.data for number in (1, 0))
    step = depth * (pitch if transposed else 1)
    _call(
        f"{LETTERS[matrix.itemsize]}gemmStridedBatched_64", cublas.CUBLAS_OP_N, _operation(transposed),
        columns, rows, depth, one, *_matrix(product), depth * columns, *_matrix(matrix), step,
        none, *_matrix(parts), rows * columns, count, concurrent=concurrent,
    )  # fmt: skip


def multiply_each(matrices: Array, product: Array, out: Array, transposed: bool) -> None:
    """Queue ``out[i] = matrices[i] @ product`` for all i, with the matrices transposed if `transposed`."""
    (count, depth, rows), columns = matrices.shape, product.shape[1]
    depth, rows = (depth, rows) if transposed else (rows, depth)
    one, none = (_constant(number, matrices.dtype.char).ctypes.data for number in (1, 0))
    steps = [array.strides[0] // array.itemsize for array in (matrices, out)]
    for i in range(0, count, MOST_AT_ONCE):
        _call(
            f"{LETTERS[matrices.itemsize]}gemmStridedBatched_64", cublas.CUBLAS_OP_N, _operation(transposed),
            columns, rows, depth, one, *_matrix(product), 0, *_matrix(matrices[i]), steps[0],
            none, *_matrix(out[i]), steps[1], min(count - i, MOST_AT_ONCE),
        )  # fmt: skip


def _call(name: str, *arguments: object, concurrent: bool = False) -> None:
    """Queue a call on the current stream with preallocated scratch memory, so that a graph allocates nothing."""
    handle, stream = cupy.cuda.device.get_cublas_handle(), cupy.cuda.get_current_stream().ptr
    _function("SetStream_v2")(handle, stream)
    _function("SetWorkspace_v2")(handle, _scratch(cupy.cuda.runtime.getDevice(), concurrent).ptr, SCRATCH_BYTES)
    if status := _function(name)(handle, *arguments):
        raise RuntimeError(f"cublas{name}: status {status}")


@cache
def _function(name: str) -> Callable[..., int]:
    """Return a function of the cuBLAS library that CuPy has loaded."""
    version = cublas.getVersion(cupy.cuda.device.get_cublas_handle())
    function: Any = ctypes.CDLL(f"libcublas.so.{version // PER_MAJOR}")[f"cublas{name}"]
    function.argtypes = PARAMETERS[name]
    return function  # type: ignore[no-any-return]


@cache
def _scratch(device: int, concurrent: bool) -> cupy.cuda.MemoryPointer:
    return cupy.cuda.MemoryPointer(cupy.cuda.Memory(SCRATCH_BYTES), 0)


def _operation(transposed: bool) -> int:
    return int(cublas.CUBLAS_OP_T if transposed else cublas.CUBLAS_OP_N)


@cache
def _constant(number: int, kind: str) -> HostArray:
    """Return a number in memory; cuBLAS takes its address."""
    return np.array(number, kind)


def _matrix(array: Array) -> tuple[int, int]:
    """Return a matrix's address and leading dimension; the distance between rows is arbitrary if there is only one."""
    return array.data.ptr, max(array.strides[0] // array.itemsize, array.shape[1])
