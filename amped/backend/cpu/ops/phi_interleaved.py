"""How a CPU computes Phi of interleaved models: a vector of 64 bytes has a number of each."""

from __future__ import annotations

from collections.abc import Sequence
from functools import cache
from typing import Any, NamedTuple

import numpy as np

from ...device import NOTHING, Array
from ...ops.mttkrp import Kernel, Offers, Share
from ...ops.phi import PHI, Groups, GroupShape, PhiProvider, joined
from ..device import CpuDevice
from ..kernels import interleaved
from ..kernels.sums import SumScratch, threads_worth
from ..shard import HostShard, constant
from ..simd.registers import EIGHT
from ..simd.vectors import LANE, LINE
from ..threads import check
from .mttkrp import TURNS

LEAST = 1 << 14  # numbers of a part of a matrix
NONE: Groups = {}
LANES = 8  # that a group has at most: 256 bytes, in registers


class ByVectors:
    """See `InterleavedPhi`; of shards in the order of their rows."""

    multi_model = True

    def __init__(self, device: CpuDevice) -> None:
        self._threads, self._known = device.threads, (NONE, _work(NONE, np.dtype(np.float32)))

    def width(self, dtype: np.dtype[Any]) -> int:
        return LANES * LANE // dtype.itemsize

    def models(self, rank: int, dtype: np.dtype[Any]) -> int:
        """See `InterleavedPhi`: as many as a register has numbers, or a power of two less."""
        models = LINE // dtype.itemsize
        while models and models * rank > self.width(dtype):
            models //= 2
        return models

    def columns(self, model: int, models: int, dtype: np.dtype[Any]) -> slice:
        return slice(model, self.width(dtype), models)

    def suits(self, kernel: Kernel, share: Share) -> bool:
        return Offers.ROWS in kernel.offers

    def prepare(self, kernel: Kernel, share: Share) -> None:
        """See `PhiProvider`: Numba compiles in one thread, when code is first called."""

    def bytes(self, kernel: Kernel, share: Share, nnz: int) -> int:
        """See `PhiProvider`: carries, or sums, for each part."""
        parts = self._threads.count * TURNS
        return parts * share.stride * 8 + LINE if nnz else 0

    def run(
        self,
        shard: HostShard,
        factors: Sequence[Array],
        own: Array,
        floor: float,
        out: Array,
        new: slice = NOTHING,
        scratch: Array = None,
        skip: Array = None,
        groups: Groups | None = None,
    ) -> None:
        work, parts = self._work(groups, out.shape[1], own.dtype), self._parts(out[new])
        check(interleaved.clear(0, *self._team(parts), out, new.start, new.stop, work.eights, parts))
        if not shard.nnz:
            return
        outs = out, SumScratch(scratch).take((shard.parts.shared.size, out.shape[1]), out.dtype)
        args, bounds = self._arguments(shard, factors, own), (shard.parts.bounds, shard.parts.shared, outs)
        for sort, begins in work.sorts.items():
            check(interleaved.phis(0, *args, float(floor), begins, *bounds, shard.permutation, *sort))

    def add_logs(
        self,
        shard: HostShard,
        factors: Sequence[Array],
        own: Array,
        floor: float,
        total: Array,
        scratch: Array = None,
        groups: Groups | None = None,
    ) -> None:
        if not shard.nnz:
            return
        sums = SumScratch(scratch).take((shard.parts.shared.size, total.size), np.dtype(np.float64))
        sums.fill(0)
        args, bounds = self._arguments(shard, factors, own), (shard.parts.bounds, sums)
        for sort, begins in self._work(groups, total.size, own.dtype).sorts.items():
            check(interleaved.logs(0, *args, float(floor), begins, *bounds, shard.permutation, *sort))
        for each in sums:  # in order, so that they are the same every time
            total += each

    def _arguments(self, shard: HostShard, factors: Sequence[Array], own: Array) -> Sequence[Any]:
        """Return the arguments that all have in common: from the team to the first row."""
        inputs = tuple(map(constant, factors))
        nonzeros = *shard.pieces, tuple(map(constant, shard.indices)), constant(shard.values)
        size = min(threads_worth(self._threads.count, shard, factors[0]), shard.parts.shared.size)
        return self._threads.team, size, np.zeros(1, np.int64), nonzeros, inputs, constant(own), shard.row_begin

    def _work(self, groups: Groups | None, columns: int, dtype: np.dtype[Any]) -> _Work:
        """Return how groups are computed; those of the last call are known."""
        if groups is None:
            models, width = LINE // dtype.itemsize, self.width(dtype)
            groups = {GroupShape(models, width // models): np.arange(0, columns // width * width, width)}
        if groups is not self._known[0]:
            self._known = groups, _work(groups, dtype)
        return self._known[1]

    def copy(
        self,
        source: Array,
        target: Array,
        skip: Array = None,
        groups: Groups | None = None,
        dtype: np.dtype[Any] | None = None,
    ) -> None:
        assert dtype is not None
        columns = self._work(groups, source.size, dtype).columns
        target[columns] = source[columns]

    def measure(self, phi: Array, matrix: Array, groups: Groups, violations: Array, done: Array) -> None:
        work, parts = self._work(groups, matrix.shape[1], matrix.dtype), self._parts(matrix)
        result = np.empty((parts, matrix.shape[1]))
        check(interleaved.measure(0, *self._team(parts), phi, matrix, work.eights, result))
        violations[work.firsts] = np.maximum.reduceat(result[:, work.columns].max(axis=0), work.bounds)

    def apply(
        self, phi: Array, matrix: Array, groups: Groups, violations: Array, facts: Array, tol: float, done: Array
    ) -> None:
        work, parts = self._work(groups, matrix.shape[1], matrix.dtype), self._parts(matrix)
        going = work.firsts[done[work.firsts] == 0]
        stops = violations[going] < tol
        facts[going, 0] = violations[going]
        facts[going, 1] += ~stops
        done[going[stops]] = 1
        still = np.ones(matrix.shape[1])
        still[work.columns] = np.repeat(done[work.firsts], work.counts)
        check(interleaved.apply(0, *self._team(parts), phi, matrix, work.eights, still, parts))

    def _parts(self, matrix: Array) -> int:
        """Return how many parts of a matrix's rows threads take, one after the other."""
        return int(max(1, min(self._threads.count * TURNS, matrix.size // LEAST)))

    def _team(self, parts: int) -> Sequence[Any]:
        return self._threads.team, min(self._threads.count, parts), np.zeros(1, np.int64)


@PHI.provider("cpu")
def providers(device: CpuDevice) -> Sequence[PhiProvider]:
    """Return the providers of the operation."""
    return [ByVectors(device)]


class _Sort(NamedTuple):
    """By which code groups are computed: tuples as long as their columns have lanes, and as registers are halved."""

    lanes: tuple[int, ...]
    folds: tuple[int, ...]


class _Work(NamedTuple):
    """How groups are computed.

    Attributes
    ----------
    sorts : dict
        Where the groups of each sort begin.
    eights : int64 array
        Columns at which eight columns begin that are computed.
    firsts, bounds, counts : int64 arrays
        Of each model: its first column, and where its columns begin in `columns`, and how many there are.
    columns : int64 array
        Model by model.
    """

    sorts: dict[_Sort, Array]
    eights: Array
    firsts: Array
    bounds: Array
    counts: Array
    columns: Array


def _work(groups: Groups, dtype: np.dtype[Any]) -> _Work:
    firsts, counts, columns, eights = ([np.zeros(0, np.int64)] for _ in range(4))
    for kind, begins in groups.items():
        width = len(_sort(kind, dtype).lanes) * LANE // dtype.itemsize
        models = (begins[:, None] + np.arange(kind.models)).reshape(-1)
        firsts.append(models)
        counts.append(np.full(models.size, width // kind.models))
        columns.append((models[:, None] + np.arange(0, width, kind.models)).reshape(-1))
        eights.append((begins[:, None] + np.arange(0, width, EIGHT)).reshape(-1))
    each = np.concatenate(counts)
    sorts = joined(groups, lambda kind: _sort(kind, dtype))
    places = np.sort(np.concatenate(eights))
    return _Work(sorts, places, np.concatenate(firsts), np.cumsum(each) - each, each, np.concatenate(columns))


@cache
def _sort(kind: GroupShape, dtype: np.dtype[Any]) -> _Sort:
    """Return whole lanes, and as many folds as halve a register until there is one number of each model."""
    lanes = max(LINE // LANE, -(-kind.models * kind.columns * dtype.itemsize // LANE))
    folds = (LINE // dtype.itemsize // kind.models).bit_length() - 1
    return _Sort(lanes * (0,), folds * (0,))
