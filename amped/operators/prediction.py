"""How long an iteration of CP-ALS will take, from speeds measured on the machine at hand.

A speed is that of the operation that a run does, on a small made-up tensor: rows of input factor matrices multiplied by
the plain kernel, shards copied into a slot, rows solved, rows all-gathered. Kernels that hold rows closer to the
processors are faster than foreseen; random indices are as bad for caches as any.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, fields, replace
from typing import Any

import numpy as np

from partitioner.coo import ValueRange

from ..backend.base import Array, Device
from ..backend.exchange import Machine
from ..backend.mttkrp import Shard, Share
from ..backend.providers import mttkrp_kernels, solver
from ..backend.solve import Sums
from ..options import Options
from .placement import Plan
from .remembered import recall, remember, rounded

OUTPUT_ROWS = 1024
RUNS = 3
GATHER, OTHERS = "gather ", ("copy", "solve", "message", "exchange")  # names of what is remembered
ANY_VALUES = ValueRange(0.0, 1.0, 0.0)


@dataclass(frozen=True)
class Speeds:
    """What the slowest rank does in a second."""

    # Bytes of a factor matrix, and the bytes a second at which a kernel multiplies random rows of it.
    gather: tuple[tuple[float, float], ...]
    copy: float  # bytes a second from the host into a slot, all ranks at once
    solve: float  # rows a second of all that is dense
    message: float = 0.0  # seconds of a small all-gather
    exchange: float = np.inf  # bytes a second that a rank receives in a large one


@dataclass(frozen=True)
class Forecast:
    """Seconds of an iteration on one rank; copies and computing overlap."""

    compute: float
    copy: float
    exchange: float
    solve: float

    @property
    def seconds(self) -> float:
        """Of the whole iteration."""
        return max(self.compute, self.copy) + self.exchange + self.solve

    def __str__(self) -> str:
        parts = (f"{field.name} {getattr(self, field.name) * 1e3:.3g}" for field in fields(self))
        return f"{self.seconds * 1e3:.3g} ms ({', '.join(parts)})"


def forecast(plan: Plan, speeds: Speeds) -> Forecast:
    """Return what an iteration will take the rank whose plan this is."""
    compute = copy = exchange = dense = 0.0
    for mode in plan.modes:
        share = mode.share
        for length in share.lengths:
            compute += mode.nnz * share.row_bytes / _speed(speeds.gather, length * share.row_bytes)
        copy += mode.shard_bytes(mode.streamed, streamed=True) / speeds.copy
        owned = mode.owned.stop - mode.owned.start
        received = (int(mode.cut.rows[-1]) - owned) * share.stride * plan.dtype.itemsize
        waited_for = mode.parts[-1] * received  # the others travel while rows are computed
        exchange += speeds.message + waited_for / speeds.exchange
        dense += owned / speeds.solve
    return Forecast(compute, copy, exchange, dense)


def _speed(measured: Sequence[tuple[float, float]], nbytes: float) -> float:
    sizes, speeds = zip(*measured, strict=True)
    return float(np.interp(np.log(max(1.0, nbytes)), np.log(sizes), speeds))


def measure(machine: Machine, shape: Sequence[int], rank: int, options: Options) -> Speeds:
    """Return the speeds of the slowest rank, for a tensor's factor matrices of `rank` columns. Collective.

    Where equal work takes equal times they are remembered: measuring takes longer than many a run.
    """
    trial, (smallest, *others) = _Trial(machine, shape, rank, options), machine.device.trial.matrices
    sizes = smallest, *(size for size in others if size <= max(shape) * trial.row_bytes)
    comm, device, facts = machine.comm, machine.device, {**trial.facts, "rank": rank, "sizes": sizes}
    known = comm.bcast(_recalled(facts, device) if comm.rank == 0 and device.steady else None)
    if known is None:
        known = _measured(trial, machine, rank, sizes)
        if comm.rank == 0 and device.steady:
            _remember(facts, device, known)
    return known


def _measured(trial: _Trial, machine: Machine, rank: int, sizes: Sequence[int]) -> Speeds:
    copy, dense = trial.copy(), trial.solve(rank)
    gather = tuple((float(size), trial.gather(size)) for size in sizes)  # takes no more memory than the run will
    speeds = Speeds(gather, copy, dense)
    if machine.comm.size > 1:
        rows = machine.device.trial.rows
        received = (machine.comm.size - 1) * rows * trial.row_bytes
        speeds = replace(speeds, message=trial.all_gather(1), exchange=received / trial.all_gather(rows))
    machine.device.rest()
    return speeds


def _remember(facts: Mapping[str, Any], device: Device, speeds: Speeds) -> None:
    numbers = {f"{GATHER}{size:.0f}": speed for size, speed in speeds.gather}
    numbers |= {name: getattr(speeds, name) for name in OTHERS if 0 < getattr(speeds, name) < np.inf}
    remember("speeds", facts, device, numbers)


def _recalled(facts: Mapping[str, Any], device: Device) -> Speeds | None:
    found = recall("speeds", facts, device)
    gather = [(float(size), found.get(f"{GATHER}{size:.0f}", 0.0)) for size in facts["sizes"]]
    others = {name: found[name] for name in OTHERS if name in found}
    needed = {"copy", "solve", *(("message", "exchange") if facts["ranks"] > 1 else ())}
    whole = needed <= others.keys() and all(speed for _, speed in gather)
    return Speeds(tuple(gather), **others) if whole else None


class _Trial:
    """Operations of a run on made-up data."""

    def __init__(self, machine: Machine, shape: Sequence[int], rank: int, options: Options) -> None:
        self._machine, self._device, self._dtype = machine, machine.device, options.dtype
        self._stride = self._device.stride(rank, self._dtype.itemsize)
        self._inputs, self._longest = len(shape) - 1, max(shape)
        self._rng, self._nnz = np.random.default_rng(0), self._device.trial.nonzeros
        self._rows = np.linspace(0, OUTPUT_ROWS, self._nnz, endpoint=False).astype(np.int32)
        plain, *others = [k for k in mttkrp_kernels(self._device) if k.suits(self._share(1))]
        self._kernel = next((k for k in others if k.name == options.kernel), plain)

    @property
    def facts(self) -> dict[str, Any]:
        """What speeds depend on, beside the device."""
        return {
            "ranks": self._machine.comm.size, "exchange": self._machine.exchange.name, "inputs": self._inputs,
            "longest": rounded(self._longest), "stride": self._stride, "type": self._dtype.name,
            "kernel": self._kernel.name,
        }  # fmt: skip

    @property
    def row_bytes(self) -> int:
        """Bytes of a row of a factor matrix."""
        return self._stride * self._dtype.itemsize

    def gather(self, nbytes: int) -> float:
        """Return bytes a second out of matrices of so many bytes."""
        share, shard = self._shard(max(1, nbytes // self.row_bytes))
        factors = [self._matrix(share.lengths[0], self._dtype)] * len(share.lengths)
        out = self._matrix(OUTPUT_ROWS, np.float64)
        computed = replace(share, rows=slice(0, OUTPUT_ROWS))
        scratch = self._device.empty((self._kernel.bytes(computed, shard.nnz).running,), np.uint8)
        seconds = self._seconds(lambda: self._kernel.run(shard, factors, out, scratch=scratch))
        return len(factors) * self._nnz * self.row_bytes / seconds

    def copy(self) -> float:
        """Return bytes a second from the host into a slot."""
        shard = self._shard(OUTPUT_ROWS, streamed=True)[1]
        host, clock = shard.unloaded(), self._device.clock()
        slot, best = self._device.slot(shard.nbytes, clock), np.inf
        for _ in range(RUNS):
            self._machine.comm.allgather(None)
            slot.fill(host, 0)
            slot.shard()
            self._device.synchronize()
            best = min(best, clock.collect()["copy", 0])
        return float(shard.nbytes / self._slowest(best))

    def solve(self, rank: int) -> float:
        """Return rows a second."""
        count = self._device.trial.rows
        rows, target = self._matrix(count, np.float64), self._matrix(count, self._dtype)
        inverse = self._device.to_device(np.eye(rank))
        totals = self._device.zeros((rank + 1, rank), np.float64)
        solve = solver(self._device, rank, self._dtype)
        made, sums = solve.make(count, rank, self._dtype), Sums(totals[:rank], totals[rank])
        return count / self._seconds(lambda: solve.run(made, rows[:, :rank], inverse, target[:, :rank], sums))

    def all_gather(self, rows: int) -> float:
        """Return the seconds of an all-gather of so many rows of each rank."""
        offsets = np.arange(self._machine.comm.size + 1, dtype=np.int64) * rows
        matrix = self._matrix(int(offsets[-1]), self._dtype)
        return self._seconds(lambda: self._machine.exchange.gather_rows(matrix, offsets[:-1], offsets[1:]))

    def _share(self, length: int, streamed: bool = False) -> Share:
        # Kernels are those of the run, which depend on the number of modes, and on the longest.
        lengths, rows = (length,) * self._inputs, slice(0, max(OUTPUT_ROWS, self._longest))
        return Share(lengths, rows, self._nnz, self._stride, self._dtype, ANY_VALUES, streamed=streamed)

    def _shard(self, length: int, streamed: bool = False) -> tuple[Share, Shard]:
        share = self._share(length, streamed)
        columns = [self._rng.integers(0, length, self._nnz, dtype=np.int32) for _ in share.lengths]
        return share, self._kernel.make([self._rows, *columns], np.ones(self._nnz, self._dtype), share, False)

    def _matrix(self, rows: int, dtype: Any) -> Array:
        return self._device.zeros((rows, self._stride), dtype)  # memory that was never written is not there yet

    def _seconds(self, action: Callable[[], object]) -> float:
        """Return the slowest rank's seconds of the fastest run, which ranks begin together."""
        clock, best = self._device.clock(), np.inf
        for _ in range(RUNS):
            self._machine.comm.allgather(None)
            with clock.span("run", 0):
                action()
            best = min(best, clock.collect()["run", 0])
        return self._slowest(best)

    def _slowest(self, seconds: float) -> float:
        return max(self._machine.comm.allgather(max(seconds, 1e-9)))
