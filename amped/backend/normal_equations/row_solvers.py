"""Solvers of the rows of a single run, with a separate solver for non-negative modes."""

from __future__ import annotations

from partitioner.array_types import FloatDType

from ..device import Array, Device
from ..ops.equations import EquationsCase
from ..ops.nonnegative import System, nonnegative_solver
from ..ops.solve import SolverBytes, Sums, solver


class RowSolvers:
    """Solves the rows of a single run.

    Attributes
    ----------
    allocates : bool
        See `Equations`.
    """

    def __init__(self, device: Device, case: EquationsCase) -> None:
        rank, dtype, self._bounds = case.terms.rank, case.dtype, case.bounds
        self._solver = solver(device, rank, dtype)
        self._scratch = self._solver.make(max(case.rows), rank, dtype)
        self.allocates = self._solver.allocates
        if case.bounds.nonnegative:
            self._nonnegative = nonnegative_solver(device, rank, dtype)
            self._nonnegative_scratch = self._nonnegative.make(case.nonnegative_rows, rank, dtype)
            self.allocates |= self._nonnegative.allocates

    def run(
        self, mode: int, source: Array, inverse: Array, system: System, target: Array, sums: Sums, again: bool
    ) -> None:
        """Queue the solution of a mode's rows by `inverse` or `system`; `again`: with other divisors of the columns."""
        if mode in self._bounds.nonnegative:
            sweeps = 0 if again else self._bounds.sweeps
            self._nonnegative.run(self._nonnegative_scratch, source, system, sweeps, target, sums)
        else:
            self._solver.run(self._scratch, source, inverse, target, sums)


def solver_bytes(device: Device, rows: int, rank: int, dtype: FloatDType, constrained: bool) -> SolverBytes:
    """Return the device memory for solving `rows` rows."""
    kept, passing = solver(device, rank, dtype).bytes(rows, rank)
    if not constrained:
        return SolverBytes(kept, passing)
    more = nonnegative_solver(device, rank, dtype).bytes(rows, rank)
    return SolverBytes(kept + more.kept + 8 * rank * (rank + 2), max(passing, more.passing))
