"""Normal equations of CP-ALS on the GPU, of one run or several: compiling and launching ``equations.cu``.

For many columns, see ``equations_large.py``.
"""

from __future__ import annotations

from collections.abc import Sequence
from functools import cache
from typing import NamedTuple

import numpy as np

from partitioner.array_types import FloatDType
from partitioner.cuda.code import load, prepare
from partitioner.cuda.cubins import CudaFunction

from ...device import Array
from ...normal_equations.row_solvers import RowSolvers
from ...normal_equations.state import doubles
from ...ops.equations import EQUATIONS, Equations, EquationsCase, EquationsProvider
from ..device import CudaDevice
from ..launches.device_matrices import DeviceMatrices, strides_of
from ..launches.equations_large import WideEquations, side_of, wide_bytes, wide_unit
from ..launches.fused_rows import rows_unit
from . import nonnegative as hals
from . import solve
from .gram import gram_unit

INVERTING = 6  # temporary matrices while a pseudo-inverse is computed on the device
MOST_COLUMNS = 48  # one thread block holds the matrix in registers; with more, several blocks are faster
MOST_BATCH_COLUMNS = 32  # columns of a run in a batch; with more, batches gain little
EIGHT = 8  # code for several runs is compiled for ranks rounded up to a multiple of this
LEAST_ROWS = 32  # of a block of threads that solves rows of several runs
FILLING = 2  # thread blocks per multiprocessor that solve rows of several runs
DOT_BLOCKS, DOT_THREADS = 64, 256  # as in equations.cu


class EquationsCode(NamedTuple):
    """Compiled functions of ``equations.cu``."""

    prepare: CudaFunction
    constrain: CudaFunction
    widen: CudaFunction
    finish: CudaFunction
    fit: CudaFunction
    add_dots: CudaFunction
    keep: CudaFunction


class CudaEquations(DeviceMatrices):
    """See `Equations`. A thread block holds a run's matrix; the host inverts it if elimination fails."""

    def __init__(self, device: CudaDevice, case: EquationsCase) -> None:
        rank, several = case.terms.rank, case.places > 1
        super().__init__(device, case, padded(rank) if several else rank, DOT_BLOCKS)
        self._functions = _compiled(self._columns, case.dtype, several, device.number)
        self._threads = min(1024, -(-(self._columns**2) // 32) * 32)  # as in equations.cu
        if several:
            self._make_rows(device, case)
        else:
            self._rows = RowSolvers(device, case)
            self.allocates = self._rows.allocates

    def _make_rows(self, device: CudaDevice, case: EquationsCase) -> None:
        """Create the solvers for the rows of several runs."""
        blocks = blocks_of(max(case.rows), case.places, device)
        how = device, self._columns, case.dtype, blocks, LEAST_ROWS, case.places, self._runs
        self._solving = solve.solving_rows(*how)
        self._sweeping = hals.sweeping_rows(*how) if case.bounds.nonnegative else None

    def _launch(self, name: str, *arguments: object) -> None:
        function = getattr(self._functions, name)
        function((self._case.places,), (self._threads,), (self._state, self._limits, self._runs, *arguments))

    def prepare(self, mode: int, double: bool = False) -> None:
        if mode in self._bounds.nonnegative:
            self._constrain(mode)
        else:
            self._launch("prepare", np.int32(mode), np.int32(double), self._ridge(mode))

    def _constrain(self, mode: int, again: bool = False) -> None:
        self._launch("constrain", self._system, np.int32(mode), np.int32(again), self._ridge(mode))

    def solve(self, mode: int, source: Array, target: Array, again: bool = False) -> None:
        sums = self._sums[mode]
        if not self._is_batch:
            self._rows.run(mode, source, self.inverse, self.system, target, sums, again)
        elif self._sweeping and mode in self._bounds.nonnegative:
            own = hals.operands(self._systems, 0 if again else self._bounds.sweeps, sums)
            self._sweeping.run(source, own, target, sums, self.totals[0].size, again)
        else:
            self._solving.run(source, solve.operands(self._inverses, sums), target, sums, self.totals[0].size, again)

    def widen(self, mode: int) -> None:
        nonnegative = mode in self._bounds.nonnegative
        self._launch("widen", self._system, np.int32(nonnegative))
        if nonnegative:
            self._constrain(mode, again=True)

    def finish(self, mode: int, again: bool = False) -> None:
        self._launch("finish", np.int32(mode), np.int32(again))

    def multiply(self, source: Array, target: Array) -> None:
        stride, other = strides_of(source, target)
        arguments = self._runs, source, stride, target, other, np.int64(len(source)), self.dots
        self._functions.add_dots((DOT_BLOCKS, self._case.places), (DOT_THREADS,), arguments)

    def fit(self, exact: bool = False) -> None:
        self._launch("fit", self.dots, np.int32(DOT_BLOCKS), np.int32(exact))

    def snapshot(self, source: Array, target: Array) -> None:
        self._snapshot(self._functions.keep, source, target)


class CudaEquationsProvider:
    """See `EquationsProvider`. Several runs need tensor cores in double precision."""

    def __init__(self, device: CudaDevice) -> None:
        self._device = device
        self.batch_columns = MOST_BATCH_COLUMNS if device.capability >= solve.LEAST_CAPABILITY else 0

    def suits(self, rank: int) -> bool:
        return rank <= MOST_COLUMNS

    def prepare(self, rank: int, dtype: FloatDType, several: bool = False, nonnegative: bool = False) -> None:
        columns = padded(rank) if several else rank
        units = [rows_unit("equations", columns, dtype, several), gram_unit(dtype)]
        if several:
            units.append(solve.solving_unit(columns, dtype, batch=True))
        if several and nonnegative:
            units.append(hals.sweeping_unit(columns, dtype, hals.file_of(columns, self._device), batch=True))
        prepare(units)

    def bytes(self, order: int, rank: int, parts: int, places: int = 1, rows: int = 0) -> int:
        if places == 1:
            return _state_bytes(order, rank, parts) + 8 * rank * DOT_BLOCKS
        rank, blocks = padded(rank), blocks_of(rows, places, self._device)
        small = doubles(order, rank) + rank * (3 * rank + 4 + parts + DOT_BLOCKS)
        return 8 * places * (small + 2 * blocks * (rank + 2) * rank) + (4 << 10)

    def make(self, case: EquationsCase) -> Equations:
        return CudaEquations(self._device, case)


class WideEquationsProvider:
    """See `EquationsProvider`; supports all ranks."""

    batch_columns = 0

    def __init__(self, device: CudaDevice) -> None:
        self._device = device

    def suits(self, rank: int) -> bool:
        return True

    def prepare(self, rank: int, dtype: FloatDType, several: bool = False, nonnegative: bool = False) -> None:
        prepare([wide_unit(dtype, side_of(self._device)), gram_unit(dtype)])

    def bytes(self, order: int, rank: int, parts: int, places: int = 1, rows: int = 0) -> int:
        """See `EquationsProvider`: includes the memory to compute a pseudo-inverse."""
        return _state_bytes(order, rank, parts) + wide_bytes(rank, side_of(self._device)) + 8 * INVERTING * rank * rank

    def make(self, case: EquationsCase) -> Equations:
        return WideEquations(self._device, case)


@EQUATIONS.provider("cuda")
def providers(device: CudaDevice) -> Sequence[EquationsProvider]:
    """Return the providers of the operation; the last one supports all ranks."""
    return [CudaEquationsProvider(device), WideEquationsProvider(device)]


def _state_bytes(order: int, rank: int, parts: int) -> int:
    return 8 * (2 * doubles(order, rank) + rank * (2 * rank + parts + 2)) + (4 << 10)


def padded(rank: int) -> int:
    """Return the number of columns for which the code for several runs is compiled."""
    return -(-rank // EIGHT) * EIGHT


def blocks_of(rows: int, places: int, device: CudaDevice) -> int:
    """Return the maximum number of thread blocks that solve the rows of each of several runs."""
    each = -(-FILLING * device.limits.processors // places)
    return max(1, min(each, -(-rows // solve.FEWEST)))


@cache
def _compiled(rank: int, dtype: FloatDType, several: bool, device: int) -> EquationsCode:
    module = load(rows_unit("equations", rank, dtype, several))
    return EquationsCode(*map(module.get_function, EquationsCode._fields))
