"""The small matrices of CP-ALS on a GPU: compiling and launching ``equations.cu``; of many columns see ``wide.py``."""

from __future__ import annotations

from collections.abc import Sequence
from functools import cache
from typing import Any, NamedTuple

import numpy as np

from partitioner.cuda.code import load, prepare
from partitioner.cuda.cubins import CudaSource

from ...device import Array
from ...normal_equations.host import doubles
from ...normal_equations.host_provider import INVERTING
from ...ops.equations import EQUATIONS, ConstrainedEquations, ConstraintBounds, Equations, EquationsProvider, Terms
from ..device import CudaDevice
from ..launches.device_matrices import DeviceMatrices
from ..launches.equations_large import WideEquations, side_of, wide_bytes, wide_unit
from ..source import ALONE, REALS, by_value, unit

MOST_COLUMNS = 48  # a block of threads has a matrix in registers; of more, many are faster
DOT_BLOCKS, DOT_THREADS = 64, 256  # as in equations.cu
NO_SYSTEM = by_value(np.zeros(3, np.uint64))


class EquationsCode(NamedTuple):
    """Compiled code."""

    prepare: Any
    constrain: Any
    widen: Any
    finish: Any
    fit: Any
    add_dots: Any
    keep: Any


class CudaEquations(DeviceMatrices):
    """See `ConstrainedEquations`. A block of threads has a matrix; the host inverts what elimination cannot."""

    def __init__(
        self, device: CudaDevice, terms: Terms, dtype: np.dtype[Any], bounds: ConstraintBounds | None = None
    ) -> None:
        super().__init__(terms, bounds, DOT_BLOCKS)
        rank = terms.rank
        self._functions = _compiled(rank, dtype, device.number)
        self._threads = min(1024, -(-rank * rank // 32) * 32)  # as in equations.cu

    def _launch(self, function: Any, *arguments: Any) -> None:
        function((1,), (self._threads,), (self._state, self._limits, ALONE, *arguments))

    def prepare(self, mode: int, double: bool = False) -> None:
        self._mode = mode
        if mode in self._bounds.nonnegative:
            self._constrain(mode)
        else:
            self._launch(self._functions.prepare, np.int32(mode), np.int32(double), self._ridge(mode))

    def _constrain(self, mode: int, again: bool = False) -> None:
        self._launch(self._functions.constrain, self._system, np.int32(mode), np.int32(again), self._ridge(mode))

    def widen(self) -> None:
        nonnegative = self._mode in self._bounds.nonnegative
        self._launch(self._functions.widen, self._system if nonnegative else NO_SYSTEM, np.int32(nonnegative))
        if nonnegative:
            self._constrain(self._mode, again=True)

    def finish(self, mode: int, again: bool = False) -> None:
        self._launch(self._functions.finish, np.int32(mode), np.int32(again))

    def multiply(self, source: Array, target: Array) -> None:
        strides = [np.int64(matrix.strides[0] // matrix.itemsize) for matrix in (source, target)]
        arguments = ALONE, source, strides[0], target, strides[1], np.int64(len(source)), self.dots
        self._functions.add_dots((DOT_BLOCKS,), (DOT_THREADS,), arguments)

    def fit(self, exact: bool = False) -> None:
        dots, blocks = (self.dots, DOT_BLOCKS) if exact else (self.totals[self._terms.rank], 1)
        self._launch(self._functions.fit, np.uint64(dots.data.ptr), np.int32(blocks), np.int32(exact))

    def keep(self, source: Array, target: Array) -> None:
        self._keep(self._functions.keep, source, target)


class CudaEquationsProvider:
    """See `EquationsProvider`."""

    def __init__(self, device: CudaDevice) -> None:
        self._device = device

    def suits(self, rank: int) -> bool:
        return rank <= MOST_COLUMNS

    def prepare(self, rank: int, dtype: np.dtype[Any]) -> None:
        prepare([_unit(rank, dtype)])

    def bytes(self, order: int, rank: int, parts: int) -> int:
        return _held_bytes(order, rank, parts) + 8 * rank * DOT_BLOCKS

    def make(self, terms: Terms, dtype: np.dtype[np.floating]) -> Equations:
        return CudaEquations(self._device, terms, dtype)

    def make_constrained(
        self, terms: Terms, dtype: np.dtype[np.floating], bounds: ConstraintBounds
    ) -> ConstrainedEquations:
        return CudaEquations(self._device, terms, dtype, bounds)


class Wide:
    """See `EquationsProvider`; suits all."""

    def __init__(self, device: CudaDevice) -> None:
        self._device = device

    def suits(self, rank: int) -> bool:
        return True

    def prepare(self, rank: int, dtype: np.dtype[Any]) -> None:
        prepare([wide_unit(dtype, side_of(self._device))])

    def bytes(self, order: int, rank: int, parts: int) -> int:
        """See `EquationsProvider`: also what finding a pseudo-inverse takes."""
        return _held_bytes(order, rank, parts) + wide_bytes(rank, side_of(self._device)) + 8 * INVERTING * rank * rank

    def make(self, terms: Terms, dtype: np.dtype[np.floating]) -> Equations:
        return WideEquations(self._device, terms, dtype)

    def make_constrained(
        self, terms: Terms, dtype: np.dtype[np.floating], bounds: ConstraintBounds
    ) -> ConstrainedEquations:
        return WideEquations(self._device, terms, dtype, bounds)


@EQUATIONS.provider("cuda")
def providers(device: CudaDevice) -> Sequence[EquationsProvider]:
    """Return the providers of the operation; the last one suits all."""
    return [CudaEquationsProvider(device), Wide(device)]


def _held_bytes(order: int, rank: int, parts: int) -> int:
    return 8 * (2 * doubles(order, rank) + rank * (2 * rank + parts + 2)) + (4 << 10)


def _unit(rank: int, dtype: np.dtype[Any]) -> CudaSource:
    return unit("equations", {"RANK": rank, "REAL": REALS[dtype]})


@cache
def _compiled(rank: int, dtype: np.dtype[Any], device: int) -> EquationsCode:
    module = load(_unit(rank, dtype))
    return EquationsCode(*map(module.get_function, EquationsCode._fields))
