"""The state of normal equations of CP-ALS on a GPU, of one run or several, however they are computed there."""

from __future__ import annotations

from collections.abc import Iterable
from types import ModuleType
from typing import ClassVar

import cupy
import numpy as np
from numpy.typing import NDArray

from partitioner.cuda.cubins import CudaFunction

from ...device import Array
from ...normal_equations.inverse import noise_limit, pseudo_inverse
from ...normal_equations.state import FACTS, FIT, FLAGS, ITERATIONS, MODE, SQUARES, EquationsState, doubles, sums_of
from ...ops.equations import (
    ACCURACY,
    CONDITION,
    CUTOFF,
    NEAR,
    NEARBY,
    ROUNDING,
    SINGULAR,
    EquationsCase,
    EquationsStatus,
    RunStart,
    RunStopped,
)
from ...ops.nonnegative import System
from ..device import CudaDevice
from ..padded_rows import on_device
from ..source import ALONE, by_value

KEEP_BLOCKS, VECTOR = 1024, 16
NO_MATRIX = np.empty((0, 0))


class DeviceMatrices:
    """See `Equations`. Nothing waits, except for `status`, `take`, and where a matrix is singular.

    Runs have room for `columns` each; `dot_blocks` are the blocks of threads that write `dots`.
    """

    inverting: ClassVar[ModuleType] = np  # NumPy or CuPy, which finds the pseudo-inverse of what is singular
    allocates = False

    def __init__(self, device: CudaDevice, case: EquationsCase, columns: int, dot_blocks: int) -> None:
        self._device, self._case, self._terms, self._bounds = device, case, case.terms, case.bounds
        self._columns, places, order = columns, case.places, case.terms.order
        self._states = cupy.zeros((places, doubles(order, columns)), np.float64)
        self._first = first = EquationsState(cupy, order, columns, self._states[0])
        self.memory = self._states.view(np.uint8).reshape(-1)
        self.totals = cupy.zeros((places, columns + 2 + case.terms.parts, columns), np.float64)
        self._sums = sums_of(self.totals, case.terms, case.bounds.last)
        self.dots = cupy.zeros((places, dot_blocks, columns), np.float64)
        self._inverses = cupy.zeros((places, columns, columns), np.float64)
        shapes = ((columns, columns), (columns,), (columns,)) if case.bounds.nonnegative else ((0, 0), (0,), (0,))
        self._systems = System(*(cupy.zeros((places, *shape), np.float64) for shape in shapes))
        self.inverse, self.system = self._inverses[0], System(*(each[0] for each in self._systems))  # of the first run
        weights = first.weights if case.bounds.constrained else first.norms[-1]
        own = first.facts, first.norms, first.scales, first.divisor, first.grams, weights
        sizes = np.array([order, case.terms.parts, case.bounds.constrained, case.terms.part], np.int32)
        self._state, self._system = (
            by_value(addresses([*own, self.totals, self._inverses]), sizes),
            by_value(addresses(self._systems)),
        )
        self._limits = self._limits_of_terms()
        self._place_runs(places)

    def _place_runs(self, places: int) -> None:
        """Make what says which columns each run has, and which facts of the runs the host reads."""
        self._runs = ALONE
        self.reported = self.memory[: self._first.status_bytes]
        if places > 1:
            self._of = np.zeros((places, 2), np.int32)  # the first column of each, and how many
            self._on_device = cupy.zeros((places, 2), np.int32)
            width = np.array([self._states.shape[1]], np.int64)
            self._runs = by_value(addresses([self._on_device, self._states]), width)
            self.reported = cupy.zeros((places, FACTS), np.float64).view(np.uint8).reshape(-1)

    def _limits_of_terms(self) -> np.void:
        """Return what code compares with, to be passed by value."""
        terms = self._terms
        numbers = terms.norm, terms.most, terms.noise, CONDITION, ACCURACY, ROUNDING, NEARBY
        return by_value(np.array(numbers), np.array([terms.gains, 0], np.int32))

    @property
    def _is_batch(self) -> bool:
        return self._case.places > 1

    def _assign(self, place: int, columns: slice) -> None:
        if self._is_batch:
            self._of[place] = columns.start, columns.stop - columns.start
            self._on_device.set(self._of)

    def put(self, place: int, columns: slice, start: RunStart) -> None:
        order, count = start.status.norms.shape
        small, state = EquationsState(np, order, count), EquationsState(np, order, self._columns)
        small.begin(start, self._terms.norm, self._bounds.constrained)
        state.facts[...], state.weights[:count] = small.facts, small.weights
        state.norms[:, :count], state.scales[:, :count] = small.norms, small.scales
        state.grams[:, :count, :count] = small.grams
        self._states[place].set(state.memory.view(np.float64))
        self._assign(place, columns)

    def take(self, place: int) -> RunStopped:
        self._device.wait_side()
        state = EquationsState(np, self._terms.order, self._columns, self._states[place].get())
        count = int(self._of[place, 1]) if self._is_batch else self._columns
        self._assign(place, slice(0, 0))
        status = state.status(state.memory)
        status = status._replace(norms=status.norms[:, :count].copy(), scales=status.scales[:, :count].copy())
        weights = state.weights[:count].copy() if self._bounds.constrained else status.norms[-1].copy()
        return RunStopped(status, int(state.facts[MODE]) if status.flags else 0, weights)

    def measure(self, norm: float) -> None:
        if norm != self._terms.norm:
            self._terms = self._terms._replace(norm=norm)
            self._limits = self._limits_of_terms()

    def _ridge(self, mode: int) -> np.float64:
        return np.float64(self._bounds.ridge[mode])

    def invert(self, mode: int, double: bool = False) -> None:
        others = [m for m in range(self._terms.order) if m != mode]
        held = self._first
        facts, scales, divisor = held.facts.get(), held.scales.get(), held.divisor.get()
        xp = self.inverting
        grams = held.grams.get() if xp is np else held.grams
        product = xp.prod(grams[others], axis=0)
        if not bool(xp.all(xp.isfinite(product))):
            return  # `prepare` has raised the flag
        each = xp.arange(len(product))
        product[each, each] += self._ridge(mode)
        inverse, condition = pseudo_inverse(product, CUTOFF, xp)
        if not double and condition > noise_limit(self._terms, facts[FIT]):
            self.totals[0, self._columns + 1] = 1.0
        inverse *= xp.asarray(np.multiply.reduce(scales[others])[:, None])
        self.inverse[...] = cupy.asarray(inverse / xp.asarray(divisor))
        held.facts[FLAGS] = float(int(facts[FLAGS]) & ~SINGULAR)

    def report(self) -> None:
        if self._is_batch:
            facts = self.reported.view(np.float64).reshape(-1, FACTS)
            on_device(facts, self._states[:, :FACTS])

    def status(self) -> list[EquationsStatus]:
        self.report()
        result = self.read(self.reported.get())
        if not self._is_batch and result[0].flags:
            self._first.facts[FLAGS] = float(result[0].flags & NEAR)
        return result

    def read(self, memory: NDArray[np.uint8]) -> list[EquationsStatus]:
        if not self._is_batch:
            return [self._first.status(memory)]
        return [
            EquationsStatus(int(row[FLAGS]), int(row[ITERATIONS]), row[FIT], NO_MATRIX, NO_MATRIX, row[SQUARES])
            for row in memory.view(np.float64).reshape(-1, FACTS).tolist()
        ]

    def _snapshot(self, function: CudaFunction, source: Array, target: Array) -> None:
        vectors = source.nbytes // VECTOR
        blocks = min(KEEP_BLOCKS, -(-vectors // 256))
        function((blocks,), (256,), (self._first.facts, source, target, np.int64(vectors)))


def addresses(places: Iterable[Array]) -> NDArray[np.uint64]:
    return np.array([place.data.ptr for place in places], np.uint64)


def strides_of(*matrices: Array) -> list[np.int64]:
    """Return the numbers from a row of each matrix to the next."""
    return [np.int64(matrix.strides[0] // matrix.itemsize) for matrix in matrices]
