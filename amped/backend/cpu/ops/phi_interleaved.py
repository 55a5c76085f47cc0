"""Phi of interleaved models on the CPU: a 64-byte vector has a number of each model."""

from __future__ import annotations

from collections.abc import Sequence
from functools import cache
from typing import Any, NamedTuple

import numpy as np

from partitioner.array_types import FloatDType

from ...device import NOTHING, Array
from ...ops.mttkrp import Kernel, Offers, Operands, Share
from ...ops.phi import PHI, Groups, GroupShape, PhiParams, PhiProvider, joined
from ..device import CpuDevice
from ..kernels import interleaved
from ..kernels.sums import SumScratch, threads_worth
from ..shard import HostShard, constant
from ..simd.registers import EIGHT
from ..simd.vectors import LANE, LINE
from ..threads import check
from .mttkrp import TURNS

LEAST = 1 << 14  # numbers in a part of a matrix
NONE: Groups = {}
LANES = 8  # of a group at most: 256 bytes in registers


class ByVectors:
    """See `InterleavedPhi`; supports shards whose nonzeros are sorted by row."""

    multi_model = True

    def __init__(self, device: CpuDevice) -> None:
        self._threads, self._cached = device.threads, (NONE, _work(NONE, np.dtype(np.float32)))

    def width(self, dtype: FloatDType) -> int:
        return LANES * LANE // dtype.itemsize

    def models(self, rank: int, dtype: FloatDType) -> int:
        """See `InterleavedPhi`: the numbers of a register, or a smaller power of two."""
        models = LINE // dtype.itemsize
        while models and models * rank > self.width(dtype):
            models //= 2
        return models

    def columns(self, model: int, models: int, dtype: FloatDType) -> slice:
        return slice(model, self.width(dtype), models)

    def suits(self, kernel: Kernel, share: Share) -> bool:
        return Offers.ROWS in kernel.offers

    def prepare(self, kernel: Kernel, share: Share) -> None:
        """See `PhiProvider`: Numba compiles in one thread, at the first call."""

    def bytes(self, kernel: Kernel, share: Share, nnz: int) -> int:
        """See `PhiProvider`: carries or sums of each part."""
        parts = self._threads.count * TURNS
        return parts * share.stride * 8 + LINE if nnz else 0

    def run(self, shard: HostShard, operands: Operands, params: PhiParams, new: slice = NOTHING) -> None:
        out = operands.out
        work, parts = self._work(params.groups, out.shape[1], operands.own.dtype), self._parts(out[new])
        check(interleaved.clear(0, *self._team(parts), out, new.start, new.stop, work.eights, parts))
        if not shard.nnz:
            return
        outs = out, SumScratch(operands.scratch).take((shard.parts.shared.size, out.shape[1]), out.dtype)
        args, bounds = self._arguments(shard, operands), (shard.parts.bounds, shard.parts.shared, outs)
        for code, begins in work.by_code.items():
            check(interleaved.phis(0, *args, float(params.floor), begins, *bounds, shard.permutation, *code))

    def add_logs(self, shard: HostShard, operands: Operands, params: PhiParams, total: Array) -> None:
        if not shard.nnz:
            return
        sums = SumScratch(operands.scratch).take((shard.parts.shared.size, total.size), np.dtype(np.float64))
        sums.fill(0)
        args, bounds = self._arguments(shard, operands), (shard.parts.bounds, sums)
        for code, begins in self._work(params.groups, total.size, operands.own.dtype).by_code.items():
            check(interleaved.logs(0, *args, float(params.floor), begins, *bounds, shard.permutation, *code))
        for each in sums:  # in order, so that results are repeatable
            total += each

    def _arguments(self, shard: HostShard, operands: Operands) -> Sequence[Any]:
        """Return the arguments that all compiled functions share: from the team to the first row."""
        factors, own = operands.factors, operands.own
        inputs = tuple(map(constant, factors))
        nonzeros = *shard.pieces, tuple(map(constant, shard.indices)), constant(shard.values)
        size = min(threads_worth(self._threads.count, shard, factors[0]), shard.parts.shared.size)
        return self._threads.team, size, np.zeros(1, np.int64), nonzeros, inputs, constant(own), shard.row_begin

    def _work(self, groups: Groups | None, columns: int, dtype: FloatDType) -> _Work:
        """Return the work of groups; the last call's is cached."""
        if groups is None:
            models, width = LINE // dtype.itemsize, self.width(dtype)
            groups = {GroupShape(models, width // models): np.arange(0, columns // width * width, width)}
        if groups is not self._cached[0]:
            self._cached = groups, _work(groups, dtype)
        return self._cached[1]

    def copy(self, source: Array, target: Array, params: PhiParams, dtype: FloatDType) -> None:
        columns = self._work(params.groups, source.size, dtype).columns
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
        active = work.firsts[done[work.firsts] == 0]
        converged = violations[active] < tol
        facts[active, 0] = violations[active]
        facts[active, 1] += ~converged
        done[active[converged]] = 1
        unchanged = np.ones(matrix.shape[1])
        unchanged[work.columns] = np.repeat(done[work.firsts], work.counts)
        check(interleaved.apply(0, *self._team(parts), phi, matrix, work.eights, unchanged, parts))

    def _parts(self, matrix: Array) -> int:
        """Return the number of parts into which a matrix's rows are split."""
        return int(max(1, min(self._threads.count * TURNS, matrix.size // LEAST)))

    def _team(self, parts: int) -> Sequence[Any]:
        return self._threads.team, min(self._threads.count, parts), np.zeros(1, np.int64)


@PHI.provider("cpu")
def providers(device: CpuDevice) -> Sequence[PhiProvider]:
    """Return the providers of the operation."""
    return [ByVectors(device)]


class _CodeKey(NamedTuple):
    """Key of the compiled code for groups: tuples with one item per lane and per halving of a register."""

    lanes: tuple[int, ...]
    folds: tuple[int, ...]


class _Work(NamedTuple):
    """The columns of groups.

    Attributes
    ----------
    by_code : dict
        First columns of the groups, by the code that computes them.
    eights : int64 array
        First columns of the computed vectors of eight columns.
    firsts, bounds, counts : int64 arrays
        For each model: its first column, the position of its columns in `columns`, and their number.
    columns : int64 array
        Columns, model by model.
    """

    by_code: dict[_CodeKey, Array]
    eights: Array
    firsts: Array
    bounds: Array
    counts: Array
    columns: Array


def _work(groups: Groups, dtype: FloatDType) -> _Work:
    firsts, counts, columns, eights = ([np.zeros(0, np.int64)] for _ in range(4))
    for kind, begins in groups.items():
        width = len(_code_key(kind, dtype).lanes) * LANE // dtype.itemsize
        models = (begins[:, None] + np.arange(kind.models)).reshape(-1)
        firsts.append(models)
        counts.append(np.full(models.size, width // kind.models))
        columns.append((models[:, None] + np.arange(0, width, kind.models)).reshape(-1))
        eights.append((begins[:, None] + np.arange(0, width, EIGHT)).reshape(-1))
    each = np.concatenate(counts)
    by_code = joined(groups, lambda kind: _code_key(kind, dtype))
    starts = np.sort(np.concatenate(eights))
    return _Work(by_code, starts, np.concatenate(firsts), np.cumsum(each) - each, each, np.concatenate(columns))


@cache
def _code_key(kind: GroupShape, dtype: FloatDType) -> _CodeKey:
    """Return the number of whole lanes, and of halvings of a register until it has one number per model."""
    lanes = max(LINE // LANE, -(-kind.models * kind.columns * dtype.itemsize // LANE))
    folds = (LINE // dtype.itemsize // kind.models).bit_length() - 1
    return _CodeKey(lanes * (0,), folds * (0,))
