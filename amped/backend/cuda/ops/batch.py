"""Batches of runs of CP-ALS: launching ``equations.cu``, ``solve.cu`` and ``nonnegative.cu`` for several of them."""

from __future__ import annotations

from collections.abc import Sequence
from functools import cache
from typing import Any

import cupy
import numpy as np
from numpy.typing import NDArray

from partitioner.cuda.code import allow_shared, load
from partitioner.cuda.cubins import CudaSource

from ...device import Array
from ...normal_equations.constrained import take_lengths_out
from ...normal_equations.host import BEST, FACTS, FIT, FLAGS, ITERATIONS, MODE, SQUARES, EquationsState, doubles
from ...ops.batch import BATCH, Batch, BatchProvider, Case, RunStart, RunStatus, RunStopped
from ...ops.equations import ACCURACY, CONDITION, NEARBY, ROUNDING, ConstraintBounds
from ..device import CudaDevice
from ..launches.device_matrices import addresses
from ..source import REALS, by_value, lanes, unit
from . import nonnegative, solve
from .equations import DOT_BLOCKS, DOT_THREADS, EquationsCode

MOST_COLUMNS = 32  # of a run: more gain little
EIGHT = 8  # the code is compiled for multiples of so many columns
FILLING = 2  # blocks of threads on a multiprocessor


class CudaBatch:
    """See `Batch`. Runs have room for `rank` columns each, a multiple of eight."""

    def __init__(self, device: CudaDevice, case: Case) -> None:
        self._device, self._case, terms = device, case, case.terms
        self._rank = rank = padded(terms.rank)
        order, places = terms.order, case.places
        self._bounds = case.bounds or ConstraintBounds((0.0,) * order, (), order - 1)
        self._equations, self._solve, self._add, self._hals = _compiled(rank, case.dtype, device.number)
        self._held = cupy.zeros((places, doubles(order, rank)), np.float64)
        self.totals = cupy.zeros((places, rank + 2 + terms.parts, rank), np.float64)
        self.dots = cupy.zeros((places, DOT_BLOCKS, rank), np.float64)
        self._inverse = cupy.zeros((places, rank, rank), np.float64)
        shapes = (places, rank, rank), (places, rank), (places, rank)
        self._system = [cupy.zeros(shape, np.float64) for shape in shapes]
        self._blocks = blocks_of(case.rows, places, device)
        self._parts = cupy.empty((places, self._blocks, rank + 2, rank), np.float64)
        self._columns = cupy.zeros((places, 2), np.int32)  # the first, and how many
        self._of = np.zeros((places, 2), np.int32)  # the same on the host
        self.facts = cupy.zeros((places, FACTS), np.float64)
        self._arguments()

    def _arguments(self) -> None:
        """Make what is passed to the code by value."""
        terms, held = self._case.terms, self._held
        first = self._state(held[0])
        weights = first.weights if self._case.bounds else first.norms[-1]
        places = (
            first.facts, first.norms, first.scales, first.divisor, first.grams, weights, self.totals, self._inverse,
        )  # fmt: skip
        numbers = np.array([terms.order, terms.parts, self._case.bounds is not None, terms.part], np.int32)
        limits = terms.norm, terms.most, terms.noise, CONDITION, ACCURACY, ROUNDING, NEARBY
        self._all = (
            by_value(addresses(places), numbers),
            by_value(np.array(limits), np.array([terms.gains, 0], np.int32)),
        )
        self._runs = by_value(addresses([self._columns, held]), np.array([held.shape[1]], np.int64))
        self._systems = by_value(addresses(self._system))

    def _state(self, memory: Array) -> EquationsState:
        return EquationsState(cupy, self._case.terms.order, self._rank, memory)

    def put(self, place: int, columns: slice, start: RunStart) -> None:
        told, count = start.told, columns.stop - columns.start
        small = EquationsState(np, self._case.terms.order, count)
        small.facts[[ITERATIONS, FIT, BEST]] = told.iterations, told.fit, start.best
        small.norms[...], small.scales[...] = told.norms, told.scales
        small.grams[...] = start.grams * (told.scales[:, :, None] * told.scales[:, None])
        if start.weights is not None:
            small.weights[...] = start.weights
        elif self._case.bounds:
            take_lengths_out(small, self._case.terms.norm)
        state = EquationsState(np, self._case.terms.order, self._rank)
        state.facts[...], state.weights[:count] = small.facts, small.weights
        state.norms[:, :count], state.scales[:, :count] = small.norms, small.scales
        state.grams[:, :count, :count] = small.grams
        self._held[place].set(state.memory.view(np.float64))
        self._of[place] = columns.start, count
        self._columns.set(self._of)

    def take(self, place: int) -> RunStopped:
        self._device.wait_side()
        state = EquationsState(np, self._case.terms.order, self._rank, self._held[place].get())
        count = self._of[place, 1]
        self._of[place] = 0
        self._columns.set(self._of)
        told, mode = state.told(state.memory), int(state.facts[MODE])
        cut = told._replace(norms=told.norms[:, :count].copy(), scales=told.scales[:, :count].copy())
        weights = state.weights[:count].copy() if self._case.bounds else cut.norms[-1].copy()
        return RunStopped(cut, mode if told.flags else 0, weights)

    def prepare(self, mode: int) -> None:
        ridge = np.float64(self._bounds.ridge[mode])
        if mode in self._bounds.nonnegative:
            self._launch("constrain", self._systems, np.int32(mode), np.int32(0), ridge)
        else:
            self._launch("prepare", np.int32(mode), np.int32(0), ridge)

    def _launch(self, name: str, *arguments: Any) -> None:
        threads = min(1024, -(-self._rank * self._rank // 32) * 32)  # as in equations.cu
        function = getattr(self._equations, name)
        function((self._case.places,), (threads,), (*self._all, self._runs, *arguments))

    def solve(self, mode: int, source: Array, target: Array, again: bool = False) -> None:
        rows, rank = len(source), self._rank
        if not rows:
            return
        which, blocks = (self._runs, np.int32(again)), min(self._blocks, -(-rows // solve.ROWS))
        strides = [np.int64(matrix.strides[0] // matrix.itemsize) for matrix in (source, target)]
        numbers = target, strides[1], np.int64(rows), self._parts
        grid = blocks, self._case.places
        if mode in self._bounds.nonnegative:
            sweeps = np.int32(0 if again else self._case.sweeps)
            arguments = (*which, source, strides[0], *self._system, sweeps, *numbers)
            self._hals(grid, (nonnegative.THREADS,), arguments, shared_mem=nonnegative.shared_bytes(rank))
        else:
            arguments = (*which, source, strides[0], self._inverse, *numbers)
            self._solve(grid, (solve.THREADS,), arguments, shared_mem=solve.shared_bytes(rank))
        totals = self.totals[0]
        dots = totals[rank] if mode == self._bounds.last else solve.NOWHERE
        places = totals, dots, totals[rank + 2 + self._case.terms.part], np.int64(self.totals[0].size)
        grid = -(-(rank + 2) * rank // solve.THREADS), self._case.places
        with self._device.side_stream():
            self._add(grid, (solve.THREADS,), (*which, self._parts, np.int32(blocks), *places))

    def widen(self, mode: int) -> None:
        nonnegative = mode in self._bounds.nonnegative
        self._launch("widen", self._systems, np.int32(nonnegative))
        if nonnegative:
            ridge = np.float64(self._bounds.ridge[mode])
            self._launch("constrain", self._systems, np.int32(mode), np.int32(1), ridge)

    def finish(self, mode: int, again: bool = False) -> None:
        self._launch("finish", np.int32(mode), np.int32(again))

    def multiply(self, source: Array, target: Array) -> None:
        strides = [np.int64(matrix.strides[0] // matrix.itemsize) for matrix in (source, target)]
        arguments = self._runs, source, strides[0], target, strides[1], np.int64(len(source)), self.dots
        self._equations.add_dots((DOT_BLOCKS, self._case.places), (DOT_THREADS,), arguments)

    def fit(self, exact: bool = False) -> None:
        self._launch("fit", self.dots, np.int32(DOT_BLOCKS), np.int32(exact))

    def tell(self) -> None:
        cupy.copyto(self.facts, self._held[:, :FACTS])

    def told(self) -> list[RunStatus]:
        self._device.wait_side()
        self.tell()
        return self.read(self.facts.get().view(np.uint8))

    def read(self, memory: NDArray[np.uint8]) -> list[RunStatus]:
        facts = memory.view(np.float64).reshape(-1, FACTS)
        return [RunStatus(int(row[FLAGS]), row[FIT], row[SQUARES]) for row in facts.tolist()]


class Batches:
    """See `BatchProvider`."""

    most = MOST_COLUMNS

    def __init__(self, device: CudaDevice) -> None:
        self._device = device

    def bytes(self, order: int, rank: int, parts: int, places: int, rows: int) -> int:
        rank, blocks = padded(rank), blocks_of(rows, places, self._device)
        small = doubles(order, rank) + rank * (3 * rank + 4 + parts + DOT_BLOCKS)
        return 8 * places * (small + blocks * (rank + 2) * rank) + (4 << 10)

    def make(self, case: Case) -> Batch:
        return CudaBatch(self._device, case)


@BATCH.provider("cuda")
def providers(device: CudaDevice) -> Sequence[BatchProvider]:
    """Return the provider of the operation, where tensor cores compute in double precision."""
    return [Batches(device)] if device.capability >= solve.LEAST_CAPABILITY else []


def padded(rank: int) -> int:
    """Return how many columns the code is compiled for."""
    return -(-rank // EIGHT) * EIGHT


def blocks_of(rows: int, places: int, device: CudaDevice) -> int:
    """Return how many blocks of threads solve the rows of a run, at most."""
    each = -(-FILLING * device.limits.processors // places)
    return max(1, min(each, -(-rows // solve.FEWEST)))


@cache
def _compiled(rank: int, dtype: np.dtype[Any], device: int) -> tuple[EquationsCode, Any, Any, Any]:
    equations, rows, hals = (load(source) for source in sources(rank, dtype))
    functions = rows.get_function("solve"), rows.get_function("add_parts"), hals.get_function("hals")
    for function in (functions[0], functions[2]):
        allow_shared(function)
    return EquationsCode(*map(equations.get_function, EquationsCode._fields)), *functions


def sources(rank: int, dtype: np.dtype[Any]) -> list[CudaSource]:
    """Return what is compiled for so many columns."""
    macros = {"RANK": rank, "REAL": REALS[dtype], "SEVERAL": 1}
    return [unit("equations", macros), unit("solve", macros), unit("nonnegative", macros | {"LANES": lanes(rank)})]
