"""What equations of CP-ALS hold on a GPU, however they are computed there."""

from __future__ import annotations

from collections.abc import Iterable
from types import ModuleType
from typing import Any, ClassVar

import cupy
import numpy as np
from numpy.typing import NDArray

from ...device import Array
from ...normal_equations.constrained import take_lengths_out
from ...normal_equations.host import (
    BEST,
    FACTS,
    FIT,
    FLAGS,
    ITERATIONS,
    EquationsState,
    noise_limit,
    pseudo_inverse,
    sums_of,
)
from ...ops.equations import (
    ACCURACY,
    CONDITION,
    CUTOFF,
    NEAR,
    NEARBY,
    ROUNDING,
    SINGULAR,
    ConstraintBounds,
    EquationsStatus,
    Terms,
)
from ...ops.nonnegative import System
from ...ops.solve import Sums
from ..source import by_value

KEEP_BLOCKS, VECTOR = 1024, 16


class DeviceMatrices:
    """See `ConstrainedEquations`. Nothing waits, except for `told`, and where a matrix is singular."""

    inverting: ClassVar[ModuleType] = np  # NumPy or CuPy, which finds the pseudo-inverse of what is singular

    def __init__(self, terms: Terms, bounds: ConstraintBounds | None, dot_blocks: int) -> None:
        self._terms, order, rank = terms, terms.order, terms.rank
        self._bounds = bounds or ConstraintBounds((0.0,) * order, (), order - 1)
        self._mode = self._bounds.last  # that is solved
        self._held = held = EquationsState(cupy, order, rank)
        self.memory, self.told_bytes = held.memory, held.told_bytes
        self.inverse = cupy.zeros((rank, rank), np.float64)
        self.totals = cupy.zeros((rank + 2 + terms.parts, rank), np.float64)
        self.dots = cupy.zeros((dot_blocks, rank), np.float64)
        shapes = ((rank, rank), (rank,), (rank,)) if self._bounds.nonnegative else ((0,),) * 3
        self.system = System(*(cupy.zeros(shape, np.float64) for shape in shapes))
        weights = held.weights if bounds else held.norms[-1]
        places = held.facts, held.norms, held.scales, held.divisor, held.grams, weights, self.totals, self.inverse
        sizes = np.array([order, terms.parts, bounds is not None, terms.part], np.int32)
        self._state, self._system = by_value(addresses(places), sizes), by_value(addresses(self.system))
        self._limits = limits_of(terms)

    def sums(self, mode: int) -> Sums:
        return sums_of(self.totals, self._terms, mode, self._bounds.last)

    def load(self, told: EquationsStatus, best: float) -> None:
        facts = np.zeros(FACTS)
        facts[[ITERATIONS, FIT, BEST]] = told.iterations, told.fit, best
        self._held.facts.set(facts)
        self._held.norms.set(np.ascontiguousarray(told.norms))
        self._held.scales.set(np.ascontiguousarray(told.scales))

    def hold(self, mode: int) -> None:
        scale = self._held.scales[mode]
        self._held.grams[mode] = self.totals[: scale.size] * (scale[:, None] * scale)

    def start(self) -> None:
        state = EquationsState(np, self._terms.order, self._terms.rank)
        state.memory[...] = self._held.memory.get()
        take_lengths_out(state, self._terms.norm)
        self._held.memory.set(state.memory)

    def measure(self, norm: float) -> None:
        if norm != self._terms.norm:
            self._terms = self._terms._replace(norm=norm)
            self._limits = limits_of(self._terms)

    def go_on(self, weights: NDArray[np.float64]) -> None:
        self._held.weights.set(np.ascontiguousarray(weights))

    def _ridge(self, mode: int) -> np.float64:
        return np.float64(self._bounds.ridge[mode])

    def invert(self, mode: int, double: bool = False) -> None:
        others = [m for m in range(self._terms.order) if m != mode]
        facts, scales, divisor = self._held.facts.get(), self._held.scales.get(), self._held.divisor.get()
        xp: Any = self.inverting
        grams = self._held.grams.get() if xp is np else self._held.grams
        product = xp.prod(grams[others], axis=0)
        if not bool(xp.all(xp.isfinite(product))):
            return  # `prepare` has said so
        each = xp.arange(len(product))
        product[each, each] += self._ridge(mode)
        inverse, condition = pseudo_inverse(product, CUTOFF, xp)
        if not double and condition > noise_limit(self._terms, facts[FIT]):
            self.totals[self._terms.rank + 1] = 1.0
        inverse *= xp.asarray(np.multiply.reduce(scales[others])[:, None])
        self.inverse[...] = cupy.asarray(inverse / xp.asarray(divisor))
        self._held.facts[FLAGS] = float(int(facts[FLAGS]) & ~SINGULAR)

    def told(self) -> EquationsStatus:
        told = self.read(self.memory[: self.told_bytes].get())
        if told.flags:
            self._held.facts[FLAGS] = float(told.flags & NEAR)
        return told

    def read(self, memory: NDArray[np.uint8]) -> EquationsStatus:
        return self._held.told(memory)

    def _keep(self, function: Any, source: Array, target: Array) -> None:
        vectors = source.nbytes // VECTOR
        blocks = min(KEEP_BLOCKS, -(-vectors // 256))
        function((blocks,), (256,), (self._held.facts, source, target, np.int64(vectors)))


def limits_of(terms: Terms) -> Any:
    """Return what code compares with, to be passed by value."""
    numbers = terms.norm, terms.most, terms.noise, CONDITION, ACCURACY, ROUNDING, NEARBY
    return by_value(np.array(numbers), np.array([terms.gains, 0], np.int32))


def addresses(places: Iterable[Array]) -> NDArray[np.uint64]:
    return np.array([place.data.ptr for place in places], np.uint64)
