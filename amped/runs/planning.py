"""What a run will take, before anything is allocated for it: plans of all ranks, and how long an iteration takes."""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple, Protocol

from ..backend.exchange import Machine
from ..methods.constraints import Constraints
from ..methods.prediction import Forecast, foretell, hopeless
from ..methods.prediction_dense import foretell_dense, hopeless_dense
from ..operators.dense.core import make_core_plan
from ..operators.dense.plan import make_dense_plan
from ..operators.placement import Plan, Setting, make_plan
from ..operators.sources.dense import DenseSource
from ..operators.sources.protocols import SparseSource
from ..parallel.mpi import on_root, together
from ..report.plans import core_plans, dense_plans, sparse_plans
from ..report.text import forecast_line


class Expected(NamedTuple):
    """What an iteration will take, if that can be foretold, and why it is not told, if so."""

    forecast: Forecast | None
    doubt: str | None

    @property
    def seconds(self) -> float | None:
        """The seconds of an iteration, if they are told."""
        return None if self.doubt or self.forecast is None else self.forecast.seconds


class Planned(Protocol):
    """The plans of a run on `ranks` ranks."""

    @property
    def plans(self) -> Sequence[Plan] | None:
        """The plan of each rank, on rank 0."""

    def forecast(self, constraints: Constraints) -> Expected:
        """Return what an iteration will take. Collective."""

    def text(self, expected: Expected) -> str:
        """Return the plans, and what an iteration will take, as text."""


class SparsePlanned:
    """Of a sparse tensor. See `Planned`."""

    def __init__(self, source: SparseSource, machine: Machine, setting: Setting, ranks: int) -> None:
        self._source, self._machine, self._setting, self._ranks = source, machine, setting, ranks
        self._cuts = [source.cut(mode, ranks) for mode in range(len(source.shape))]
        self._loading = source.loading(ranks, setting.options.dtype, machine.device.on_host)
        alone = setting._replace(overlaps=False)
        self.plans = on_root(
            machine.comm, lambda: [make_plan(self._cuts, part, alone, self._loading) for part in range(ranks)]
        )

    def forecast(self, constraints: Constraints) -> Expected:
        comm, setting = self._machine.comm, self._setting
        if setting.product.doubt:
            return Expected(None, setting.product.doubt)
        if self._ranks != comm.size:
            return Expected(None, f"{self._ranks} ranks are not started here")
        mine = together(comm, lambda: make_plan(self._cuts, comm.rank, setting, self._loading))
        if doubt := hopeless(mine, self._machine, constraints):
            return Expected(None, doubt)
        forecast = foretell(self._source, mine, self._machine, setting, constraints)
        return Expected(forecast, forecast.doubt)

    def text(self, expected: Expected) -> str:
        assert self.plans is not None
        return f"{sparse_plans(self.plans, self._machine.device)}\n{forecast_line(*expected)}"


class DensePlanned:
    """Of a dense tensor. See `Planned`."""

    def __init__(self, source: DenseSource, machine: Machine, setting: Setting, ranks: int) -> None:
        self._source, self._machine, self._setting = source, machine, setting
        self.plans = on_root(
            machine.comm, lambda: [make_dense_plan(source, part, ranks, setting) for part in range(ranks)]
        )

    def forecast(self, constraints: Constraints) -> Expected:
        if self.plans is None:  # of several processes it is not foretold
            return Expected(None, None)
        if doubt := hopeless_dense(self.plans[0], self._machine, constraints):
            return Expected(None, doubt)
        forecast = foretell_dense(self._source, self.plans[0], self._machine, self._setting, constraints)
        return Expected(forecast, forecast.doubt)

    def text(self, expected: Expected) -> str:
        assert self.plans is not None
        return f"{dense_plans(self.plans, self._machine.device)}\n{forecast_line(*expected)}"


class DenseCorePlanned:
    """Of a Tucker decomposition of a dense tensor. See `Planned`."""

    def __init__(self, source: DenseSource, machine: Machine, setting: Setting, ranks: int) -> None:
        self._machine = machine
        self.plans = on_root(
            machine.comm, lambda: [make_core_plan(source, part, ranks, setting) for part in range(ranks)]
        )

    def forecast(self, constraints: Constraints) -> Expected:
        return Expected(None, None)

    def text(self, expected: Expected) -> str:
        assert self.plans is not None
        return core_plans(self.plans, self._machine.device)
