"""Choices made by timing: the kernel of each mode, and the cuts of modes between the ranks.

Measured costs are cached: a run only times kernels that earlier runs on equal devices and similar nonzeros have not.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from functools import partial
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from partitioner.host.stages import STAGES
from partitioner.shards.partition import even_offsets

from ...backend.device import Clock
from ...backend.exchange import Machine
from ...backend.ops.mttkrp import Kernel, Shard
from ...options import Options
from ..modes import ModePlan
from ..placement import Plan
from ..tuning_cache import load_timings, rounded, store_timings
from ..workspace import Workspace

RUNS, MOST_RUNS, SECONDS = 3, 10, 0.05  # minimum and maximum number of runs, and seconds in total; the fastest counts
SHORT, REPEATS = 1e-4, 20  # seconds of a run up to which it is repeated, and how often
CHOOSING = 0.1  # largest fraction of a run spent on timing, if the number of computations per mode is known
KIND, TRIAL = "kernel", "a trial"  # names in the tuning cache; see `Known`
UNEVEN = 0.01  # relative excess of the slowest rank's time over the mean above which modes are cut again
LEAST_SWEEP = 5e-4  # seconds; the times of shorter sweeps vary too much

Make = Callable[[Kernel, int], Shard]
"""Builds a shard for a kernel from at most the given number of leading nonzeros of a mode."""


@dataclass
class Budget:
    """The time that a run may spend on choosing kernels: a fraction of its total time.

    Attributes
    ----------
    repeats : int or None
        Largest number of computations of each mode; None if unknown: then the time is unlimited.
    began : float
        Start of the run, as returned by `time.perf_counter`.
    spent : float
        Seconds spent on choosing so far.
    computing : float
        Expected seconds of all repeats of the modes timed so far.
    expected : int or None
        The number of computations to expect, if it is not `repeats`.
    """

    repeats: int | None = None
    began: float = field(default_factory=time.perf_counter)
    spent: float = 0.0
    computing: float = 0.0
    expected: int | None = None

    @property
    def likely(self) -> int | None:
        """The number of computations of each mode to expect; None if unknown."""
        return self.repeats if self.expected is None else self.expected

    def expect(self, seconds: float) -> None:
        """Add a mode that takes `seconds` per computation."""
        self.computing += seconds * (self.repeats or 0)

    def affords(self, seconds: float) -> bool:
        """Return whether `seconds` more may be spent."""
        run = time.perf_counter() - self.began - self.spent + self.computing
        return self.repeats is None or self.spent + seconds <= CHOOSING * run


class Known(NamedTuple):
    """Cached costs of the kernels of a mode."""

    costs: Mapping[str, float]  # of timed kernels, by name: seconds per nonzero, or bytes per nonzero if streamed
    left: Sequence[Kernel]  # kernels without a cached cost
    trial: float  # maximum seconds per nonzero for building and timing a shard; 0 if unknown


class Tuner:
    """Times shards with the current factor matrices, and caches the times for later runs."""

    def __init__(self, work: Workspace, machine: Machine, clock: Clock, options: Options, budget: Budget) -> None:
        self._work, self._machine, self._clock, self.budget = work, machine, clock, budget
        self._by_time = options.kernel == "auto" and not options.deterministic
        self._loading = time.perf_counter()  # start of loading

    def prepare(self, modes: Sequence[ModePlan]) -> None:
        """Start compiling the kernels that will be timed or used, before modes are loaded."""
        self._loading = time.perf_counter()
        for mode in modes:
            known = self._known(mode)
            for kernel in mode.kernels if known.left else [_cheapest(mode.kernels, known.costs)]:
                for computation in mode.computed:
                    computation.prepare(kernel, mode)

    def choose(self, mode: ModePlan, make: Make) -> tuple[Kernel, Shard | None]:
        """Choose a kernel by timing the candidates on a mode's first shard; a single candidate is only compiled.

        Candidates with cached costs are not timed again, and timing stops when the budget is spent. Return the kernel,
        and the complete first shard if it was built.
        """
        with STAGES.of("choose"):
            if len(mode.kernels) == 1:
                compiles = self._machine.device.code_bytes > 0
                return self._compiled(mode, make) if compiles else mode.kernels[0], None
            known = self._known(mode)
            if known.costs and mode.resident:
                self.budget.expect(min(known.costs.values()) * mode.nnz)
            return self._timed(mode, make, known) if known.left else (_cheapest(mode.kernels, known.costs), None)

    def _compiled(self, mode: ModePlan, make: Make) -> Kernel:
        shard = make(mode.kernels[0], 1)
        self._reserve([shard], mode)
        self._compute(shard, mode)
        del shard
        self._machine.device.synchronize()
        self._work.reserve(0)
        return mode.kernels[0]

    def _timed(self, mode: ModePlan, make: Make, known: Known) -> tuple[Kernel, Shard | None]:
        """Time kernels without cached costs while the budget permits, and cache their costs."""
        plain, costs, trial = mode.kernels[0], dict(known.costs), known.trial * mode.nnz
        best: Shard | None = None
        if plain.name not in costs:
            began = time.perf_counter()
            best = make(plain, mode.nnz)  # its time counts as loading, because this shard is always built
            trial = time.perf_counter() - began + RUNS * self._once(best, mode)
        for kernel in known.left:
            if not self.budget.affords(trial):
                break
            began = time.perf_counter()
            self._work.reserve(0)  # building a shard needs this memory
            shard = best if best and kernel is plain else make(kernel, mode.nnz)
            if kernel is plain or shard.nbytes <= mode.shard_limit(shard.nnz):
                self._compare(costs, best, shard, mode)
                best = shard if _cheapest(mode.kernels, costs) is kernel else best
            del shard  # memory suffices for the best shard and another one
            seconds = time.perf_counter() - began
            self.budget.spent += seconds
            trial = max(trial, seconds)
        self._work.reserve(0)
        if self._machine.device.steady and len(costs) > len(known.costs):
            store_timings(KIND, _tuning_key(mode), self._machine.device, {**costs, TRIAL: trial / mode.nnz})
        chosen = _cheapest(mode.kernels, costs or {plain.name: 0.0})
        return chosen, best if best and best.kernel is chosen else None

    def _once(self, shard: Shard, mode: ModePlan) -> float:
        """Return the seconds of a mode's first shard, and add them to the budget; 0 if it is streamed."""
        seconds = self._run([shard], mode) if mode.resident else 0.0
        self.budget.expect(seconds * mode.nnz / shard.nnz)
        return seconds

    def _compare(self, costs: dict[str, float], best: Shard | None, shard: Shard, mode: ModePlan) -> None:
        """Write the cost per nonzero of a shard to `costs`, and update that of the best shard so far."""
        name, nnz = shard.kernel.name, shard.nnz
        if not mode.resident:
            costs[name] = shard.nbytes / nnz  # copying streamed shards takes longer than computing with them
        elif self._machine.device.steady or best is None or best is shard:
            costs[name] = self._seconds([[shard]], mode)[0] / nnz
        else:  # the machine may have become slower since the best one was timed
            costs[best.kernel.name], costs[name] = (s / nnz for s in self._seconds([[best], [shard]], mode))

    def _known(self, mode: ModePlan) -> Known:
        steady = self._machine.device.steady and len(mode.kernels) > 1
        result = load_timings(KIND, _tuning_key(mode), self._machine.device) if steady else {}
        costs = {k.name: result[k.name] for k in mode.kernels if k.name in result}
        return Known(costs, [k for k in mode.kernels if k.name not in costs], result.get(TRIAL, 0.0))

    def uneven(self, plan: Plan, shards: Sequence[Sequence[Shard]]) -> dict[int, NDArray[np.int64]]:
        """Return new cuts of the modes whose times differ between ranks. Collective.

        The time per nonzero depends on the lengths of rows and the locality of factor rows, so equal numbers of
        nonzeros can take unequal times. `shards` are this rank's resident shards by mode. As modes are then loaded
        again, the budget must permit that.
        """
        comm = self._machine.comm
        if comm.size == 1 or not self._machine.device.steady or not self._by_time:
            return {}
        if any(comm.allgather(bool(plan.slot))):  # the link limits streamed modes
            return {}
        if not comm.bcast(self.budget.affords(time.perf_counter() - self._loading)):
            return {}
        mine = [self._seconds([shards[m.mode]], m)[0] for m in plan.modes]
        self._work.reserve(0)
        seconds = np.array(comm.allgather(mine)).T
        slowest, mean = seconds.max(axis=1), seconds.mean(axis=1)
        if mean.sum() < LEAST_SWEEP or slowest.sum() <= (1 + UNEVEN) * mean.sum():
            return {}
        modes = np.flatnonzero(slowest > (1 + UNEVEN) * mean).tolist()
        return {mode: even_offsets(plan.modes[mode].cut.nonzeros, seconds[mode]) for mode in modes}

    def _seconds(self, candidates: Sequence[Sequence[Shard]], mode: ModePlan) -> list[float]:
        """Return the seconds of each candidate's shards: the fastest of several runs, in which candidates alternate."""
        self._reserve([shard for shards in candidates for shard in shards], mode)
        ways = [self._timer(shards, mode) for shards in candidates]
        rounds, limit = list[list[float]](), SECONDS * len(candidates)
        while len(rounds) < RUNS or (len(rounds) < MOST_RUNS and np.sum(rounds) < limit):
            rounds.append([way() for way in ways])
        return [min(runs) for runs in zip(*rounds, strict=True)]

    def _timer(self, shards: Sequence[Shard], mode: ModePlan) -> Callable[[], float]:
        """Return a function that computes with shards and returns the seconds.

        Kernels that take little longer than their launch are captured, as in an iteration, and run several times.
        """
        device, once = self._machine.device, partial(self._run, shards, mode)
        if not device.steady or once() > SHORT:
            return once
        data = [mode.product.make(shard, mode) for shard in shards]

        def several() -> None:
            with self._clock.span("tune", mode.mode):
                for _ in range(REPEATS):
                    for shard, made in zip(shards, data, strict=True):
                        mode.product.run(shard, mode, self._work.operands(mode.mode), data=made)

        replay = device.capture(several, device.empty((1,), np.uint8), self._clock)
        if replay is None:
            return once

        def run() -> float:
            replay.launch()
            replay.wait()
            return self._clock.collect()["tune", mode.mode] / REPEATS

        return run

    def _run(self, shards: Sequence[Shard], mode: ModePlan) -> float:
        self._reserve(shards, mode)
        self._clock.collect()
        with self._clock.span("tune", mode.mode):
            for shard in shards:
                self._compute(shard, mode)
        return self._clock.collect()["tune", mode.mode]

    def _compute(self, shard: Shard, mode: ModePlan) -> None:
        """Queue the mode's product for a shard."""
        mode.product.run(shard, mode, self._work.operands(mode.mode), data=mode.product.make(shard, mode))

    def _reserve(self, shards: Sequence[Shard], mode: ModePlan) -> None:
        running = (mode.running(shard.kernel, shard.nnz) for shard in shards)
        self._work.reserve(max(running, default=0))


def _cheapest(kernels: Sequence[Kernel], costs: Mapping[str, float]) -> Kernel:
    return min((k for k in kernels if k.name in costs), key=lambda kernel: costs[kernel.name])


def _tuning_key(mode: ModePlan) -> dict[str, Any]:
    """Return the key of the tuning cache for a mode; the cache adds device and code."""
    share, rows = mode.share, mode.rows.stop - mode.rows.start
    return {
        "mode": mode.mode, "lengths": share.lengths, "rows": rounded(rows), "nonzeros": rounded(share.nnz),
        "stride": share.stride, "type": share.dtype.name, "gather": share.gather,
        "values": [float(value) for value in share.values],
        "kernels": [kernel.name for kernel in mode.kernels], "resident": mode.resident > 0, **mode.product.tuning_key,
    }  # fmt: skip
