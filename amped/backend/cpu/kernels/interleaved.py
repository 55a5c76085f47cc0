"""How a CPU computes Phi of interleaved models: a vector of 64 bytes has a number of each."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np

from ...base import NOTHING, Array
from ...interleaved import Groups, Interleaved
from ...mttkrp import Kernel, Share
from .. import interleaved
from ..device import CpuDevice
from ..shard import HostShard, constant
from ..sums import Room, threads_worth
from ..threads import check
from ..vectors import LANE, LINE
from .mttkrp import TURNS

LANES = 8 * (0,)  # of a group: 256 bytes, in registers


class ByVectors:
    """See `Interleaved`; of shards in the order of their rows."""

    def __init__(self, device: CpuDevice) -> None:
        self._threads = device.threads

    def width(self, dtype: np.dtype[Any]) -> int:
        return len(LANES) * LANE // dtype.itemsize

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
        groups = self._all(out.shape[1], own.dtype) if groups is None else groups
        width = self.width(own.dtype)
        for begin in (begin for each in groups.values() for begin in each.tolist()):
            out[new, begin : begin + width] = 0
        if not shard.nnz:
            return
        outs = out, Room(scratch).take((shard.parts.shared.size, out.shape[1]), out.dtype)
        bounds = shard.parts.bounds, shard.parts.shared, outs, shard.permutation, LANES
        for models, begins in groups.items():
            given = *self._begun(shard, factors, own), float(floor), begins, *bounds
            check(interleaved.phis(0, self._threads.team, *given, _folds(models, own.dtype)))

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
        for models, begins in (groups or self._all(total.size, own.dtype)).items():
            bounds = begins, shard.parts.bounds, sums, shard.permutation, LANES
            given = *self._begun(shard, factors, own), float(floor), *bounds
            check(interleaved.logs(0, self._threads.team, *given, _folds(models, own.dtype)))
        for each in sums:  # in order, so that they are the same every time
            total += each

    def _begun(self, shard: HostShard, factors: Sequence[Array], own: Array) -> Sequence[Any]:
        """Return the arguments that all have in common: from the number of threads to the first row."""
        inputs = tuple(map(constant, factors))
        nonzeros = *shard.pieces, tuple(map(constant, shard.indices)), constant(shard.values)
        size = min(threads_worth(self._threads.count, shard, factors[0]), shard.parts.shared.size)
        return size, np.zeros(1, np.int64), nonzeros, inputs, constant(own), shard.row_begin

    def _all(self, columns: int, dtype: np.dtype[Any]) -> Groups:
        width = self.width(dtype)
        return {LINE // dtype.itemsize: np.arange(0, columns // width * width, width)}

    def copy(self, source: Array, target: Array, groups: Groups, dtype: np.dtype[Any], done: Array = None) -> None:
        for begin in (begin for begins in groups.values() for begin in begins.tolist()):
            place = slice(begin, begin + self.width(dtype))
            target[place] = source[place]

    def measure(self, phi: Array, matrix: Array, groups: Groups, violations: Array, done: Array) -> None:
        width, found = self.width(matrix.dtype), np.empty(matrix.shape[1])
        for models, begins in groups.items():
            check(interleaved.measure(0, *self._team(begins), phi, matrix, begins, width, found))
            for begin in begins.tolist():
                violations[begin : begin + models] = found[begin : begin + width].reshape(-1, models).max(axis=0)

    def apply(
        self, phi: Array, matrix: Array, groups: Groups, violations: Array, facts: Array, tol: float, done: Array
    ) -> None:
        width, live = self.width(matrix.dtype), np.zeros(matrix.shape[1], bool)
        for models, begins in groups.items():
            firsts = (begins[:, None] + np.arange(models)).reshape(-1)
            going = firsts[done[firsts] == 0]
            stops = violations[going] < tol
            facts[going, 0] = violations[going]
            facts[going, 1] += ~stops
            done[going[stops]] = 1
            for begin in begins.tolist():
                live[begin : begin + width].reshape(-1, models)[:] = done[begin : begin + models] == 0
            check(interleaved.apply(0, *self._team(begins), phi, matrix, begins, width, live))

    def _team(self, begins: Array) -> Sequence[Any]:
        return self._threads.team, min(self._threads.count, begins.size), np.zeros(1, np.int64)


def providers(device: CpuDevice) -> Sequence[Interleaved]:
    """Return the providers of the family."""
    return [ByVectors(device)]


def _folds(models: int, dtype: np.dtype[Any]) -> tuple[int, ...]:
    """Return a tuple as long as a register can be halved until there is one number of each model."""
    return (0,) * ((LINE // dtype.itemsize // models).bit_length() - 1)
