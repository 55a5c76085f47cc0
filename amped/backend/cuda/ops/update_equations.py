"""Least-squares updates of a model on a GPU: compiling and launching ``update_equations.cu``."""

from __future__ import annotations

from collections.abc import Sequence
from functools import cache
from typing import NamedTuple

import cupy
import numpy as np

from partitioner.array_types import FloatDType
from partitioner.cuda.code import allow_shared, load, prepare
from partitioner.cuda.cubins import CudaFunction, CudaSource

from ...device import Array
from ...ops.update_equations import UPDATE_EQUATIONS, Matrices, UpdateEquations, UpdateEquationsProvider
from ..device import CudaDevice
from ..launches.device_matrices import strides_of
from ..source import REALS, unit
from .gram import ADDED, gram_functions

MANY, THREADS, TILE = 1024, 256, 16  # as in update_equations.cu
MOST_COLUMNS = 64
MATRICES = 6  # per mode
ON_DEVICE = 3  # cudaMemcpyDeviceToDevice


class CudaUpdateEquations:
    """See `UpdateEquations`."""

    def __init__(self, device: CudaDevice, order: int, rank: int, dtype: FloatDType) -> None:
        self._device, self._order, self._rank, self._dtype = device, order, rank, dtype
        prepare([update_unit(rank, dtype, dtype)])
        entries = rank * rank
        size = order * entries  # of the members of `State` in update_equations.cu, which follow each other
        self._memory = cupy.zeros(MATRICES * size + 1 + 2 * entries, np.float64)
        self._products = self._memory[: 2 * size].reshape(order, 2, entries)
        self._others, self._result = self._memory[2 * size : 3 * size], self._memory[5 * size : 6 * size + 1]
        self._parts = cupy.empty((device.limits.processors, 2 * entries), np.float64)

    def set_gram(self, mode: int, gram: Array) -> None:
        target, stream = self._products[mode, 0], cupy.cuda.get_current_stream().ptr
        cupy.cuda.runtime.memcpyAsync(target.data.ptr, gram.data.ptr, gram.nbytes, ON_DEVICE, stream)

    def begin(self, others: Matrices) -> None:
        self._others.set(np.ascontiguousarray(others).reshape(-1))
        code = _compiled(self._rank, self._dtype, self._dtype, self._device.number)
        code.begin((self._order,), (MANY,), (self._memory, np.int32(self._order)))

    def solve(self, mode: int, sums: Array, before: Array, target: Array, keeps: bool) -> None:
        code, rank, rows = self._code(sums), self._rank, len(sums)
        state, total = (self._memory, np.int32(self._order)), self._products[mode]
        shared = 8 * 2 * rank * rank
        code.prepare((1,), (MANY,), (*state, np.int32(mode), np.int32(keeps)), shared_mem=shared)
        blocks = min(len(self._parts), -(-rows // TILE))
        if rows:
            stride, other = strides_of(sums, target)
            assert before.strides == target.strides
            arguments = *state, sums, stride, before, target, other, np.int64(rows), self._parts
            code.solve_rows((blocks,), (THREADS,), arguments, shared_mem=shared + 8 * 3 * TILE * rank)
        grid, add = (-(-total.size // ADDED),), gram_functions(self._dtype, self._device.number)[1]
        add(grid, (THREADS,), (self._parts, np.int32(blocks), np.int32(total.size), total))

    def changes(self) -> Matrices | None:
        result: Matrices = self._result.get()
        return None if result[-1] else result[:-1].reshape(self._order, self._rank, self._rank)

    def _code(self, sums: Array) -> UpdateCode:
        return _compiled(self._rank, self._dtype, sums.dtype, self._device.number)


class UpdateCode(NamedTuple):
    """Compiled functions of ``update_equations.cu``."""

    begin: CudaFunction
    prepare: CudaFunction
    solve_rows: CudaFunction


class CudaUpdateProvider:
    """See `UpdateEquationsProvider`."""

    def __init__(self, device: CudaDevice) -> None:
        self._device = device

    def suits(self, rank: int) -> bool:
        return rank <= MOST_COLUMNS and 8 * rank * (2 * rank + 3 * TILE) <= self._device.limits.shared

    def make(self, order: int, rank: int, dtype: FloatDType) -> UpdateEquations:
        return CudaUpdateEquations(self._device, order, rank, dtype)


@UPDATE_EQUATIONS.provider("cuda")
def providers(device: CudaDevice) -> Sequence[UpdateEquationsProvider]:
    """Return the providers of the operation."""
    return [CudaUpdateProvider(device)]


def update_unit(rank: int, dtype: FloatDType, summed: FloatDType) -> CudaSource:
    """Return the CUDA source for matrices of a type, and sums over elements of a type."""
    return unit("update_equations", {"RANK": rank, "REAL": REALS[dtype], "SUM": REALS[summed]})


@cache
def _compiled(rank: int, dtype: FloatDType, summed: FloatDType, device: int) -> UpdateCode:
    module = load(update_unit(rank, dtype, summed))
    code = UpdateCode(*map(module.get_function, UpdateCode._fields))
    for function in code[1:]:
        allow_shared(function)
    return code
