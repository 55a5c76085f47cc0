"""The small matrices of CP-ALS on a GPU: compiling and launching ``equations.cu``."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from functools import cache
from typing import Any, NamedTuple

import cupy
import numpy as np
from cupyx import lapack
from numpy.typing import NDArray

from partitioner.cubins import Source
from partitioner.cuda_code import load, prepare

from ...base import Array
from ...constrained import HostConstrained, take_lengths_out
from ...equations import (
    ACCURACY,
    CONDITION,
    NEAR,
    NEARBY,
    ROUNDING,
    SINGULAR,
    Bounds,
    ConstrainedEquations,
    Equations,
    Provider,
    Terms,
    Told,
)  # fmt: skip
from ...nonnegative import System
from ...onhost import OnHost
from ...small import (
    BEST,
    FACTS,
    FIT,
    FLAGS,
    ITERATIONS,
    HostEquations,
    State,
    doubles,
    noise_limit,
    pseudo_inverse,
    sums_of,
)  # fmt: skip
from ...solve import Sums
from ..device import CudaDevice
from ..source import ALONE, REALS, by_value, unit

MOST_COLUMNS = 128  # a block of threads has a matrix in registers
DOT_BLOCKS, DOT_THREADS = 64, 256  # as in equations.cu
KEEP_BLOCKS, VECTOR = 1024, 16
NO_SYSTEM = by_value(np.zeros(3, np.uint64))


class Functions(NamedTuple):
    """Compiled code."""

    prepare: Any
    constrain: Any
    widen: Any
    finish: Any
    fit: Any
    add_dots: Any
    keep: Any


class CudaEquations:
    """See `Equations`. Nothing waits, except for `told`, and where the host inverts what elimination cannot."""

    def __init__(self, device: CudaDevice, terms: Terms, dtype: np.dtype[Any], bounds: Bounds | None = None) -> None:
        self._terms, order, rank = terms, terms.order, terms.rank
        self._bounds = bounds or Bounds((0.0,) * order, (), order - 1)
        self._functions = _compiled(rank, dtype, device.number)
        self._threads = min(512 if rank > 96 else 1024, -(-rank * rank // 32) * 32)  # as in equations.cu
        self._held = held = State(cupy, order, rank)
        self.memory, self.told_bytes = held.memory, held.told_bytes
        self.inverse = cupy.zeros((rank, rank), np.float64)
        self.totals = cupy.zeros((rank + 2 + terms.parts, rank), np.float64)
        self.dots = cupy.zeros((DOT_BLOCKS, rank), np.float64)
        weights = held.weights if bounds else held.norms[-1]
        places = held.facts, held.norms, held.scales, held.divisor, held.grams, weights, self.totals, self.inverse
        sizes = np.array([order, terms.parts, bounds is not None, terms.part], np.int32)
        self._state = by_value(_addresses(places), sizes)
        self._limits = _limits(terms)

    def _launch(self, function: Any, *arguments: Any) -> None:
        function((1,), (self._threads,), (self._state, self._limits, ALONE, *arguments))

    def sums(self, mode: int) -> Sums:
        return sums_of(self.totals, self._terms, mode, self._bounds.last)

    def load(self, told: Told, best: float) -> None:
        facts = np.zeros(FACTS)
        facts[[ITERATIONS, FIT, BEST]] = told.iterations, told.fit, best
        self._held.facts.set(facts)
        self._held.norms.set(np.ascontiguousarray(told.norms))
        self._held.scales.set(np.ascontiguousarray(told.scales))

    def hold(self, mode: int) -> None:
        scale = self._held.scales[mode]
        self._held.grams[mode] = self.totals[: scale.size] * (scale[:, None] * scale)

    def prepare(self, mode: int, double: bool = False) -> None:
        self._launch(self._functions.prepare, np.int32(mode), np.int32(double), self._ridge(mode))

    def _ridge(self, mode: int) -> np.float64:
        return np.float64(self._bounds.ridge[mode])

    def invert(self, mode: int, double: bool = False) -> None:
        others = [m for m in range(self._terms.order) if m != mode]
        facts, product = self._held.facts.get(), np.multiply.reduce(self._held.grams.get()[others])
        if not np.all(np.isfinite(product)):
            return  # `prepare` has said so
        product.flat[:: len(product) + 1] += self._ridge(mode)
        inverse, condition = pseudo_inverse(product, self._terms.cutoff)
        if not double and condition > noise_limit(self._terms, facts[FIT]):
            self.totals[self._terms.rank + 1] = 1.0
        inverse *= np.multiply.reduce(self._held.scales.get()[others])[:, None]
        self.inverse.set(np.ascontiguousarray(inverse / self._held.divisor.get()))
        self._held.facts[FLAGS] = float(int(facts[FLAGS]) & ~SINGULAR)

    def widen(self) -> None:
        self._launch(self._functions.widen, NO_SYSTEM, np.int32(0))

    def finish(self, mode: int, again: bool = False) -> None:
        self._launch(self._functions.finish, np.int32(mode), np.int32(again))

    def measure(self, norm: float) -> None:
        if norm != self._terms.norm:
            self._terms = self._terms._replace(norm=norm)
            self._limits = _limits(self._terms)

    def multiply(self, source: Array, target: Array) -> None:
        strides = [np.int64(matrix.strides[0] // matrix.itemsize) for matrix in (source, target)]
        arguments = ALONE, source, strides[0], target, strides[1], np.int64(len(source)), self.dots
        self._functions.add_dots((DOT_BLOCKS,), (DOT_THREADS,), arguments)

    def fit(self, exact: bool = False) -> None:
        dots, blocks = (self.dots, DOT_BLOCKS) if exact else (self.totals[self._terms.rank], 1)
        self._launch(self._functions.fit, np.uint64(dots.data.ptr), np.int32(blocks), np.int32(exact))

    def told(self) -> Told:
        told = self.read(self.memory[: self.told_bytes].get())
        if told.flags:
            self._held.facts[FLAGS] = float(told.flags & NEAR)
        return told

    def read(self, memory: NDArray[np.uint8]) -> Told:
        return self._held.told(memory)

    def keep(self, source: Array, target: Array) -> None:
        vectors = source.nbytes // VECTOR
        blocks = min(KEEP_BLOCKS, -(-vectors // 256))
        self._functions.keep((blocks,), (256,), (self._held.facts, source, target, np.int64(vectors)))


class CudaConstrained(CudaEquations):
    """See `ConstrainedEquations`."""

    def __init__(self, device: CudaDevice, terms: Terms, dtype: np.dtype[Any], bounds: Bounds) -> None:
        super().__init__(device, terms, dtype, bounds)
        rank, self._mode = terms.rank, bounds.last
        self.system = System(*(cupy.zeros(shape, np.float64) for shape in ((rank, rank), (rank,), (rank,))))
        self._system = by_value(_addresses(self.system))

    def start(self) -> None:
        state = State(np, self._terms.order, self._terms.rank)
        state.memory[...] = self._held.memory.get()
        take_lengths_out(state, self._terms.norm)
        self._held.memory.set(state.memory)

    def go_on(self, weights: NDArray[np.float64]) -> None:
        self._held.weights.set(np.ascontiguousarray(weights))

    def prepare(self, mode: int, double: bool = False) -> None:
        self._mode = mode
        if mode in self._bounds.nonnegative:
            self._constrain(mode)
        else:
            super().prepare(mode, double)

    def _constrain(self, mode: int, again: bool = False) -> None:
        self._launch(self._functions.constrain, self._system, np.int32(mode), np.int32(again), self._ridge(mode))

    def widen(self) -> None:
        nonnegative = self._mode in self._bounds.nonnegative
        self._launch(self._functions.widen, self._system, np.int32(nonnegative))
        if nonnegative:
            self._constrain(self._mode, again=True)


class ByCholesky(HostEquations):
    """Inverts by Cholesky's factors: on a GPU that takes half as long as elimination."""

    def _inverse(self, gram: Array) -> Array:
        return lapack.posv(gram.copy(), cupy.eye(len(gram)))


class WideConstrained(ByCholesky, HostConstrained):
    """See `ConstrainedEquations`: of many columns."""


class Wide(OnHost):
    """See `Provider`; suits all."""

    def make(self, terms: Terms, dtype: np.dtype[np.floating]) -> Equations:
        return ByCholesky(self._device, terms)

    def make_constrained(self, terms: Terms, dtype: np.dtype[np.floating], bounds: Bounds) -> ConstrainedEquations:
        return WideConstrained(self._device, terms, bounds)


class OnDevice:
    """See `Provider`."""

    def __init__(self, device: CudaDevice) -> None:
        self._device = device

    def suits(self, rank: int) -> bool:
        return rank <= MOST_COLUMNS

    def prepare(self, rank: int, dtype: np.dtype[Any]) -> None:
        prepare([_unit(rank, dtype)])

    def bytes(self, order: int, rank: int, parts: int) -> int:
        return 8 * (2 * doubles(order, rank) + rank * (2 * rank + parts + 2 + DOT_BLOCKS)) + (4 << 10)

    def make(self, terms: Terms, dtype: np.dtype[np.floating]) -> Equations:
        return CudaEquations(self._device, terms, dtype)

    def make_constrained(self, terms: Terms, dtype: np.dtype[np.floating], bounds: Bounds) -> ConstrainedEquations:
        return CudaConstrained(self._device, terms, dtype, bounds)


def providers(device: CudaDevice) -> Sequence[Provider]:
    """Return the providers of the family; the last one suits all."""
    return [OnDevice(device), Wide(device)]


def _limits(terms: Terms) -> Any:
    numbers = terms.norm, terms.most, terms.noise, CONDITION, ACCURACY, ROUNDING, NEARBY
    return by_value(np.array(numbers), np.array([terms.gains, 0], np.int32))


def _addresses(places: Iterable[Array]) -> NDArray[np.uint64]:
    return np.array([place.data.ptr for place in places], np.uint64)


def _unit(rank: int, dtype: np.dtype[Any]) -> Source:
    return unit("equations", {"RANK": rank, "REAL": REALS[dtype]})


@cache
def _compiled(rank: int, dtype: np.dtype[Any], device: int) -> Functions:
    module = load(_unit(rank, dtype))
    return Functions(*map(module.get_function, Functions._fields))
