"""Equations of several runs, computed run by run: the reference for a device's batch."""

from __future__ import annotations

from typing import Any

import numpy as np

from amped.backend.device import Device
from amped.backend.ops.equations import NEAR, RANGE, EquationsCase, EquationsStatus, RunStart, RunStopped, equations_of


class _Run:
    """One run of a batch."""

    def __init__(self, device: Device, case: EquationsCase, columns: slice, start: RunStart) -> None:
        rank = columns.stop - columns.start
        single = case._replace(terms=case.terms._replace(rank=rank), places=1)
        self.columns, self.equations = columns, equations_of(device, rank).make(single)
        self.equations.put(0, slice(0, rank), start)
        self.flags, self.mode, self.status = 0, 0, start.status

    def record(self, mode: int) -> None:
        """Store the raised flags, and the mode that raised them."""
        (self.status,) = self.equations.status()
        self.flags, self.mode = self.status.flags, mode

    def part_of(self, rows: Any) -> Any:
        return rows[:, self.columns]


class HostBatch:
    """See `Equations`."""

    memory = reported = None
    allocates = False

    def __init__(self, device: Device, case: EquationsCase) -> None:
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
        stopped = run.equations.take(0)
        return RunStopped(run.status._replace(flags=run.flags), run.mode if run.flags else 0, stopped.weights)

    def prepare(self, mode: int, double: bool = False) -> None:
        self.totals[...] = 0
        for _, run in self._of(0):
            run.equations.prepare(mode)
            run.record(mode)

    def invert(self, mode: int, double: bool = False) -> None:
        raise AssertionError("the run has been removed")

    def solve(self, mode: int, source: Any, target: Any, again: bool = False) -> None:
        for place, run in self._of(RANGE if again else 0):
            run.equations.solve(mode, run.part_of(source), run.part_of(target), again)
            self._copy(run, place, out=True)

    def _copy(self, run: _Run, place: int, out: bool) -> None:
        own, most = run.equations.totals[0], self._case.terms.rank
        rank = own.shape[1]
        for part, whole in (
            (own[:rank], self.totals[place, :rank, :rank]),
            (own[rank:], self.totals[place, most:, :rank]),
        ):
            if out:
                whole[...] = part
            else:
                part[...] = whole

    def widen(self, mode: int) -> None:
        for place, run in self.runs.items():
            if run.flags == RANGE:
                run.equations.widen(mode)
                self._copy(run, place, out=True)
            elif self._case.terms.part:
                self.totals[place] = 0

    def finish(self, mode: int, again: bool = False) -> None:
        for place, run in self._of(RANGE if again else 0):
            self._copy(run, place, out=False)
            run.equations.finish(mode, again)
            run.record(mode)

    def measure(self, norm: float) -> None:
        for run in self.runs.values():
            run.equations.measure(norm)

    def multiply(self, source: Any, target: Any) -> None:
        for place, run in self._of(NEAR):
            run.equations.multiply(run.part_of(source), run.part_of(target))
            self.dots[place, 0, : run.equations.dots.shape[2]] = run.equations.dots[0].sum(axis=0)

    def fit(self, exact: bool = False) -> None:
        for place, run in self._of(NEAR if exact else 0):
            if exact:
                run.equations.dots[...] = 0
                run.equations.dots[0, 0] = self.dots[place, 0, : run.equations.dots.shape[2]]
            run.equations.fit(exact)
            run.record(self._case.terms.order)

    def report(self) -> None:
        """See `Equations`: nothing is captured."""

    def read(self, memory: Any) -> list[EquationsStatus]:
        raise AssertionError("nothing is captured")

    def status(self) -> list[EquationsStatus]:
        free = EquationsStatus(0, 0, 0.0, np.empty((0, 0)), np.empty((0, 0)))
        return [
            run.status._replace(flags=run.flags) if (run := self.runs.get(place)) else free
            for place in range(self._case.places)
        ]

    def snapshot(self, source: Any, target: Any) -> None:
        raise AssertionError("nothing is queued ahead")


class HostBatches:
    """See `EquationsProvider`."""

    batch_columns = 32

    def __init__(self, device: Device) -> None:
        self._device = device

    def suits(self, rank: int) -> bool:
        return False

    def prepare(self, rank: int, dtype: Any, several: bool = False, nonnegative: bool = False) -> None:
        """See `EquationsProvider`: nothing to compile."""

    def bytes(self, order: int, rank: int, parts: int, places: int = 1, rows: int = 0) -> int:
        return places * 8 * (order + 3) * rank * (rank + 8)

    def make(self, case: EquationsCase) -> HostBatch:
        return HostBatch(self._device, case)
