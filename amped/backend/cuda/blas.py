"""Matrix products of cuBLAS. CuPy's own calls refuse to be noted down in a CUDA graph; cuBLAS itself does not."""

from __future__ import annotations

import ctypes
from collections.abc import Callable
from functools import cache
from typing import Any

import cupy
import numpy as np
from cupy.cuda import cublas

from ..device import Array

SCRATCH_BYTES = 32 << 20  # of cuBLAS: as large as its own on a Hopper GPU; counted as the runtime's
MOST_AT_ONCE = 65535  # products
PER_MAJOR = 10000  # versions of cuBLAS that have one file name
LETTERS = {4: "S", 8: "D"}
PLACE, SIZE, STEP = ctypes.c_void_p, ctypes.c_int64, ctypes.c_longlong
PRODUCT = [PLACE, ctypes.c_int, ctypes.c_int, SIZE, SIZE, SIZE]  # handle, operations, and what is multiplied
GEMM = [*PRODUCT, PLACE, *2 * [PLACE, SIZE], PLACE, PLACE, SIZE]
BATCH = [*PRODUCT, PLACE, *2 * [PLACE, SIZE, STEP], PLACE, PLACE, SIZE, STEP, SIZE]
PARAMETERS = {
    "SetStream_v2": [PLACE, PLACE],
    "SetWorkspace_v2": [PLACE, PLACE, ctypes.c_size_t],
    "Sgemm_v2_64": GEMM,
    "Dgemm_v2_64": GEMM,
    **dict.fromkeys(("SgemmStridedBatched_64", "DgemmStridedBatched_64"), BATCH),
}


def multiply(matrix: Array, product: Array, out: Array, adds: bool, transposed: bool, beside: bool = False) -> None:
    """Queue ``out = matrix @ product``, or that of the transposed matrix, or add that to `out`.

    `beside`: while other products are computed, which take other scratch memory.
    """
    columns, (depth, rows) = product.shape[1], matrix.shape if transposed else matrix.shape[::-1]
    one, other = (_constant(number, matrix.dtype.char).ctypes.data for number in (1, int(adds)))
    _call(
        f"{LETTERS[matrix.itemsize]}gemm_v2_64", cublas.CUBLAS_OP_N, _operation(transposed), columns, rows, depth,
        one, *_matrix(product), *_matrix(matrix), other, *_matrix(out), beside=beside,
    )  # fmt: skip


def multiply_parts(
    matrix: Array, product: Array, parts: Array, count: int, rows: int, transposed: bool, beside: bool = False
) -> None:
    """Queue `count` products of equal shares of the depth: into `parts`, `rows` each, in turn. `beside`: see above."""
    columns, depth, pitch = product.shape[1], len(product) // count, matrix.strides[0] // matrix.itemsize
    one, none = (_constant(number, matrix.dtype.char).ctypes.data for number in (1, 0))
    step = depth * (pitch if transposed else 1)
    _call(
        f"{LETTERS[matrix.itemsize]}gemmStridedBatched_64", cublas.CUBLAS_OP_N, _operation(transposed),
        columns, rows, depth, one, *_matrix(product), depth * columns, *_matrix(matrix), step,
        none, *_matrix(parts), rows * columns, count, beside=beside,
    )  # fmt: skip


def multiply_each(matrices: Array, product: Array, out: Array, transposed: bool) -> None:
    """Queue ``out[i] = matrices[i] @ product`` for all i, or that of the transposed matrices."""
    (every, depth, rows), columns = matrices.shape, product.shape[1]
    depth, rows = (depth, rows) if transposed else (rows, depth)
    one, none = (_constant(number, matrices.dtype.char).ctypes.data for number in (1, 0))
    steps = [array.strides[0] // array.itemsize for array in (matrices, out)]
    for i in range(0, every, MOST_AT_ONCE):
        _call(
            f"{LETTERS[matrices.itemsize]}gemmStridedBatched_64", cublas.CUBLAS_OP_N, _operation(transposed),
            columns, rows, depth, one, *_matrix(product), 0, *_matrix(matrices[i]), steps[0],
            none, *_matrix(out[i]), steps[1], min(every - i, MOST_AT_ONCE),
        )  # fmt: skip


def _call(name: str, *arguments: Any, beside: bool = False) -> None:
    """Queue a call on the current stream, with scratch memory of its own: a graph then allocates nothing."""
    handle, stream = cupy.cuda.device.get_cublas_handle(), cupy.cuda.get_current_stream().ptr
    _function("SetStream_v2")(handle, stream)
    _function("SetWorkspace_v2")(handle, _scratch(cupy.cuda.runtime.getDevice(), beside).ptr, SCRATCH_BYTES)
    if status := _function(name)(handle, *arguments):
        raise RuntimeError(f"cublas{name}: status {status}")


@cache
def _function(name: str) -> Callable[..., int]:
    """Return a function of the library that CuPy has loaded."""
    version = cublas.getVersion(cupy.cuda.device.get_cublas_handle())
    found: Any = ctypes.CDLL(f"libcublas.so.{version // PER_MAJOR}")[f"cublas{name}"]
    found.argtypes = PARAMETERS[name]
    return found  # type: ignore[no-any-return]


@cache
def _scratch(device: int, beside: bool) -> Any:
    return cupy.cuda.MemoryPointer(cupy.cuda.Memory(SCRATCH_BYTES), 0)


def _operation(transposed: bool) -> int:
    return int(cublas.CUBLAS_OP_T if transposed else cublas.CUBLAS_OP_N)


@cache
def _constant(number: int, kind: str) -> Any:
    """Return a number that cuBLAS is given by its address."""
    return np.array(number, kind)


def _matrix(array: Array) -> tuple[int, int]:
    """Return a matrix as cuBLAS takes it: its address, and the numbers from row to row."""
    return array.data.ptr, array.strides[0] // array.itemsize
