"""Choices made by timing: the kernel of each mode, and where modes are cut among the ranks."""

from __future__ import annotations

from collections.abc import Callable, Sequence

import numpy as np
from numpy.typing import NDArray

from partitioner.shards import even_offsets

from ..backend.base import Clock
from ..backend.exchange import Machine
from ..backend.mttkrp import Kernel, Shard
from ..options import Options
from .memory import ModePlan
from .placement import Plan
from .workspace import Workspace

RUNS, MOST_RUNS, SECONDS = 3, 10, 0.05  # the fastest run counts; there are more of them where they are short
UNEVEN = 0.01  # of a sweep: by how much a rank may compute longer than all on average before modes are cut anew
LEAST_SWEEP = 5e-4  # seconds; the times of shorter sweeps vary too much

Make = Callable[[Kernel, int], Shard]
"""Make a shard for a kernel from the first nonzeros of a mode, at most so many."""


class Tuner:
    """Times shards on the factor matrices as they stand."""

    def __init__(self, work: Workspace, machine: Machine, clock: Clock, options: Options) -> None:
        self._work, self._machine, self._clock = work, machine, clock
        self._by_time = options.kernel == "auto" and not options.deterministic

    def choose(self, mode: ModePlan, make: Make) -> tuple[Kernel, Shard | None]:
        """Choose a kernel by timing the candidates on a mode's first shard; a single one is only compiled.

        Return it, and the whole first shard if it was made.
        """
        first = mode.kernels[0]
        if len(mode.kernels) == 1:
            shard = make(first, 1)
            self._reserve([shard], mode)
            self._work.compute(shard, mode.mode)
            del shard
            self._machine.device.synchronize()
            self._work.reserve(0)
            return first, None
        best, kept = float("inf"), None
        for kernel in mode.kernels:
            self._work.reserve(0)  # making a shard takes that memory
            shard = make(kernel, mode.nnz)
            if kept is None or shard.nbytes <= mode.room(shard.nnz):
                best, cost = self._costs(best, kept, shard, mode)
                if cost < best:
                    best, kept = cost, shard
            del shard  # there is memory for the best and another one
        self._work.reserve(0)
        return (kept.kernel, kept) if kept else (first, None)

    def _costs(self, best: float, kept: Shard | None, shard: Shard, mode: ModePlan) -> tuple[float, float]:
        """Return the costs of the best shard so far, and of the next one."""
        if not mode.resident:
            return best, shard.nbytes  # what is streamed is copied for longer than it is computed
        if self._machine.device.steady:
            return best, self._seconds([[shard]], mode)[0]
        if kept is None:
            return best, 0.0  # it is timed with the next one
        again, cost = self._seconds([[kept], [shard]], mode)  # the machine may be slower than it was then
        return again, cost

    def uneven(self, plan: Plan, shards: Sequence[Sequence[Shard]]) -> dict[int, NDArray[np.int64]]:
        """Return where modes are to be cut instead, if ranks computed them for unequal times. Collective.

        A nonzero takes as long as its row is long and its factor rows are near: equal numbers are not equal times.
        `shards` are this rank's resident ones, by mode.
        """
        comm = self._machine.comm
        if comm.size == 1 or not self._machine.device.steady or not self._by_time:
            return {}
        if any(comm.allgather(bool(plan.slot))):  # what is streamed waits for its link
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
        """Return how long each candidate's shards take, the fastest of several runs, all in turn."""
        rounds, limit = list[list[float]](), SECONDS * len(candidates)
        while len(rounds) < RUNS or (len(rounds) < MOST_RUNS and np.sum(rounds) < limit):
            rounds.append([self._run(shards, mode) for shards in candidates])
        return [min(runs) for runs in zip(*rounds, strict=True)]

    def _run(self, shards: Sequence[Shard], mode: ModePlan) -> float:
        self._reserve(shards, mode)
        self._clock.collect()
        with self._clock.span("tune", mode.mode):
            for shard in shards:
                self._work.compute(shard, mode.mode)
        return self._clock.collect()["tune", mode.mode]

    def _reserve(self, shards: Sequence[Shard], mode: ModePlan) -> None:
        running = (shard.kernel.bytes(mode.share, shard.nnz).running for shard in shards)
        self._work.reserve(max(running, default=0))
