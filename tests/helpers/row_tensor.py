"""Row problems of nonzeros sorted by row, solved by the providers of a device."""

from __future__ import annotations

from itertools import pairwise
from typing import Any, NamedTuple

import numpy as np
from oracle import kernel_of
from rowproblem import RowProblem

from amped.backend.device import Device
from amped.backend.ops.mttkrp import Share
from amped.backend.ops.rowproblems import ROWPROBLEMS, RowLimits, RowMethod, RowTerms
from partitioner.tensors.value_range import ValueRange

KERNELS = {"plain": "tree"}  # of devices other than the CPU with compiled code


class RowsSolved(NamedTuple):
    """Statistics of solved rows."""

    kkt: float
    iterations: float
    failed: float
    size: float = 0.0


class Rows:
    """Nonzeros sorted by row, normalised factors, and a start of each row; some rows have no nonzeros."""

    def __init__(
        self, order: int, rank: int, counts: list[int], dtype: str = "f8", length: int = 40, largest: int = 9
    ) -> None:
        rng = np.random.default_rng([order, rank, len(counts)])
        nnz, self.rank, self.dtype = sum(counts), rank, np.dtype(dtype)
        self.counts, self.ends = counts, np.cumsum([0, *counts])
        lengths = [length, *(int(n) for n in rng.integers(1, 30, order - 2))]
        self.columns = [np.repeat(np.arange(len(counts), dtype=np.int32), counts)]
        self.columns += [rng.integers(0, n, nnz, np.int32) for n in lengths]
        self.values = rng.integers(1, largest + 1, nnz).astype(dtype)
        factors = [rng.random((n, rank)) * (rng.random((n, rank)) < 0.8) + 1e-3 for n in lengths]
        self.factors = [(f / f.sum(axis=0)).astype(dtype) for f in factors]
        self.start = rng.random((len(counts), rank)).astype(dtype) * 10

    def row(self, i: int) -> RowProblem:
        """Return a row's problem, in double precision."""
        part, pi = slice(self.ends[i], self.ends[i + 1]), 1.0
        for column, factor in zip(self.columns[1:], self.factors, strict=True):
            pi = pi * factor[column[part]].astype(np.float64)
        return RowProblem(self.values[part].astype(np.float64), pi)  # type: ignore[arg-type]

    def solve(
        self,
        device: Device,
        method: RowMethod,
        limits: RowLimits | RowTerms,
        kernel: str = "",
        whole: slice | None = None,
    ) -> tuple[np.ndarray, RowsSolved]:
        """Solve all rows; columns that are not the problem's are poisoned."""
        solver = ROWPROBLEMS.require(device, lambda rows: rows.method == method)
        (shard,) = self.shards(device, [], kernel)
        stride = device.stride(self.rank, self.dtype.itemsize)
        factors = [self.padded(device, factor, stride) for factor in self.factors]
        own, share, seen = self.padded(device, self.start, stride), self.share(stride), device.zeros((4,), np.float64)
        room = solver.bytes(shard.kernel, share, self.values.size)
        made, scratch = solver.make(shard, share), device.empty((room.running,), np.uint8)
        scratch.fill(255)
        assert made.nbytes <= room.kept
        solver.run(made, shard, factors, own, self.rank, limits, seen, whole, scratch)
        got = np.array(device.to_host(own))
        assert np.all(np.isnan(got[:, self.rank :]))
        return got[:, : self.rank], RowsSolved(*device.to_host(seen).tolist())

    def share(self, stride: int) -> Share:
        lengths, span = tuple(map(len, self.factors)), ValueRange(1.0, float(self.values.max(initial=1)), 1.0)
        return Share(lengths, slice(0, len(self.counts)), self.values.size, stride, self.dtype, span)

    def shards(self, device: Device, cuts: list[int], kernel: str = "") -> list[Any]:
        """Return shards of the nonzeros between cuts."""
        kernel = kernel or KERNELS.get(device.folder, "segmented")
        bounds, share = [0, *cuts, self.values.size], self.share(device.stride(self.rank, self.dtype.itemsize))
        made = []
        for begin, end in pairwise(bounds):
            columns = [column[begin:end] for column in self.columns]
            made.append(kernel_of(device, kernel).make(columns, self.values[begin:end], share, begin > 0))
        return made

    def solve_in_step(
        self, device: Device, method: RowMethod, limits: RowLimits | RowTerms, cuts: list[int]
    ) -> tuple[np.ndarray, RowsSolved]:
        """Solve the rows that have nonzeros in step, as ranks that have parts of them do."""
        solver, shards = ROWPROBLEMS.require(device, lambda rows: rows.method == method), self.shards(device, cuts)
        stride = device.stride(self.rank, self.dtype.itemsize)
        factors = [self.padded(device, factor, stride) for factor in self.factors]
        places = list(enumerate(np.flatnonzero(self.counts).tolist()))
        shared = solver.share_rows(len(places), self.rank)
        made = [solver.make(shard, self.share(stride)) for shard in shards]
        shared.rows[:] = device.to_device(self.start[[row for _, row in places]].astype(np.float64))
        shared.begin()
        for number in range(1 + limits.inner):
            parts = []
            for order, shard in zip(made, shards, strict=True):
                shared.sums.fill(0)
                solver.add_sums(order, shard, factors, places, shared, limits)
                parts.append(shared.sums.copy())
            shared.sums[:] = sum(parts[1:], parts[0])
            solver.step(shared, limits, number)
            if shared.changes is not None:
                shared.changes.fill(0)
            for order, shard in zip(made, shards, strict=True):
                solver.add_changes(order, shard, factors, places, shared, limits)
            solver.advance(shared, limits, number)
        got = np.zeros_like(self.start, np.float64)
        got[[row for _, row in places]] = device.to_host(shared.rows)
        return got, RowsSolved(*device.to_host(shared.seen).tolist())

    def padded(self, device: Device, matrix: np.ndarray, stride: int) -> Any:
        wide = np.full((len(matrix), stride), np.nan, self.dtype)
        wide[:, : self.rank] = matrix
        on_device = device.empty(wide.shape, self.dtype)
        device.fill([on_device.reshape(-1)], [wide.reshape(-1)])
        return on_device
