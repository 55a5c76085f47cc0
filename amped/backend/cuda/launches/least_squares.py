"""Launches of ``least_squares.cu``, which solves rows from their sums and adds their results."""

from __future__ import annotations

from functools import cache

import numpy as np
from numpy.typing import NDArray

from partitioner.cuda.code import allow_shared, load
from partitioner.cuda.cubins import CudaFunction

from ...device import Array
from ...ops.rowproblems import RESIDUAL, CommonEquations, RowTerms
from ..code.least_squares import NOISE, SOLVED_BYTES, THREADS, LeastSquaresCode
from ..source import by_value
from .row_passes import RowTasks

NOWHERE = np.uint64(0)
RESULTS = SOLVED_BYTES // 8  # numbers: the statistics from `RESIDUAL` on
MANY, MOST_BLOCKS = 4096, 256  # results that many thread blocks add, and their number


class LeastSquaresLaunches:
    """Solves rows of one mode from their sums; queued on the current stream."""

    def __init__(self, code: LeastSquaresCode, limits: RowTerms, device: int) -> None:
        self.code, self._functions, self._measured = code, _solving(code, device), np.int32(limits.measured)
        self.in_double = limits.sweeps > 0 or limits.common is not None  # all rows, in place of doubtful ones only
        fields = np.dtype([("ridge", "f8"), ("sweeps", "i4")], align=True)
        self.terms = by_value(np.array([(limits.ridge, limits.sweeps)], fields))
        self.common = by_value(_packed(limits.common))
        # Right-hand sides of common equations are those of an MTTKRP, which may be in single precision.
        self._noise = NOISE if limits.common is not None and code.dtype == np.float32 else 0.0

    def solve(
        self,
        sums: Array,
        names: Array,
        own: Array,
        solved: Array,
        pitch: int = 0,
        tasks: RowTasks | None = None,
        noise: float = 0.0,
    ) -> None:
        """Solve the rows `names` of `own` from their sums, or all rows in order."""
        count = len(own) if isinstance(names, np.uint64) else names.size
        slots = (NOWHERE, np.int32(0)) if tasks is None else (tasks.first, np.int32(tasks.begin))
        args = sums, np.int64(pitch or self.code.sums), *slots, names, own, np.int64(own.shape[1]), self.terms
        function = self._functions["solve_rows"]
        args += np.float64(max(noise, self._noise)), solved, self.common
        function((count,), (self.code.team,), args, shared_mem=self.code.shared)

    def add_solved(self, solved: Array, count: int, seen: Array, parts: Array = NOWHERE) -> None:
        """Add the results of rows to the statistics; `parts` has room for sums of many thread blocks."""
        function, total = self._functions["add_solved"], seen[RESIDUAL:]
        blocks = MOST_BLOCKS if count >= MANY and parts is not NOWHERE else 1
        function((blocks,), (256,), (solved, np.int32(count), self._measured, total, parts))
        if blocks > 1:
            function((1,), (256,), (parts, np.int32(blocks), self._measured, total, NOWHERE))

    def clear(self, names: Array, own: Array) -> None:
        """Set rows to zero."""
        if names.size:
            blocks = (-(-names.size * self.code.rank // THREADS),)
            args = names, np.int32(names.size), own, np.int64(own.shape[1])
            self._functions["clear_rows"](blocks, (THREADS,), args)


def _packed(common: CommonEquations | None) -> NDArray[np.void]:
    """Return equations as `Common` in ``row_equations.cuh``."""
    fields = np.dtype([("gram", "u8"), ("rights", "u8"), ("pitch", "i8")])
    if common is None:
        return np.zeros(1, fields)
    gram, rights = common
    return np.array([(gram.data.ptr, rights.data.ptr, rights.strides[0] // rights.itemsize)], fields)


@cache
def _solving(code: LeastSquaresCode, device: int) -> dict[str, CudaFunction]:
    module = load(code.solving())
    functions = {name: module.get_function(name) for name in ("solve_rows", "add_solved", "clear_rows")}
    allow_shared(functions["solve_rows"])
    return functions
