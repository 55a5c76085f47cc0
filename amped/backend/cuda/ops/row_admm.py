"""ADMM of rows on the GPU: compiling and launching ``row_admm.cu``."""

from __future__ import annotations

from collections.abc import Sequence
from functools import cache

import cupy
import numpy as np

from partitioner.array_types import FloatDType
from partitioner.cuda.code import allow_shared, load
from partitioner.cuda.cubins import CudaFunction, CudaSource

from ...device import Array
from ...ops.row_admm import ROW_ADMM, RowAdmm, RowAdmmCase, RowAdmmProvider, RowTerms
from ..device import CudaDevice
from ..launches.device_matrices import strides_of
from ..source import REALS, by_value, unit

KERNELS = "prepare", "solve_rows", "add_parts"
THREADS, WARPS, MANY = 256, 8, 1024  # as in row_admm.cu
MOST_COLUMNS, KEPT_COLUMNS = 128, 32  # a warp holds a row; and each lane its column of the inverse, in registers
BLOCKS = 2  # per multiprocessor
NOWHERE = np.uint64(0)


class CudaRowAdmm:
    """See `RowAdmm`."""

    def __init__(self, device: CudaDevice, case: RowAdmmCase) -> None:
        rank = case.rank
        self._case, self._functions = case, _compiled(rank, case.dtype, device.number)
        self._terms = [_structure(terms) for terms in case.terms]
        self.totals = cupy.zeros((len(case.terms), rank * rank + 2), np.float64)
        self._gram, self._inverse = cupy.zeros((2, rank, rank), np.float64)
        self._rho = cupy.zeros(1, np.float64)
        self._parts = cupy.zeros((blocks_of(case.rows, device), self.totals.shape[1]), np.float64)

    def prepare(self, mode: int) -> None:
        sizes = np.int32(len(self.totals)), np.int32(mode)
        arguments = self.totals, *sizes, self._terms[mode], self._gram, self._inverse, self._rho
        self._functions["prepare"]((1,), (MANY,), arguments, shared_mem=8 * self._case.rank**2)

    def solve(self, mode: int, source: Array, target: Array, dual: Array, fixed: Array) -> None:
        rows = len(source)
        if not rows:
            return
        stride, other = strides_of(source, target)
        blocks = min(len(self._parts), -(-rows // WARPS))
        places = (NOWHERE if dual is None else dual), (NOWHERE if fixed is None else fixed)
        arguments = (
            source, stride, self._gram, self._inverse, self._rho, self._terms[mode], target, other, *places,
            np.int64(rows), self._parts,
        )  # fmt: skip
        self._functions["solve_rows"]((blocks,), (THREADS,), arguments, shared_mem=shared_bytes(self._case.rank))
        totals = self.totals[mode]
        self._functions["add_parts"]((-(-totals.size // THREADS),), (THREADS,), (self._parts, np.int32(blocks), totals))


class CudaRowAdmmProvider:
    """See `RowAdmmProvider`."""

    def __init__(self, device: CudaDevice) -> None:
        self._device = device

    def suits(self, rank: int) -> bool:
        return rank <= MOST_COLUMNS and max(8 * rank**2, shared_bytes(rank)) <= self._device.limits.shared

    def bytes(self, order: int, rank: int, rows: int) -> int:
        return 8 * (rank * rank + 2) * (order + 3 + blocks_of(rows, self._device))

    def make(self, case: RowAdmmCase) -> RowAdmm:
        return CudaRowAdmm(self._device, case)


@ROW_ADMM.provider("cuda")
def providers(device: CudaDevice) -> Sequence[RowAdmmProvider]:
    """Return the providers of the operation."""
    return [CudaRowAdmmProvider(device)]


def blocks_of(rows: int, device: CudaDevice) -> int:
    """Return the number of thread blocks that solve `rows` rows."""
    return max(1, min(-(-rows // WARPS), BLOCKS * device.limits.processors))


def shared_bytes(rank: int) -> int:
    """Return the shared memory of a block that solves rows: a row per warp, and the inverse unless lanes keep it."""
    return 8 * (WARPS * -(-rank // 32) * 32 + (rank**2 if rank > KEPT_COLUMNS else 0))


def row_unit(rank: int, dtype: FloatDType) -> CudaSource:
    """Return the CUDA source."""
    return unit("row_admm", {"RANK": rank, "REAL": REALS[dtype]})


def _structure(terms: RowTerms) -> np.void:
    numbers = np.array(terms[:4], np.float64)
    return by_value(numbers, np.array([terms.simplex, terms.least_squares], np.int32))


@cache
def _compiled(rank: int, dtype: FloatDType, device: int) -> dict[str, CudaFunction]:
    module = load(row_unit(rank, dtype))
    functions = {name: module.get_function(name) for name in KERNELS}
    for name in ("prepare", "solve_rows"):
        allow_shared(functions[name])
    return functions
