"""A batch of runs, one after the other with the parts that a single run has: what a device's batch is to compute."""

from __future__ import annotations

from typing import Any

import numpy as np

from amped.backend.device import Device
from amped.backend.ops.batch import Case, RunStart, RunStatus, RunStopped
from amped.backend.ops.equations import NEAR, RANGE, equations_of
from amped.backend.ops.nonnegative import nonnegative_solver
from amped.backend.ops.solve import Sums, solver


class _Run:
    """One run of a batch."""

    def __init__(self, device: Device, case: Case, columns: slice, start: RunStart) -> None:
        rank = columns.stop - columns.start
        terms = case.terms._replace(rank=rank)
        provider, self.columns, self.case = equations_of(device, rank), columns, case
        if case.bounds:
            self.equations: Any = provider.make_constrained(terms, case.dtype, case.bounds)
        else:
            self.equations = provider.make(terms, case.dtype)
        self.equations.load(start.told, start.best)
        for mode, gram in enumerate(start.grams):
            self.equations.totals.fill(0)
            self.equations.totals[:rank] = device.to_device(gram)
            self.equations.hold(mode)
        if case.bounds:
            self.equations.start() if start.weights is None else self.equations.go_on(start.weights)
        self.solver, self.hals = solver(device, rank, case.dtype), nonnegative_solver(device, rank, case.dtype)
        self.made = self.solver.make(case.rows, rank, case.dtype), self.hals.make(case.rows, rank, case.dtype)
        self.flags, self.mode = 0, 0

    def note(self, mode: int) -> None:
        """Keep the flags that are raised, and where."""
        told = self.equations.told()
        self.flags, self.mode, self.told = told.flags, mode, told

    def solve(self, mode: int, source: Any, target: Any, again: bool) -> None:
        parts, sums = (source[:, self.columns], target[:, self.columns]), self.equations.sums(mode)
        if self.case.bounds and mode in self.case.bounds.nonnegative:
            sweeps = 0 if again else self.case.sweeps
            self.hals.run(self.made[1], parts[0], self.equations.system, sweeps, parts[1], sums)
        else:
            inverse = np.ascontiguousarray(self.equations.inverse)
            self.solver.run(self.made[0], parts[0], inverse, parts[1], Sums(*sums))


class HostBatch:
    """See `Batch`."""

    facts = None

    def __init__(self, device: Device, case: Case) -> None:
        self._device, self._case = device, case
        rank, places = case.terms.rank, case.places
        self.totals = device.zeros((places, rank + 2 + case.terms.parts, rank), np.float64)
        self.dots = device.zeros((places, 1, rank), np.float64)
        self.runs: dict[int, _Run] = {}

    def _of(self, flags: int) -> list[tuple[int, _Run]]:
        return [(place, run) for place, run in self.runs.items() if run.flags == flags]

    def put(self, place: int, columns: slice, start: RunStart) -> None:
        assert place not in self.runs
        self.runs[place] = _Run(self._device, self._case, columns, start)

    def take(self, place: int) -> RunStopped:
        run = self.runs.pop(place)
        told = run.told._replace(flags=run.flags)
        return RunStopped(told, run.mode if run.flags else 0, run.equations.weights.copy())

    def prepare(self, mode: int) -> None:
        self.totals[...] = 0
        for _, run in self._of(0):
            run.equations.prepare(mode)
            run.note(mode)

    def solve(self, mode: int, source: Any, target: Any, again: bool = False) -> None:
        for place, run in self._of(RANGE if again else 0):
            run.solve(mode, source, target, again)
            self._copy(run, place, out=True)

    def _copy(self, run: _Run, place: int, out: bool) -> None:
        rank = run.equations.totals.shape[1]
        mine, most = run.equations.totals, self._case.terms.rank
        for part, whole in (
            (mine[:rank], self.totals[place, :rank, :rank]),
            (mine[rank:], self.totals[place, most:, :rank]),
        ):
            if out:
                whole[...] = part
            else:
                part[...] = whole

    def widen(self, mode: int) -> None:
        for place, run in self.runs.items():
            if run.flags == RANGE:
                run.equations.widen()
                self._copy(run, place, out=True)
            elif self._case.terms.part:
                self.totals[place] = 0

    def finish(self, mode: int, again: bool = False) -> None:
        for place, run in self._of(RANGE if again else 0):
            self._copy(run, place, out=False)
            run.equations.finish(mode, again)
            run.note(mode)

    def multiply(self, source: Any, target: Any) -> None:
        for place, run in self._of(NEAR):
            run.equations.multiply(source[:, run.columns], target[:, run.columns])
            self.dots[place, 0, : run.equations.dots.shape[1]] = run.equations.dots.sum(axis=0)

    def fit(self, exact: bool = False) -> None:
        for place, run in self._of(NEAR if exact else 0):
            if exact:
                run.equations.dots[...] = 0
                run.equations.dots[0] = self.dots[place, 0, : run.equations.dots.shape[1]]
            run.equations.fit(exact)
            run.note(self._case.terms.order)

    def tell(self) -> None:
        """See `Batch`: nothing is noted down."""

    def read(self, memory: Any) -> list[RunStatus]:
        raise AssertionError("nothing is noted down")

    def told(self) -> list[RunStatus]:
        free = RunStatus(0, 0.0, 0.0)
        return [
            RunStatus(run.flags, run.told.fit, run.told.squares) if (run := self.runs.get(place)) else free
            for place in range(self._case.places)
        ]


class HostBatches:
    """See `Provider`."""

    most = 32

    def __init__(self, device: Device) -> None:
        self._device = device

    def bytes(self, order: int, rank: int, parts: int, places: int, rows: int) -> int:
        return places * 8 * (order + 3) * rank * (rank + 8)

    def make(self, case: Case) -> HostBatch:
        return HostBatch(self._device, case)
