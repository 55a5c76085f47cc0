"""How long an iteration of CP-ALS will take, from small parts of the run, before anything of it is placed.

Two things are measured on the machine at hand. What an iteration takes whatever the nonzeros (solving and exchanging
rows, launches, the host) is that of a tensor of the same shape with hardly any. What nonzeros take is that of samples
of the real ones, from all over a mode, by the kernels that the run would choose from, the modes in turn.

A forecast that may be wrong by more than 20 % is not told: see `hopeless` and `Forecast.doubt`.
"""

from __future__ import annotations

import statistics
import time
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from partitioner.tensors.sparse import SparseTensor

from ..backend.device import Array, Clock
from ..backend.exchange import Machine
from ..backend.ops.mttkrp import Kernel, Shard, Share
from ..backend.ops.nonnegative import System, nonnegative_solver
from ..backend.ops.solve import Sums
from ..operators.base import Operator
from ..operators.modes import ModePlan
from ..operators.placement import Plan, Setting, nonzero_bytes
from ..operators.sources.protocols import SparseSource
from ..operators.sources.sparse import TensorSource
from ..operators.sparse.operator import SparseOperator
from .als import CpAls
from .constraints import NONE, SWEEPS, Constraints
from .driver import Method, Spans, StopRule, run
from .initial import initial_factors

WINDOWS = 64  # places of a mode that a sample comes from
WARM, ITERATIONS, ROUNDS = 4, 16, 9  # iterations, before those and that count; rounds of all modes
FEW, ENOUGH = 3, 0.5  # of these at least, if so many seconds are over
TRIES = 2  # of each kernel
MOST_ROWS = 1 << 18  # without negative numbers that are tried
LEAST_SECONDS = 1e-3  # of an iteration that is told: in shorter ones launches and caches decide
MOST_SPREAD = 0.1  # how far the quartiles of rounds may be from their median, relative to it
ROWS_A_RANK, ROWS_A_COLUMN, FILLED = 64, 4, 8  # used rows of the tensor with hardly any nonzeros, and nonzeros of each
SPARE = 2  # of the memory that is left for samples, one byte in so many is used


@dataclass(frozen=True)
class Forecast:
    """Seconds of an iteration, of the slowest rank; copies and computing overlap."""

    compute: float  # with nonzeros
    copy: float  # of nonzeros from the host
    rest: float
    spread: float  # of measurements, relative to their median

    @property
    def seconds(self) -> float:
        """Of the whole iteration."""
        return max(self.compute, self.copy) + self.rest

    @property
    def doubt(self) -> str | None:
        """Why it may be wrong; None if it may be told."""
        if self.seconds < LEAST_SECONDS:
            return f"it is less than {LEAST_SECONDS * 1e3:g} ms, which launches and caches decide on"
        if self.spread > MOST_SPREAD:
            return f"equal work takes times that differ by {self.spread:.0%} on this machine now"
        return None

    def __str__(self) -> str:
        parts = (f"{name} {getattr(self, name) * 1e3:.3g}" for name in ("compute", "copy", "rest"))
        return f"{self.seconds * 1e3:.3g} ms ({', '.join(parts)})"


class _Try(NamedTuple):
    """A sample of a rank's nonzeros of a mode, as one kernel has them."""

    mode: int
    share: Share
    shard: Shard
    out: Array


def hopeless(plan: Plan, machine: Machine, constraints: Constraints = NONE) -> str | None:
    """Return why no iteration of a plan can be foretold, if that is known without a trial."""
    if not machine.device.steady:
        return "CPU timings vary too much to predict"
    if any(mode.any_row for mode in plan.modes):
        return "one copy of the nonzeros serves all modes"
    return settling(plan, constraints)


def settling(plan: Plan, constraints: Constraints) -> str | None:
    """Return why an iteration of a single mode can not be foretold, if it is one."""
    if constraints.nonnegative and len(constraints.fixed) == len(plan.modes) - 1:
        return "the rows of one mode alone are solved until they are settled"
    return None


def foretell(
    source: SparseSource, plan: Plan, machine: Machine, setting: Setting, constraints: Constraints = NONE
) -> Forecast:
    """Return what an iteration will take. Collective.

    Parameters
    ----------
    source : SparseSource
    plan : Plan
        This rank's; not `hopeless`.
    machine : Machine
    setting : Setting
        Of the run.
    constraints : Constraints
    """
    comm, few = machine.comm, _hardly_any(source, machine, setting)
    rest = iterations(few, constraints)
    modes = [mode for mode in plan.modes if mode.mode not in constraints.fixed]
    trial = _Trial(few, machine, setting.memory)
    if not all(comm.allgather(plan.on_device)):  # as a run does
        source.leave_device()
    chosen = [trial.choose(source, mode, plan) for mode in modes]
    empty = [trial.placed(mode) for mode in modes]
    rounds, began = list[list[float]](), time.perf_counter()
    while len(rounds) < ROUNDS and (len(rounds) < FEW or time.perf_counter() - began < ENOUGH):
        rounds.append([trial.seconds(of) for of in (*chosen, *empty)])
    mine = [statistics.median(of) for of in zip(*rounds, strict=True)]
    full, bare = mine[: len(chosen)], mine[len(chosen) :]
    scales = [mode.nnz / of.share.nnz if of else 0.0 for mode, of in zip(modes, chosen, strict=True)]
    seconds = [max(0.0, f * s - b) for f, s, b in zip(full, scales, bare, strict=True)]
    by_rank = np.array(comm.allgather(seconds))
    compute = by_rank.mean(axis=0)  # modes are cut anew where ranks take unequal times
    copy = max(comm.allgather(trial.copying(chosen, modes)))
    spreads = [spread_of([sum(of[: len(chosen)]) for of in rounds]), spread_of(rest)]
    weights = [float(compute.sum()), statistics.median(rest)]
    spread = max(comm.allgather(float(np.average(spreads, weights=weights))))
    each = [source.used(mode.mode) // comm.size for mode in modes if mode.mode in constraints.nonnegative]
    rows = max(comm.allgather(sum(_row_seconds(few, count) for count in each)))
    machine.device.rest()
    return Forecast(float(compute.sum()), copy, max(comm.allgather(weights[1])) + rows, spread)


def _row_seconds(operator: SparseOperator, count: int) -> float:
    """Return how long so many rows without negative numbers take beyond rows of zeros, which are settled at once."""
    device, rank, dtype = operator.machine.device, operator.ranks[0], operator.options.dtype
    tried, clock, rng = max(1, min(count, MOST_ROWS)), device.clock(), np.random.default_rng(0)
    solver, columns = nonnegative_solver(device, rank, dtype), np.ones(rank)
    prepared, target = solver.make(tried, rank, dtype), device.zeros((tried, rank), dtype)
    gram, right, begin = (device.to_device(numbers) for numbers in (np.eye(rank) + 1, columns, columns.copy()))
    sums = Sums(device.zeros((rank, rank), np.float64), device.zeros((rank,), np.float64))
    seconds = []
    for rows in (device.to_device(rng.random((tried, rank))), device.zeros((tried, rank), np.float64)):
        each = list[float]()
        for _ in range(1 + TRIES):
            with clock.span("tune", 0):
                solver.run(prepared, rows, System(gram, right, begin), SWEEPS, target, sums)
            device.wait_side()
            each.append(clock.collect()["tune", 0])
        seconds.append(min(each))
    return max(0.0, seconds[0] - seconds[1]) * count / tried


def spread_of(seconds: Sequence[float]) -> float:
    low, middle, high = np.percentile(seconds, (25, 50, 75))
    return float(max(high - middle, middle - low) / middle) if middle else 0.0


def _hardly_any(source: SparseSource, machine: Machine, setting: Setting) -> SparseOperator:
    """Place a tensor of the same shape with few nonzeros: random ones, in rows as far apart as can be.

    There are enough of them for equations that have solutions, and for every rank to own rows.
    """
    rank, comm, rng = setting.ranks[0], machine.comm, np.random.default_rng(0)
    rows = max(ROWS_A_COLUMN * rank, ROWS_A_RANK * comm.size)
    used = [min(rows, length) for length in source.shape]
    count = FILLED * rows
    columns = np.stack([rng.integers(0, u, count) * n // u for u, n in zip(used, source.shape, strict=True)])
    few = TensorSource(SparseTensor.from_columns(columns.astype(np.int32), rng.random(count), source.shape), comm)
    options = replace(setting.options, placement="auto", kernel="auto")
    operator = SparseOperator(few, machine, setting._replace(options=options, values=few.value_range))
    for mode, factor in enumerate(initial_factors(few, rank, comm, options.dtype)):
        operator.set_factor(mode, factor)
    return operator


def iterations(operator: Operator, constraints: Constraints, turns: int = 1) -> list[float]:
    """Return the seconds of iterations as they follow one another; at least `FEW` times so many as take turns."""
    ends = list[float]()

    def note(method: Method, spans: Spans, seconds: float) -> None:
        ends.append(time.perf_counter())

    method = CpAls(operator, constraints)
    run(method, StopRule(WARM, tol=0), [note])
    usual = max(operator.machine.comm.allgather(ends[-1] - ends[-2]))
    run(method, StopRule(WARM + max(FEW * turns, min(ITERATIONS, int(ENOUGH / usual))) + 1, tol=0), [note])
    each: list[float] = np.diff(ends)[WARM:].tolist()  # without the first one of the second run
    return each


class _Trial:
    """Times samples on the factor matrices of an operator."""

    def __init__(self, operator: SparseOperator, machine: Machine, memory: int) -> None:
        self._operator, self._device, self._comm = operator, machine.device, machine.comm
        self._clock: Clock = machine.device.clock()
        left, plan = memory - sum(operator.plan.device_bytes.values()), operator.plan
        # Samples of all modes are there at once, as columns or as shards, and one of them as both.
        each = nonzero_bytes(operator.order, plan.dtype) * (operator.order + 1) * SPARE
        self._most = max(WINDOWS, min(machine.device.sample, left // each))

    def choose(self, source: SparseSource, mode: ModePlan, plan: Plan) -> _Try | None:
        """Return a sample of a mode's nonzeros as the fastest kernel has them; None if there are none. Collective."""
        windows = _windows(mode.nnz, self._most)
        columns = [_taken(column, windows) for column in source.load(mode.mode, mode.cut, plan.dtype, 0)]
        if not mode.nnz:
            return None
        share = mode.share
        if len(windows) > 1:
            columns[0] = _renumbered(columns[0])
            share = replace(share, rows=slice(0, int(columns[0][-1]) + 1), nnz=columns[0].size)
        *indices, values = [self._device.to_device(column) for column in columns]
        values = values.astype(share.dtype, copy=False)
        out = self._device.zeros((share.rows.stop - share.rows.start, share.stride), np.float64)
        best, chosen = np.inf, None
        for kernel in mode.kernels:
            if not kernel.suits(share):
                continue
            result = _Try(mode.mode, share, kernel.make([*indices], values, share, False), out)
            # What is streamed is copied for longer than it is computed: then the smallest shard is kept.
            cost = min(self.seconds(result) for _ in range(TRIES)) if mode.resident else result.shard.nbytes
            if cost < best:
                best, chosen = cost, result
        return chosen

    def placed(self, mode: ModePlan) -> _Try | None:
        """Return what the operator itself computes of a mode."""
        own, shards = self._operator.plan.modes[mode.mode], self._operator.stream.modes[mode.mode].resident
        return _Try(mode.mode, own.share, shards[0], self._operator.work.outs[mode.mode]) if shards else None

    def seconds(self, of: _Try | None) -> float:
        """Return how long a sample takes."""
        if of is None:
            return 0.0
        kernel: Kernel = of.shard.kernel
        scratch = self._device.empty((kernel.bytes(of.share, of.share.nnz).running,), np.uint8)
        inputs = self._operator.work.inputs(of.mode)
        with self._clock.span("tune", of.mode):
            kernel.run(of.shard, inputs, of.out, slice(0, len(of.out)), scratch)
        return self._clock.collect()["tune", of.mode]

    def copying(self, chosen: Iterable[_Try | None], modes: Iterable[ModePlan]) -> float:
        """Return how long this rank copies what it streams in an iteration. Collective."""
        seconds = 0.0
        for mode, of in zip(modes, chosen, strict=True):
            streamed = mode.streamed / of.share.nnz if of else 0.0
            if any(self._comm.allgather(streamed)):
                self._comm.allgather(None)  # all at once
                seconds += streamed * self._copied(of) if of else 0.0
        return seconds

    def _copied(self, of: _Try) -> float:
        host = of.shard.unloaded()
        slot, each = self._device.slot(host.nbytes, self._clock), list[float]()
        for _ in range(TRIES):
            slot.fill(host, of.mode)
            slot.shard()
            self._device.synchronize()
            each.append(self._clock.collect()["copy", of.mode])
        return min(each)


def _windows(nnz: int, most: int) -> list[slice]:
    """Return where samples are taken: everything, or at most so many nonzeros from places far apart."""
    if nnz <= most:
        return [slice(0, nnz)]
    starts = (np.arange(WINDOWS) * nnz // WINDOWS).tolist()
    return [slice(start, start + most // WINDOWS) for start in starts]


def _taken(column: Any, windows: Sequence[slice]) -> Any:
    parts = [column[window] for window in windows]
    return parts[0] if len(parts) == 1 else np.concatenate(parts)


def _renumbered(rows: NDArray[np.int32]) -> NDArray[np.int32]:
    """Return ascending rows with the same runs, and none left out."""
    steps = np.zeros_like(rows)
    steps[1:] = rows[1:] != rows[:-1]
    return np.cumsum(steps, dtype=rows.dtype)
