"""The normal equations of CP-ALS for large ranks: compiling and launching ``equations_large.cu``."""

from __future__ import annotations

from functools import cache
from types import ModuleType
from typing import ClassVar, NamedTuple

import cupy
import numpy as np

from partitioner.array_types import FloatDType
from partitioner.cuda.code import allow_shared, load
from partitioner.cuda.cubins import CudaFunction, CudaSource

from ...device import Array
from ...normal_equations.inverse import widened
from ...normal_equations.row_solvers import RowSolvers
from ...ops.equations import EquationsCase
from ..device import CudaDevice
from ..source import REALS, by_value, unit
from .device_matrices import DeviceMatrices, addresses, strides_of

THREADS, COLUMNS = 256, 32  # as in block_cholesky.cuh and equations_large.cu
SIDES = 64, 32  # rows and columns of a square submatrix
STATIC_SHARED = 4 << 10  # bytes of static shared memory of a sweeping thread block, at most
DOT_BLOCKS, FIT_BLOCKS = 64, 128
EACH = 8  # numbers per thread in elementwise kernels
MOST_BLOCKS = 1024


class LargeEquationsCode(NamedTuple):
    """Compiled code."""

    prepare: CudaFunction
    sweep: CudaFunction
    unpack: CudaFunction
    settle: CudaFunction
    constrain: CudaFunction
    finish: CudaFunction
    add_squares: CudaFunction
    fit: CudaFunction
    add_dots: CudaFunction
    keep: CudaFunction


class WideEquations(DeviceMatrices):
    """See `Equations`; of one run. A matrix is inverted square by square, by a block of threads for each."""

    inverting: ClassVar[ModuleType] = cupy

    def __init__(self, device: CudaDevice, case: EquationsCase) -> None:
        rank, side = case.terms.rank, side_of(device)
        super().__init__(device, case, rank, DOT_BLOCKS)
        self._rows = RowSolvers(device, case)
        self.allocates = self._rows.allocates
        self._functions = _compiled(case.dtype, side, device.number)
        self._rank, self._squares = np.int32(rank), -(-rank // side)
        self._shared = swept_bytes(side)
        self._matrices = cupy.empty((2, *2 * [self._squares * side]), np.float64)
        self._parts = cupy.zeros(parts_of(self._squares), np.float64)
        sizes = np.array([rank, self._squares], np.int32)
        self._wide = by_value(addresses([*self._matrices, self._parts]), sizes)
        self._blocks = min(MOST_BLOCKS, -(-rank * rank // (EACH * THREADS)))  # of threads

    def prepare(self, mode: int, double: bool = False) -> None:
        if mode in self._bounds.nonnegative:
            self._constrain(mode)
            return
        squares, one = 2 * (self._squares,), (THREADS,)
        self._functions.prepare(squares, one, (self._state, self._wide, np.int32(mode), self._ridge(mode)))
        for k in range(self._squares):
            self._functions.sweep(squares, one, (self._wide, np.int32(k)), shared_mem=self._shared)
        self._functions.unpack(squares, one, (self._state, self._wide, np.int32(mode)))
        numbers = self._limits, self._wide, np.int32(mode), np.int32(double)
        self._functions.settle((1,), one, (self._state, *numbers))

    def _constrain(self, mode: int, again: bool = False) -> None:
        numbers = self._system, self._rank, np.int32(mode), np.int32(again), self._ridge(mode)
        self._functions.constrain((self._blocks,), (THREADS,), (self._state, *numbers))

    def solve(self, mode: int, source: Array, target: Array, again: bool = False) -> None:
        self._rows.run(mode, source, self.inverse, self.system, target, self._sums[mode], again)

    def widen(self, mode: int) -> None:
        """See `Equations`; that happens seldom, and the host takes part."""
        largest, divisor = self.totals[0, self._terms.rank + 2 :].max(axis=0).get(), self._first.divisor.get()
        wider = widened(largest, divisor)
        self._first.divisor.set(wider)
        if mode in self._bounds.nonnegative:
            self.system.begin.set(divisor / wider)
            self._constrain(mode, again=True)
        else:
            self.inverse *= cupy.asarray(divisor / wider)
            self.totals.fill(0)

    def finish(self, mode: int, again: bool = False) -> None:
        arguments = self._state, self._limits, self._rank, np.int32(mode), np.int32(again)
        self._functions.finish((self._blocks,), (THREADS,), arguments, shared_mem=8 * int(self._rank))

    def multiply(self, source: Array, target: Array) -> None:
        stride, other = strides_of(source, target)
        arguments = source, stride, target, other, np.int64(len(source)), self._rank, self.dots
        self._functions.add_dots((DOT_BLOCKS, -(-int(self._rank) // COLUMNS)), (THREADS,), arguments)

    def fit(self, exact: bool = False) -> None:
        self._functions.add_squares((FIT_BLOCKS,), (THREADS,), (self._state, self._wide, np.int32(exact)))
        numbers = self._wide, np.int32(FIT_BLOCKS), self.dots, np.int32(DOT_BLOCKS), np.int32(exact)
        self._functions.fit((1,), (THREADS,), (self._state, self._limits, *numbers))

    def snapshot(self, source: Array, target: Array) -> None:
        self._snapshot(self._functions.keep, source, target)


def swept_bytes(side: int) -> int:
    """Return the shared memory of a sweeping thread block: three squares."""
    return 8 * 3 * side * (side + 4)


def side_of(device: CudaDevice) -> int:
    """Return the rows of a square: the larger size if shared memory allows."""
    large, small = SIDES
    return large if swept_bytes(large) + STATIC_SHARED <= device.limits.shared else small


def parts_of(squares: int) -> int:
    """Return the maximum number of partial sums."""
    return 3 * squares * (squares + 1) // 2 + squares + 2 * FIT_BLOCKS


def wide_bytes(rank: int, side: int) -> int:
    """Return the device memory of `WideEquations` in addition to the equations' state."""
    squares = -(-rank // side)
    return 8 * (2 * (squares * side) ** 2 + parts_of(squares) + DOT_BLOCKS * rank)


def wide_unit(dtype: FloatDType, side: int) -> CudaSource:
    return unit("equations_large", {"REAL": REALS[dtype], "SIDE": side})


@cache
def _compiled(dtype: FloatDType, side: int, device: int) -> LargeEquationsCode:
    module = load(wide_unit(dtype, side))
    code = LargeEquationsCode(*map(module.get_function, LargeEquationsCode._fields))
    for function in (code.sweep, code.finish):
        allow_shared(function)
    return code
