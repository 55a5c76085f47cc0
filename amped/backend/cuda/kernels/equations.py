"""The small matrices of CP-ALS on a GPU: compiling and launching ``equations.cu``."""

from __future__ import annotations

from collections.abc import Sequence
from functools import cache
from itertools import pairwise
from typing import Any, NamedTuple

import cupy
import numpy as np
from numpy.typing import NDArray

from partitioner.cubins import Source
from partitioner.cuda_code import load, prepare

from ...base import Array
from ...equations import (
    ACCURACY,
    CONDITION,
    NEAR,
    NEARBY,
    ROUNDING,
    SINGULAR,
    Equations,
    Provider,
    Terms,
    Told,
)  # fmt: skip
from ...small import OnHost, noise_limit, pseudo_inverse, sums_of, widened
from ...solve import Sums
from ..device import CudaDevice
from ..source import REALS, by_value, unit

MOST_COLUMNS = 128  # a block of threads has a matrix in registers
DOT_BLOCKS, DOT_THREADS = 64, 256  # as in equations.cu
KEEP_BLOCKS, VECTOR = 1024, 16
ITERATIONS, FIT, BEST, FLAGS, FACTS = range(5)  # as in equations.cu
ALIGNED = 256 // 8  # doubles


class Functions(NamedTuple):
    """Compiled code."""

    prepare: Any
    finish: Any
    fit: Any
    add_dots: Any
    keep: Any


class CudaEquations:
    """See `Equations`. Nothing waits, except for `told`, and where the host inverts what elimination cannot."""

    def __init__(self, device: CudaDevice, terms: Terms, dtype: np.dtype[Any]) -> None:
        self._terms, order, rank = terms, terms.order, terms.rank
        self._functions = _compiled(rank, dtype, device.number)
        self._threads = min(512 if rank > 96 else 1024, -(-rank * rank // 32) * 32)  # as in equations.cu
        memory = cupy.zeros(_doubles(order, rank), np.float64)
        sizes = [FACTS, order * rank, order * rank, rank, order * rank * rank]
        bounds = np.concatenate([[0], np.cumsum(sizes)])
        self._facts, norms, scales, self._divisor, grams = (memory[int(a) : int(b)] for a, b in pairwise(bounds))
        self._norms, self._scales = norms.reshape(order, rank), scales.reshape(order, rank)
        self._grams = grams.reshape(order, rank, rank)
        self.memory, self.told_bytes = memory.view(np.uint8), 8 * int(bounds[3])
        self.inverse = cupy.zeros((rank, rank), np.float64)
        self.totals = cupy.zeros((rank + 2 + terms.parts, rank), np.float64)
        self.dots = cupy.zeros((DOT_BLOCKS, rank), np.float64)
        places = self._facts, norms, scales, self._divisor, grams, self.totals, self.inverse
        self._state = by_value(
            np.array([place.data.ptr for place in places], np.uint64), np.array([order, terms.parts], np.int32)
        )
        numbers = terms.norm, terms.most, terms.noise, CONDITION, ACCURACY, ROUNDING, NEARBY
        self._limits = by_value(np.array(numbers), np.array([terms.gains, 0], np.int32))

    def _launch(self, function: Any, *arguments: Any) -> None:
        function((1,), (self._threads,), (self._state, self._limits, *arguments))

    def sums(self, mode: int) -> Sums:
        return sums_of(self.totals, self._terms, mode)

    def load(self, told: Told, best: float) -> None:
        facts = np.zeros(FACTS)
        facts[[ITERATIONS, FIT, BEST]] = told.iterations, told.fit, best
        self._facts.set(facts)
        self._norms.set(np.ascontiguousarray(told.norms))
        self._scales.set(np.ascontiguousarray(told.scales))

    def hold(self, mode: int) -> None:
        scale = self._scales[mode]
        self._grams[mode] = self.totals[: scale.size] * (scale[:, None] * scale)

    def prepare(self, mode: int, double: bool = False) -> None:
        self._launch(self._functions.prepare, np.int32(mode), np.int32(double))

    def invert(self, mode: int, double: bool = False) -> None:
        others = [m for m in range(self._terms.order) if m != mode]
        facts, product = self._facts.get(), np.multiply.reduce(self._grams.get()[others])
        if not np.all(np.isfinite(product)):
            return  # `prepare` has said so
        inverse, condition = pseudo_inverse(product, self._terms.cutoff)
        if not double and condition > noise_limit(self._terms, facts[FIT]):
            self.totals[self._terms.rank + 1] = 1.0
        inverse *= np.multiply.reduce(self._scales.get()[others])[:, None]
        self.inverse.set(np.ascontiguousarray(inverse / self._divisor.get()))
        self._facts[FLAGS] = float(int(facts[FLAGS]) & ~SINGULAR)

    def widen(self) -> None:
        divisor = self._divisor.get()
        wider = widened(self.totals.get()[self._terms.rank + 2 :].max(axis=0), divisor)
        self.inverse.set(self.inverse.get() * (divisor / wider))
        self._divisor.set(wider)
        self.totals.fill(0)

    def finish(self, mode: int, again: bool = False) -> None:
        self._launch(self._functions.finish, np.int32(mode), np.int32(again))

    def multiply(self, source: Array, target: Array) -> None:
        strides = [np.int64(matrix.strides[0] // matrix.itemsize) for matrix in (source, target)]
        arguments = source, strides[0], target, strides[1], np.int64(len(source)), self.dots
        self._functions.add_dots((DOT_BLOCKS,), (DOT_THREADS,), arguments)

    def fit(self, exact: bool = False) -> None:
        dots, blocks = (self.dots, DOT_BLOCKS) if exact else (self.totals[self._terms.rank], 1)
        self._launch(self._functions.fit, np.uint64(dots.data.ptr), np.int32(blocks), np.int32(exact))

    def told(self) -> Told:
        told = self.read(self.memory[: self.told_bytes].get())
        if told.flags:
            self._facts[FLAGS] = float(told.flags & NEAR)
        return told

    def read(self, memory: NDArray[np.uint8]) -> Told:
        numbers = memory.view(np.float64)
        facts, columns = numbers[:FACTS], numbers[FACTS:].reshape(2, self._terms.order, self._terms.rank).copy()
        return Told(int(facts[FLAGS]), int(facts[ITERATIONS]), float(facts[FIT]), *columns)

    def keep(self, source: Array, target: Array) -> None:
        vectors = source.nbytes // VECTOR
        blocks = min(KEEP_BLOCKS, -(-vectors // 256))
        self._functions.keep((blocks,), (256,), (self._facts, source, target, np.int64(vectors)))


class OnDevice:
    """See `Provider`."""

    def __init__(self, device: CudaDevice) -> None:
        self._device = device

    def suits(self, rank: int) -> bool:
        return rank <= MOST_COLUMNS

    def prepare(self, rank: int, dtype: np.dtype[Any]) -> None:
        prepare([_unit(rank, dtype)])

    def bytes(self, order: int, rank: int, parts: int) -> int:
        return 8 * (2 * _doubles(order, rank) + rank * (2 * rank + parts + 2 + DOT_BLOCKS)) + (4 << 10)

    def make(self, terms: Terms, dtype: np.dtype[np.floating]) -> Equations:
        return CudaEquations(self._device, terms, dtype)


def providers(device: CudaDevice) -> Sequence[Provider]:
    """Return the providers of the family; the last one suits all."""
    return [OnDevice(device), OnHost(device)]


def _doubles(order: int, rank: int) -> int:
    return -(-(FACTS + rank * (2 * order + 1 + order * rank)) // ALIGNED) * ALIGNED


def _unit(rank: int, dtype: np.dtype[Any]) -> Source:
    return unit("equations", {"RANK": rank, "REAL": REALS[dtype]})


@cache
def _compiled(rank: int, dtype: np.dtype[Any], device: int) -> Functions:
    module = load(_unit(rank, dtype))
    return Functions(*map(module.get_function, Functions._fields))
