"""Planned runs: the plans of all ranks and the expected time per iteration, before anything is allocated."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import NamedTuple, Protocol

from ..backend.exchange import Machine
from ..methods.constraints import Constraints
from ..methods.prediction import Forecast, foretell, hopeless
from ..methods.prediction_dense import foretell_dense, hopeless_dense
from ..operators.dense.core import make_core_plan
from ..operators.dense.plan import make_dense_plan
from ..operators.placement import Plan, Setting, make_plan
from ..operators.products import NoProduct
from ..operators.sources.dense import DenseSource
from ..operators.sources.protocols import ModeCopies, SparseSource
from ..operators.sparse.sampled import Distribution, SampledUse, sampled_plan
from ..parallel.mpi import on_root, together
from ..report.plans import core_plans, dense_plans, sampled_plans, sparse_plans
from ..report.text import forecast_line


class TimeEstimate(NamedTuple):
    """The expected time of an iteration, if it can be predicted, and the reason if it cannot be or is uncertain."""

    forecast: Forecast | None
    doubt: str | None

    @property
    def seconds(self) -> float | None:
        """The seconds per iteration, None without a certain forecast."""
        return None if self.doubt or self.forecast is None else self.forecast.seconds


class PlannedRun(Protocol):
    """The plans of a run on `ranks` ranks."""

    @property
    def plans(self) -> Sequence[Plan] | None:
        """The plan of each rank, on rank 0."""

    def forecast(self, constraints: Constraints) -> TimeEstimate:
        """Return the expected time per iteration. Collective."""

    def text(self, estimate: TimeEstimate) -> str:
        """Return the plans and the expected time per iteration as text."""


class PlannedSparseRun:
    """A planned run of a sparse tensor; see `PlannedRun`."""

    def __init__(self, source: ModeCopies, machine: Machine, setting: Setting, ranks: int) -> None:
        self.copies, self._machine, self._setting, self._ranks = source, machine, setting, ranks
        self._cuts = [source.cut(mode, ranks) for mode in range(len(source.shape))]
        self._loading = source.loading(ranks, setting.options.dtype, machine.device.on_host)
        without_overlap = setting._replace(overlaps=False)
        self.plans = on_root(
            machine.comm, lambda: [make_plan(self._cuts, part, without_overlap, self._loading) for part in range(ranks)]
        )

    def forecast(self, constraints: Constraints) -> TimeEstimate:
        comm, setting = self._machine.comm, self._setting
        if setting.product.doubt:
            return TimeEstimate(None, setting.product.doubt)
        if self._ranks != comm.size:
            return TimeEstimate(None, f"a run on {self._ranks} ranks needs {self._ranks} started ranks")
        mine = together(comm, lambda: make_plan(self._cuts, comm.rank, setting, self._loading))
        if doubt := hopeless(mine, self._machine, constraints):
            return TimeEstimate(None, doubt)
        forecast = foretell(self.copies, mine, self._machine, setting, constraints)
        return TimeEstimate(forecast, forecast.doubt)

    def text(self, estimate: TimeEstimate) -> str:
        assert self.plans is not None
        return f"{sparse_plans(self.plans, self._machine.device)}\n{forecast_line(*estimate)}"


class PlannedSampledRun:
    """A planned run of stochastic gradients; see `PlannedRun`."""

    def __init__(self, source: SparseSource, machine: Machine, setting: Setting, use: SampledUse, ranks: int) -> None:
        self._machine, distribution = machine, Distribution.of(source, ranks)
        loading = source.loading(ranks, setting.options.dtype, machine.device.on_host)
        self.plans = on_root(
            machine.comm,
            lambda: [sampled_plan(source, distribution, part, setting, use, loading) for part in range(ranks)],
        )

    def forecast(self, constraints: Constraints) -> TimeEstimate:
        return TimeEstimate(None, "the time of stochastic gradients is not predicted")

    def text(self, estimate: TimeEstimate) -> str:
        assert self.plans is not None
        return f"{sampled_plans(self.plans, self._machine.device)}\n{forecast_line(*estimate)}"


class PlannedDenseRun:
    """A planned run of a dense tensor; see `PlannedRun`."""

    def __init__(self, source: DenseSource, machine: Machine, setting: Setting, ranks: int) -> None:
        self._source, self._machine, self._setting = source, machine, setting
        self.plans = on_root(
            machine.comm, lambda: [make_dense_plan(source, part, ranks, setting) for part in range(ranks)]
        )

    def forecast(self, constraints: Constraints) -> TimeEstimate:
        if self.plans is None:  # on ranks other than 0
            return TimeEstimate(None, None)
        if doubt := self._setting.product.doubt or hopeless_dense(self.plans[0], self._machine, constraints):
            return TimeEstimate(None, doubt)
        forecast = foretell_dense(self._source, self.plans[0], self._machine, self._setting, constraints)
        return TimeEstimate(forecast, forecast.doubt)

    def text(self, estimate: TimeEstimate) -> str:
        assert self.plans is not None
        return f"{dense_plans(self.plans, self._machine.device)}\n{forecast_line(*estimate)}"


class PlannedGapRun(PlannedDenseRun):
    """A planned run of a dense tensor with few missing elements; `setting_of` returns the setting of a rank."""

    def __init__(self, source: DenseSource, machine: Machine, setting_of: Callable[[int], Setting], ranks: int) -> None:
        self._machine = machine
        self.plans = on_root(
            machine.comm, lambda: [make_dense_plan(source, part, ranks, setting_of(part)) for part in range(ranks)]
        )

    def forecast(self, constraints: Constraints) -> TimeEstimate:
        return TimeEstimate(None, NoProduct.doubt)


class PlannedDenseCore:
    """A planned Tucker decomposition of a dense tensor; see `PlannedRun`."""

    def __init__(self, source: DenseSource, machine: Machine, setting: Setting, ranks: int) -> None:
        self._machine = machine
        self.plans = on_root(
            machine.comm, lambda: [make_core_plan(source, part, ranks, setting) for part in range(ranks)]
        )

    def forecast(self, constraints: Constraints) -> TimeEstimate:
        return TimeEstimate(None, None)

    def text(self, estimate: TimeEstimate) -> str:
        assert self.plans is not None
        return core_plans(self.plans, self._machine.device)
