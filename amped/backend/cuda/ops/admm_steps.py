"""What ADMM computes beside proximal operators on the GPU: compiling and launching ``admm_steps.cu``."""

from __future__ import annotations

from collections.abc import Sequence
from functools import cache

import cupy
import numpy as np

from partitioner.cuda.code import load
from partitioner.cuda.cubins import CudaFunction

from ...device import Array
from ...ops.admm_steps import ADMM_STEPS, AdmmStart, AdmmStepsProvider, EntryTerms
from ..device import CudaDevice
from ..launches.fused_rows import THREADS
from ..source import by_value, unit
from . import solve

MOST, TESTS = 2, 4  # operators; sums of each, as in admm_steps.cu
NOWHERE = np.uint64(0)


class CudaAdmmSteps:
    """See `AdmmSteps`."""

    def __init__(self, device: CudaDevice, start: AdmmStart) -> None:
        _, rows, rank = start.scaled.shape
        self.scaled, self.copies = start.scaled, cupy.empty_like(start.scaled)
        self.copies[...] = start.rows
        self._start, self._terms, self._moved = start, _structure(start.first), cupy.empty_like(start.scaled)
        self._functions, self._blocks = _compiled(rank, device.number), max(1, solve.blocks_of(rows, device))
        self._squares = cupy.empty((self._blocks, rank), np.float64)

    def advance(self) -> Array:
        start, (operators, rows, _) = self._start, self.scaled.shape
        arguments = self.copies, self.scaled, start.unmoved, start.inverse, np.int64(rows), np.int32(operators)
        self._functions[0]((self._blocks,), (THREADS,), (*arguments, self._terms, self._moved, self._squares))
        return self._moved

    def settle(self, results: Sequence[Array], tested: bool) -> Array:
        count = len(results)
        tests = cupy.empty((self._blocks, MOST, TESTS), np.float64) if tested else None
        places = [0 if each is None else each.data.ptr for each in results] + [0] * (MOST - count)
        operators = by_value(np.array(places, np.uint64), np.array([count, 0], np.int32))
        sizes = np.int64(self.scaled[0].size), self._terms, self._squares, np.int32(self._blocks)
        arguments = self._moved, operators, self.copies, self.scaled, *sizes, NOWHERE if tests is None else tests
        self._functions[1]((self._blocks,), (THREADS,), arguments)
        return None if tests is None else tests[:, :count].sum(axis=0)


class CudaAdmmStepsProvider:
    """See `AdmmStepsProvider`."""

    def __init__(self, device: CudaDevice) -> None:
        self._device = device

    def suits(self, rank: int, operators: int) -> bool:
        capable = self._device.capability >= solve.LEAST_CAPABILITY
        return capable and rank <= solve.MOST_COLUMNS and operators <= MOST

    def begin(self, start: AdmmStart) -> CudaAdmmSteps:
        return CudaAdmmSteps(self._device, start)


@ADMM_STEPS.provider("cuda")
def providers(device: CudaDevice) -> Sequence[AdmmStepsProvider]:
    """Return the providers of the operation."""
    return [CudaAdmmStepsProvider(device)]


def _structure(terms: EntryTerms | None) -> np.void:
    numbers = (0.0, 0.0, 0.0) if terms is None else terms[:3]
    flags = [terms is not None, terms is not None and terms.ball]
    return by_value(np.array(numbers, np.float64), np.array(flags, np.int32))


@cache
def _compiled(rank: int, device: int) -> tuple[CudaFunction, CudaFunction]:
    module = load(unit("admm_steps", {"RANK": rank, "REAL": "double"}))
    return module.get_function("advance"), module.get_function("settle")
