"""Prediction of the time of a CP-ALS iteration, from small parts of the run, before the tensor is placed.

Two parts are measured on the current machine. The part that does not depend on the nonzeros (solving and exchanging
rows, launches, the host) is measured with a tensor of the same shape and few nonzeros. The part that does is measured
with samples of the real nonzeros, from many places of each mode, with the kernels from which the run would choose.

Forecasts that may be wrong by more than 20 % are withheld: see `hopeless` and `Forecast.doubt`.
"""

from __future__ import annotations

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
from ..operators.sources.protocols import ModeCopies
from ..operators.sources.sparse import TensorSource
from ..operators.sparse.operator import SparseOperator
from .als import CpAls
from .constraints import NONE, SWEEPS, Constraints
from .driver import Method, Spans, StopRule, run
from .initial import initial_factors

WINDOWS = 64  # places of a mode from which a sample is taken
WARM, ITERATIONS, ROUNDS = 4, 16, 9  # warm-up iterations, timed iterations, rounds over all modes
FEW, ENOUGH = 3, 0.5  # iterations or rounds at least, after which measuring stops once this many seconds have passed
TRIES = 2  # runs per kernel
MOST_ROWS = 1 << 18  # non-negative rows that are timed at most
LEAST_SECONDS = 1e-3  # launches and caches dominate shorter iterations, which are not predicted
MOST_SPREAD = 0.1  # permitted distance of the quartiles of rounds from their median, relative to it
ROWS_A_RANK, ROWS_A_COLUMN, FILLED = 64, 4, 8  # of the sparse test tensor: used rows, and nonzeros per used row
SPARE = 2  # samples use this fraction (1 / SPARE) of the remaining memory


@dataclass(frozen=True)
class Forecast:
    """Predicted seconds of an iteration on the slowest rank; copies overlap with computing."""

    compute: float  # kernels that read nonzeros
    copy: float  # nonzeros from the host
    rest: float
    spread: float  # of the measurements, relative to their median

    @property
    def seconds(self) -> float:
        """Seconds of the whole iteration."""
        return max(self.compute, self.copy) + self.rest

    @property
    def doubt(self) -> str | None:
        """Why the forecast may be wrong; None if it is reliable."""
        if self.seconds < LEAST_SECONDS:
            return f"below {LEAST_SECONDS * 1e3:g} ms, launches and caches dominate"
        if self.spread > MOST_SPREAD:
            return f"timings on this machine currently vary by {self.spread:.0%}"
        return None

    def __str__(self) -> str:
        parts = (f"{name} {getattr(self, name) * 1e3:.3g}" for name in ("compute", "copy", "rest"))
        return f"{self.seconds * 1e3:.3g} ms ({', '.join(parts)})"


class _Try(NamedTuple):
    """A sample of a rank's nonzeros of a mode, in the form of one kernel."""

    mode: int
    share: Share
    shard: Shard
    out: Array


def hopeless(plan: Plan, machine: Machine, constraints: Constraints = NONE) -> str | None:
    """Return why an iteration of a plan cannot be predicted, if that is known without measuring; else None."""
    if not machine.device.steady:
        return "CPU timings vary too much to predict"
    if any(mode.any_row for mode in plan.modes):
        return "one copy of the nonzeros serves all modes"
    return settling(plan, constraints)


def settling(plan: Plan, constraints: Constraints) -> str | None:
    """Return why iterations cannot be predicted under some constraints; else None."""
    if constraints.terms:
        return "ADMM takes a varying number of iterations"
    if constraints.nonnegative and len(constraints.fixed) == len(plan.modes) - 1:
        return "the rows of the only non-fixed mode are solved until they converge"
    return None


def foretell(
    source: ModeCopies, plan: Plan, machine: Machine, setting: Setting, constraints: Constraints = NONE
) -> Forecast:
    """Return the predicted time of an iteration. Collective.

    Parameters
    ----------
    source : ModeCopies
    plan : Plan
        This rank's plan, for which `hopeless` returns None.
    machine : Machine
    setting : Setting
        The setting of the run.
    constraints : Constraints
    """
    comm, few = machine.comm, _hardly_any(source, machine, setting)
    rest = iterations(few, constraints)
    modes = [mode for mode in plan.modes if mode.mode not in constraints.fixed]
    trial = _Trial(few, machine, setting.memory)
    if not all(comm.allgather(plan.on_device)):  # as in a run
        source.leave_device()
    chosen = [trial.choose(source, mode, plan) for mode in modes]
    empty = [trial.placed(mode) for mode in modes]
    rounds, began = list[list[float]](), time.perf_counter()
    while len(rounds) < ROUNDS and (len(rounds) < FEW or time.perf_counter() - began < ENOUGH):
        rounds.append([trial.seconds(of) for of in (*chosen, *empty)])
    mine = [float(np.median(of)) for of in zip(*rounds, strict=True)]
    full, bare = mine[: len(chosen)], mine[len(chosen) :]
    scales = [mode.nnz / of.share.nnz if of else 0.0 for mode, of in zip(modes, chosen, strict=True)]
    seconds = [max(0.0, f * s - b) for f, s, b in zip(full, scales, bare, strict=True)]
    by_rank = np.array(comm.allgather(seconds))
    compute = by_rank.mean(axis=0)  # a run redistributes modes whose times differ between ranks
    copy = max(comm.allgather(trial.copying(chosen, modes)))
    spreads = [spread_of([sum(of[: len(chosen)]) for of in rounds]), spread_of(rest)]
    weights = [float(compute.sum()), float(np.median(rest))]
    spread = max(comm.allgather(float(np.average(spreads, weights=weights))))
    each = [source.used(mode.mode) // comm.size for mode in modes if mode.mode in constraints.nonnegative]
    rows = max(comm.allgather(sum(_row_seconds(few, count) for count in each)))
    machine.device.rest()
    return Forecast(float(compute.sum()), copy, max(comm.allgather(weights[1])) + rows, spread)


def _row_seconds(operator: SparseOperator, count: int) -> float:
    """Return the additional time of `count` non-negative rows, compared with rows of zeros, which converge at once."""
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


def _hardly_any(source: ModeCopies, machine: Machine, setting: Setting) -> SparseOperator:
    """Place a tensor of the same shape with few, random nonzeros, in rows that are as far apart as possible.

    There are enough nonzeros for nonsingular equations, and for every rank to own rows.
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
    """Return the seconds of consecutive iterations; at least ``FEW * turns`` of them.

    Random nonzeros raise flags, after which the host takes part; such iterations count only if there are few others.
    """
    ends, checked = list[float](), list[int]()

    def record(_: Method, spans: Spans, seconds: float) -> None:
        ends.append(time.perf_counter())
        checked.append(method.checked)
        method.checked = min(method.checked, 1)  # the next but one runs without the host again

    method = CpAls(operator, constraints)
    run(method, StopRule(WARM, tol=0), [record])
    usual = max(operator.machine.comm.allgather(ends[-1] - ends[-2]))
    run(method, StopRule(WARM + max(FEW * turns, min(ITERATIONS, int(ENOUGH / usual))) + 1, tol=0), [record])
    numbers = range(WARM + 1, len(ends))  # without the first iteration of the second run
    unchecked = [number for number in numbers if not any(checked[number - 2 : number + 1])]
    chosen = unchecked if len(unchecked) >= FEW * turns else list(numbers)
    return [ends[number] - ends[number - 1] for number in chosen]


class _Trial:
    """Times samples on the factor matrices of an operator."""

    def __init__(self, operator: SparseOperator, machine: Machine, memory: int) -> None:
        self._operator, self._device, self._comm = operator, machine.device, machine.comm
        self._clock: Clock = machine.device.clock()
        left, plan = memory - sum(operator.plan.device_bytes.values()), operator.plan
        # The samples of all modes are in memory at once, as columns or as shards, one of them as both.
        each = nonzero_bytes(operator.order, plan.dtype) * (operator.order + 1) * SPARE
        self._most = max(WINDOWS, min(machine.device.sample, left // each))

    def choose(self, source: ModeCopies, mode: ModePlan, plan: Plan) -> _Try | None:
        """Return a sample of a mode's nonzeros in the form of the fastest kernel; None if empty. Collective."""
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
            # Copying streamed shards takes longer than computing with them, so the smallest shard is the fastest.
            cost = min(self.seconds(result) for _ in range(TRIES)) if mode.resident else result.shard.nbytes
            if cost < best:
                best, chosen = cost, result
        return chosen

    def placed(self, mode: ModePlan) -> _Try | None:
        """Return the operator's own shard of a mode; None if it has none."""
        own, shards = self._operator.plan.modes[mode.mode], self._operator.stream.modes[mode.mode].resident
        return _Try(mode.mode, own.share, shards[0], self._operator.work.outs[mode.mode]) if shards else None

    def seconds(self, of: _Try | None) -> float:
        """Return the seconds that the MTTKRP of a sample takes."""
        if of is None:
            return 0.0
        kernel: Kernel = of.shard.kernel
        scratch = self._device.empty((kernel.bytes(of.share, of.share.nnz).running,), np.uint8)
        inputs = self._operator.work.inputs(of.mode)
        with self._clock.span("tune", of.mode):
            kernel.run(of.shard, inputs, of.out, slice(0, len(of.out)), scratch)
        return self._clock.collect()["tune", of.mode]

    def copying(self, chosen: Iterable[_Try | None], modes: Iterable[ModePlan]) -> float:
        """Return the seconds that this rank spends copying streamed shards per iteration. Collective."""
        seconds = 0.0
        for mode, of in zip(modes, chosen, strict=True):
            streamed = mode.streamed / of.share.nnz if of else 0.0
            if any(self._comm.allgather(streamed)):
                self._comm.allgather(None)  # all ranks copy at the same time
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
    """Return the slices of a sample: all nonzeros, or at most `most` of them from evenly spaced places."""
    if nnz <= most:
        return [slice(0, nnz)]
    starts = (np.arange(WINDOWS) * nnz // WINDOWS).tolist()
    return [slice(start, start + most // WINDOWS) for start in starts]


def _taken(column: Any, windows: Sequence[slice]) -> Any:
    parts = [column[window] for window in windows]
    return parts[0] if len(parts) == 1 else np.concatenate(parts)


def _renumbered(rows: NDArray[np.int32]) -> NDArray[np.int32]:
    """Renumber ascending rows consecutively, keeping their runs."""
    steps = np.zeros_like(rows)
    steps[1:] = rows[1:] != rows[:-1]
    return np.cumsum(steps, dtype=rows.dtype)
