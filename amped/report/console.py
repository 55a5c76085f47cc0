"""The report of a run on the console, for the command line and for Python functions with `verbose`."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import asdict
from functools import partial
from pathlib import Path
from signal import Signals
from typing import Protocol

from partitioner.host.jit import compiler_bytes
from partitioner.host.memory import resident_memory
from partitioner.host.stages import COMPILATIONS, STAGES
from partitioner.host.threads import ranks_on_cores, usable_cores

from ..backend.exchange import Machine
from ..methods.driver import Method, Spans, StopRule
from ..models.history import AnyModel
from ..operators.base import Placed
from ..operators.sources.protocols import DescribedSource
from ..options import ALL_GATHER, Options
from ..parallel.mpi import Comm
from . import components, text
from .dense import source_line
from .metrics import Metrics, peak_resident_bytes, split, versions
from .plans import MemoryPlan
from .progress import Display
from .remaining import Remaining

SHARING = {"replicated": "each computes everything"}
WORDS = {"choose": "choosing kernels", "compile": "compiling", "sort": "sorting", "spectra": "computing spectra"}
"""Names of stages on a terminal; other stages are shown as loading."""


class PlanSummary(Protocol):
    """An operator or product that was placed on devices by a plan."""

    @property
    def plan(self) -> MemoryPlan:
        """The plan of this rank."""


class RunReporter:
    """Reports a run to rank 0's display and metrics.

    Parameters
    ----------
    comm : Comm
    display : Display, optional
        By default one that shows nothing.
    metrics : Metrics, optional
    enabled : bool
        Whether to report at all; the same on all ranks, because reporting is collective.
    """

    def __init__(
        self, comm: Comm, display: Display | None = None, metrics: Metrics | None = None, enabled: bool = True
    ) -> None:
        self.comm, self.enabled = comm, enabled
        self.display, self.metrics = display or Display(), metrics or Metrics()
        self._initial_bytes = resident_memory() - compiler_bytes() if enabled else 0
        self._stages: dict[str, float] = {}
        self._remaining, self._writes = Remaining(), False  # whether metrics have each iteration, on all ranks
        self._spans: Spans = {}

    def source(self, name: str, source: DescribedSource) -> None:
        """Print a line about the tensor. Collective."""
        if self.enabled:
            self.display.note(source_line(name, source))

    def machine(self, machine: Machine, options: Options, distribution: str = ALL_GATHER) -> None:
        """Print the ranks, devices, distribution, exchange and precision. Collective."""
        if not self.enabled:
            return
        devices = self.comm.allgather(machine.device.description)
        ranks = f"{self.comm.size} rank{'s' * (self.comm.size > 1)}: {', '.join(dict.fromkeys(devices))}"
        shared = "" if distribution == ALL_GATHER else f"; {SHARING.get(distribution, f'grid {distribution}')}"
        exchange = f"; exchange over {machine.exchange.name}" if machine.comm.size > 1 else ""
        self.display.note(f"{ranks}{shared}{exchange}; {options.precision}")
        sharing, cores = ranks_on_cores(self.comm), usable_cores()
        if machine.device.on_host and sharing > cores:
            self.display.note(f"{sharing} ranks share {cores} cores and wait for each other: start at most {cores}")
        if self.comm.size > 1 and options.grid not in ("auto", distribution):
            self.display.note(f"grid {options.grid} is not used: this method exchanges rows by {distribution}")

    def began(
        self,
        tensor: str,
        source: DescribedSource,
        operator: Placed,
        rank: int | list[int],
        choosing: float,
        checkpoint: Path | None = None,
    ) -> None:
        """Write the start event to the metrics; `choosing`: this rank's seconds for choosing kernels. Collective."""
        self._writes = self.comm.bcast(self.metrics.writes)
        mine = operator.plan.planned_bytes, operator.machine.device.description, operator.kernels, choosing
        planned, devices, kernels, spent = zip(*self.comm.allgather(mine), strict=True)
        self.metrics.event(
            "start", tensor=tensor, shape=source.shape, nonzeros=source.nnz, norm=source.known_norm,
            checkpoint=None if checkpoint is None else str(checkpoint),
            rank=rank, ranks=self.comm.size, devices=devices, kernels=kernels, choosing=spent,
            options=asdict(operator.options), versions=versions(), planned_bytes=planned,
        )  # fmt: skip

    def stages(self) -> dict[str, float]:
        """Return the seconds of each stage so far, on its slowest rank. Collective."""
        for stage, seconds in STAGES.collect().items():
            self._stages[stage] = self._stages.get(stage, 0.0) + seconds
        by_rank = self.comm.allgather(self._stages)
        return {stage: max(each.get(stage, 0.0) for each in by_rank) for mine in by_rank for stage in mine}

    def start(self, number: int, of: int, seed: int) -> None:
        """Print the seed of the next start, if there are several."""
        if of > 1:
            self.display.note(f"start {number + 1} of {of}: seed {seed}")
            self.metrics.event("seed", seed=seed)

    def best(self, of: int, seed: int) -> None:
        """Print the seed of the best start, if there were several."""
        if of > 1:
            self.display.note(f"best of {of} starts: seed {seed}")

    def iteration(self, method: Method, spans: Spans, seconds: float, rule: StopRule) -> None:
        """Report an iteration; see `Observer`. Collective."""
        metrics, state = self.metrics, method.state
        by_rank = self._of_all_ranks(spans)
        change, gaps = method.change(), state.series.get("kkt")  # CP-APR compares KKT violations with the tolerance
        left = self._remaining.seconds(state.iterations, rule.max_iters, gaps[-1] if gaps else change, rule.tol)
        self.display.iteration(state.iterations, rule.max_iters, partial(text.iteration_facts, state, change), left)
        metrics.iterations.append(seconds)
        if by_rank and metrics.writes:
            latest = {name: numbers[-1] for name, numbers in state.series.items()}
            facts = {**latest, "seconds": seconds, "split": split(by_rank)}
            metrics.event("iteration", iteration=state.iterations, **facts)

    def _of_all_ranks(self, spans: Spans) -> list[Spans]:
        """Return the spans of all ranks if they are written; otherwise add them to those that `settle` gathers."""
        if self._writes:
            by_rank = self.comm.allgather(spans)
            self.metrics.add(by_rank)
            return by_rank
        for key, seconds in spans.items():
            self._spans[key] = self._spans.get(key, 0.0) + seconds
        return []

    def settle(self) -> None:
        """Add the times of all ranks since the last call to the metrics. Collective."""
        if self.enabled and not self._writes:
            self.metrics.add(self.comm.allgather(self._spans))
            self._spans = {}

    def memory(self, machine: Machine, placed: PlanSummary) -> str:
        """Return a line with the memory used and planned, each of the rank that used most. Collective."""
        used, plan = machine.device.peak_bytes(), placed.plan
        mine = {"host": (peak_resident_bytes() - compiler_bytes() - self._initial_bytes, plan.host_bytes)}
        if used is not None:
            mine["device"] = used, sum(plan.device_bytes.values())
        by_rank = self.comm.allgather(mine)
        self.metrics.event("memory", used_and_planned_bytes=by_rank)
        return text.memory_line(by_rank)

    def end(
        self,
        method: Method,
        rule: StopRule,
        seconds: float,
        memory: str,
        signal: Signals | None = None,
        result: str = "",
    ) -> None:
        """Close the live display and print times, memory, and how the decomposition ended."""
        self.display.close()
        self.display.note(f"{text.time_line(self.metrics.totals, seconds)}; {memory}")
        if self.metrics.usual:
            self.display.note(f"iterations took {self.metrics.usual * 1e3:.3g} ms")
        fits = method.state.series.get("fit", [])
        # Python functions issue this warning themselves.
        if result and (warning := text.low_fit(method.state.converged, fits, rule.tol)) is not None:
            self.display.note(f"warning: {warning}")
        self.display.note("; ".join(filter(None, [text.end_line(method.state, signal, rule, method.quiet), result])))

    def model(self, model: AnyModel) -> None:
        """Show the components of a model on a terminal."""
        self.display.components(lambda: components.brief(model))

    @contextmanager
    def compiling(self) -> Iterator[None]:
        """Within the block, show when code is compiled, which takes seconds on its first use."""
        with COMPILATIONS.heard(self.display.compiling) as seconds:
            yield
        if seconds:
            self.display.compiled(sum(seconds))

    @contextmanager
    def loading(self) -> Iterator[None]:
        """Within the block, show the current stage on a terminal: loading, choosing kernels, ..."""
        with self.compiling(), STAGES.observed(lambda stage: self.display.stage(WORDS.get(stage or "", "loading"))):
            self.display.stage("loading")
            try:
                yield
            finally:
                self.display.stage(None)
