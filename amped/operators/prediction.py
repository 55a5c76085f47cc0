"""How long an iteration of CP-ALS will take, from speeds measured on the machine at hand.

A speed is that of the operation that a run does, on a small made-up tensor: rows of input factor matrices multiplied by
the plain kernel, shards copied into a slot, rows solved, rows all-gathered. Kernels that hold rows closer to the
processors are faster than foreseen; random indices are as bad for caches as any.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, fields, replace
from typing import Any

import numpy as np

from partitioner.coo import ValueRange

from ..backend import Backend, Share
from ..backend.base import Array
from ..parallel.exchange import Exchange
from ..parallel.mpi import Comm
from .placement import Plan

# Enough for a millisecond or more, and matrices that fit into each level of cache, and into none.
NONZEROS = {"cuda": 1 << 22, "cpu": 1 << 15}
MATRICES = {"cuda": (1 << 21, 1 << 25, 1 << 27), "cpu": (1 << 18, 1 << 21, 1 << 24)}  # bytes
ROWS = {"cuda": 1 << 16, "cpu": 1 << 12}  # solved, and sent by a rank
OUTPUT_ROWS = 1024
RUNS = 3
ANY_VALUES = ValueRange(0.0, 1.0, 0.0)


@dataclass(frozen=True)
class Speeds:
    """What the slowest rank does in a second.

    Attributes
    ----------
    gather : tuple of (float, float)
        Bytes of a factor matrix, and the bytes a second at which a kernel multiplies random rows of it.
    copy : float
        Bytes a second from the host into a slot, all ranks at once.
    solve : float
        Rows a second of all that is dense.
    message : float
        Seconds of a small all-gather.
    exchange : float
        Bytes a second that a rank receives in a large one.
    """

    gather: tuple[tuple[float, float], ...]
    copy: float
    solve: float
    message: float = 0.0
    exchange: float = np.inf


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


def forecast(plan: Plan, speeds: Speeds, backend: Backend) -> Forecast:
    """Return what an iteration will take the rank whose plan this is."""
    compute = copy = exchange = dense = 0.0
    for mode in plan.modes:
        share = mode.share
        for length in share.lengths:
            compute += mode.nnz * share.row_bytes / _speed(speeds.gather, length * share.row_bytes)
        copy += backend.shard_bytes(replace(share, streamed=True), mode.streamed) / speeds.copy
        owned = mode.owned.stop - mode.owned.start
        received = (int(mode.cut.rows[-1]) - owned) * plan.stride * plan.dtype.itemsize
        waited_for = mode.parts[-1] * received  # the others travel while rows are computed
        exchange += speeds.message + waited_for / speeds.exchange
        dense += owned / speeds.solve
    return Forecast(compute, copy, exchange, dense)


def _speed(measured: Sequence[tuple[float, float]], nbytes: float) -> float:
    sizes, speeds = zip(*measured, strict=True)
    return float(np.interp(np.log(max(1.0, nbytes)), np.log(sizes), speeds))


def measure(
    backend: Backend,
    exchange: Exchange,
    comm: Comm,
    shape: Sequence[int],
    rank: int,
    dtype: np.dtype[Any],
    kernel: str = "auto",
) -> Speeds:
    """Return the speeds of the slowest rank, for a tensor's factor matrices of `rank` columns. Collective."""
    stride = backend.stride(rank, dtype.itemsize)
    known = backend.kernels(len(shape))
    trial = _Trial(backend, comm, shape, stride, dtype, kernel if kernel in known else known[0])
    copy, dense = trial.copy(), trial.solve(rank)
    smallest, *others = MATRICES[backend.name]
    sizes = smallest, *(size for size in others if size <= max(shape) * stride * dtype.itemsize)
    gather = tuple((float(size), trial.gather(size)) for size in sizes)  # takes no more memory than the run will
    speeds = Speeds(gather, copy, dense)
    if comm.size > 1:
        rows = ROWS[backend.name]
        received = (comm.size - 1) * rows * stride * dtype.itemsize
        large = received / trial.all_gather(exchange, rows)
        speeds = replace(speeds, message=trial.all_gather(exchange, 1), exchange=large)
    backend.rest()
    return speeds


class _Trial:
    """Operations of a run on made-up data."""

    def __init__(
        self, backend: Backend, comm: Comm, shape: Sequence[int], stride: int, dtype: np.dtype[Any], kernel: str
    ) -> None:
        self._backend, self._comm, self._stride, self._dtype = backend, comm, stride, dtype
        self._inputs, self._longest, self._kernel = len(shape) - 1, max(shape), kernel
        self._rng, self._nnz = np.random.default_rng(0), NONZEROS[backend.name]
        self._rows = np.linspace(0, OUTPUT_ROWS, self._nnz, endpoint=False).astype(np.int32)

    def gather(self, nbytes: int) -> float:
        """Return bytes a second out of matrices of so many bytes."""
        row = self._stride * self._dtype.itemsize
        share, shard = self._shard(max(1, nbytes // row))
        factors = [self._matrix(share.lengths[0], self._dtype)] * len(share.lengths)
        out = self._matrix(OUTPUT_ROWS, np.float64)
        seconds = self._seconds(lambda: self._backend.mttkrp(shard, factors, out))
        return len(factors) * self._nnz * row / seconds

    def copy(self) -> float:
        """Return bytes a second from the host into a slot."""
        share, shard = self._shard(OUTPUT_ROWS, streamed=True)
        host, clock = self._backend.unload(shard), self._backend.clock()
        slot, best = self._backend.slot([share] * (len(share.lengths) + 1), self._nnz, clock), np.inf
        for _ in range(RUNS):
            self._comm.allgather(None)
            slot.fill(host, 0)
            slot.shard()
            self._backend.synchronize()
            best = min(best, clock.collect()["copy", 0])
        return float(shard.nbytes / self._slowest(best))

    def solve(self, rank: int) -> float:
        """Return rows a second."""
        count = ROWS[self._backend.name]
        rows, target = self._matrix(count, np.float64), self._matrix(count, self._dtype)
        inverse = self._backend.to_device(np.eye(rank))
        totals = self._backend.zeros((rank + 1, rank), np.float64)
        some = rows[:, :rank], inverse, target[:, :rank]
        return count / self._seconds(lambda: self._backend.solve(*some, totals[:rank], totals[rank]))

    def all_gather(self, exchange: Exchange, rows: int) -> float:
        """Return the seconds of an all-gather of so many rows of each rank."""
        offsets = np.arange(self._comm.size + 1, dtype=np.int64) * rows
        matrix = self._matrix(int(offsets[-1]), self._dtype)
        return self._seconds(lambda: exchange.gather_rows(matrix, offsets[:-1], offsets[1:]))

    def _shard(self, length: int, streamed: bool = False) -> tuple[Share, Any]:
        # Kernels are those of the run, which depend on the number of modes, and on the longest.
        lengths, rows, kernels = (length,) * self._inputs, slice(0, max(OUTPUT_ROWS, self._longest)), (self._kernel,)
        share = Share(lengths, rows, self._nnz, self._stride, self._dtype, ANY_VALUES, kernels, streamed=streamed)
        columns = [self._rng.integers(0, length, self._nnz, dtype=np.int32) for _ in share.lengths]
        values = np.ones(self._nnz, self._dtype)
        return share, self._backend.shard([self._rows, *columns], values, share, self._kernel, False)

    def _matrix(self, rows: int, dtype: Any) -> Array:
        matrix = self._backend.empty((rows, self._stride), dtype)
        matrix.fill(1)  # memory that was never written is not there yet
        return matrix

    def _seconds(self, action: Callable[[], object]) -> float:
        """Return the slowest rank's seconds of the fastest run, which ranks begin together."""
        clock, best = self._backend.clock(), np.inf
        for _ in range(RUNS):
            self._comm.allgather(None)
            with clock.span("run", 0):
                action()
            best = min(best, clock.collect()["run", 0])
        return self._slowest(best)

    def _slowest(self, seconds: float) -> float:
        return max(self._comm.allgather(max(seconds, 1e-9)))
