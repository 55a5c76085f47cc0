"""How a CPU computes Phi of interleaved models: a vector of 64 bytes has a number of each."""

from __future__ import annotations

from collections.abc import Sequence
from functools import cache
from typing import Any, NamedTuple

import numpy as np

from ...base import NOTHING, Array
from ...interleaved import Groups, Interleaved, Kind, joined
from ...mttkrp import Kernel, Share
from .. import interleaved
from ..caches import own_cache
from ..device import CpuDevice
from ..shard import HostShard, constant
from ..sums import Room, threads_worth
from ..threads import check
from ..vectors import LANE, LINE
from .mttkrp import TURNS

LEAST = 1 << 14  # numbers of a part of a matrix
AHEAD = 6  # prefetch distance in nonzeros, where a core's own cache does not hold the rows
LANES = 8  # that a group has at most: 256 bytes, in registers


class ByVectors:
    """See `Interleaved`; of shards in the order of their rows."""

    def __init__(self, device: CpuDevice) -> None:
        self._threads = device.threads

    def width(self, dtype: np.dtype[Any]) -> int:
        return LANES * LANE // dtype.itemsize

    def models(self, rank: int, dtype: np.dtype[Any]) -> int:
        """See `Interleaved`: as many as a register has numbers, or a power of two less."""
        models = LINE // dtype.itemsize
        while models and models * rank > self.width(dtype):
            models //= 2
        return models

    def columns(self, model: int, models: int, dtype: np.dtype[Any]) -> slice:
        return slice(model, self.width(dtype), models)

    def suits(self, kernel: Kernel, share: Share) -> bool:
        return kernel.name == "segmented"

    def prepare(self, kernel: Kernel, share: Share) -> None:
        """See `Phi`: Numba compiles in one thread, when code is first called."""

    def bytes(self, kernel: Kernel, share: Share, nnz: int) -> int:
        """See `Phi`: carries, or sums, for each part."""
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
        groups: Groups | None = None,
        done: Array = None,
    ) -> None:
        sorts = self._sorts(groups, out.shape[1], own.dtype)
        parts, rows = self._parts(out[new]), (new.start, new.stop)
        for sort, begins in sorts.items():
            check(interleaved.clear(0, *self._team(parts), out, *rows, begins, sort.width, parts))
        if not shard.nnz:
            return
        outs = out, Room(scratch).take((shard.parts.shared.size, out.shape[1]), out.dtype)
        bounds = shard.parts.bounds, shard.parts.shared, outs, shard.permutation
        for sort, begins in sorts.items():
            given = *self._begun(shard, factors, own), float(floor), begins, *bounds
            held = sum(map(len, factors)) * sort.width * own.itemsize  # bytes of rows that are read again and again
            check(interleaved.phis(0, self._threads.team, *given, AHEAD * (held > own_cache()), *sort.compiled))

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
        sums = Room(scratch).take((shard.parts.shared.size, total.size), np.dtype(np.float64))
        sums.fill(0)
        for sort, begins in self._sorts(groups, total.size, own.dtype).items():
            bounds = begins, shard.parts.bounds, sums, shard.permutation
            given = *self._begun(shard, factors, own), float(floor), *bounds
            check(interleaved.logs(0, self._threads.team, *given, *sort.compiled))
        for each in sums:  # in order, so that they are the same every time
            total += each

    def _begun(self, shard: HostShard, factors: Sequence[Array], own: Array) -> Sequence[Any]:
        """Return the arguments that all have in common: from the number of threads to the first row."""
        inputs = tuple(map(constant, factors))
        nonzeros = *shard.pieces, tuple(map(constant, shard.indices)), constant(shard.values)
        size = min(threads_worth(self._threads.count, shard, factors[0]), shard.parts.shared.size)
        return size, np.zeros(1, np.int64), nonzeros, inputs, constant(own), shard.row_begin

    def _sorts(self, groups: Groups | None, columns: int, dtype: np.dtype[Any]) -> dict[_Sort, Array]:
        """Return where groups begin, by how they are computed."""
        if groups is None:
            models = LINE // dtype.itemsize
            width = self.width(dtype)
            groups = {Kind(models, width // models): np.arange(0, columns // width * width, width)}
        return joined(groups, lambda kind: _sort(kind, dtype))

    def copy(self, source: Array, target: Array, groups: Groups, dtype: np.dtype[Any], done: Array = None) -> None:
        for sort, begins in self._sorts(groups, source.size, dtype).items():
            for begin in begins.tolist():
                target[begin : begin + sort.width] = source[begin : begin + sort.width]

    def measure(self, phi: Array, matrix: Array, groups: Groups, violations: Array, done: Array) -> None:
        parts = self._parts(matrix)
        found = np.empty((parts, matrix.shape[1]))
        for sort, begins in self._sorts(groups, matrix.shape[1], matrix.dtype).items():
            check(interleaved.measure(0, *self._team(parts), phi, matrix, begins, sort.width, found))
            for begin in begins.tolist():
                of_models = found[:, begin : begin + sort.width].reshape(-1, sort.models)
                violations[begin : begin + sort.models] = of_models.max(axis=0)

    def apply(
        self, phi: Array, matrix: Array, groups: Groups, violations: Array, facts: Array, tol: float, done: Array
    ) -> None:
        still, parts = np.ones(matrix.shape[1]), self._parts(matrix)
        for sort, begins in self._sorts(groups, matrix.shape[1], matrix.dtype).items():
            firsts = (begins[:, None] + np.arange(sort.models)).reshape(-1)
            going = firsts[done[firsts] == 0]
            stops = violations[going] < tol
            facts[going, 0] = violations[going]
            facts[going, 1] += ~stops
            done[going[stops]] = 1
            for begin in begins.tolist():
                of_models = still[begin : begin + sort.width].reshape(-1, sort.models)
                of_models[:] = done[begin : begin + sort.models]
            check(interleaved.apply(0, *self._team(parts), phi, matrix, begins, sort.width, still, parts))

    def _parts(self, matrix: Array) -> int:
        """Return how many parts of a matrix's rows threads take, one after the other."""
        return int(max(1, min(self._threads.count * TURNS, matrix.size // LEAST)))

    def _team(self, parts: int) -> Sequence[Any]:
        return self._threads.team, min(self._threads.count, parts), np.zeros(1, np.int64)


def providers(device: CpuDevice) -> Sequence[Interleaved]:
    """Return the providers of the family."""
    return [ByVectors(device)]


class _Sort(NamedTuple):
    """How groups are computed: for how many models, in so many of their columns, by code for such tuples."""

    models: int
    width: int
    compiled: tuple[tuple[int, ...], tuple[int, ...]]


@cache
def _sort(kind: Kind, dtype: np.dtype[Any]) -> _Sort:
    """Return whole lanes, and as many folds as halve a register until there is one number of each model."""
    lanes = max(LINE // LANE, -(-kind.models * kind.columns * dtype.itemsize // LANE))
    folds = (LINE // dtype.itemsize // kind.models).bit_length() - 1
    return _Sort(kind.models, lanes * LANE // dtype.itemsize, (lanes * (0,), folds * (0,)))
