"""Row problems of CP-APR on the GPU: all rows of a batch in step, from shards of packed nonzeros."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field, replace
from itertools import pairwise
from typing import Any

import cupy
import numpy as np

from partitioner.array_types import FloatDType
from partitioner.cuda.code import prepare

from ...device import Array
from ...ops.mttkrp import Kernel, Offers, Share
from ...ops.rowproblems import ROWPROBLEMS, RowBytes, RowLimits, RowMethod, RowProblemsProvider
from ..code.rows import LENGTHS, RowCode, batch_tasks, finding, most_tasks, suits, task_size
from ..device import CudaDevice
from ..launches.row_passes import DONE, Ints, RowPasses, RowState, RowSteps, RowTasks, clear_rows, cut_tasks, find_rows
from ..layout import Limits, make_layout
from ..shard import CudaShard
from .mttkrp import inputs_of


@dataclass
class CudaRows:
    """The rows of a shard with nonzeros, in order, and those without."""

    rows: Ints
    starts: Ints  # the first nonzero of each row
    stops: Ints
    first: Ints  # the first task of each row, then the number of tasks
    empty: Ints
    size: int  # maximum number of nonzeros of a task
    names: Array  # `rows`, on the device
    empty_names: Array
    tasks: RowTasks
    shared: dict[Any, tuple[RowTasks, Array]] = field(default_factory=dict)  # tasks and places of shared rows

    @property
    def nbytes(self) -> int:
        """Size in bytes of device memory."""
        return int(self.names.nbytes + self.empty_names.nbytes + self.tasks.nbytes)

    def tasks_of(self, places: Sequence[tuple[int, int]]) -> tuple[RowTasks, Array]:
        """Return the tasks of shared rows in this shard, and their places; cached."""
        key = tuple(places)
        if key not in self.shared:
            numbers, rows = np.array(key, np.int32).reshape(-1, 2).T
            at = np.searchsorted(self.rows, rows)
            here = np.isin(rows, self.rows)
            at, numbers = at[here], numbers[here]
            prepared, _ = cut_tasks(self.starts[at], self.stops[at], numbers, self.size)
            self.shared[key] = prepared, cupy.asarray(numbers)
        return self.shared[key]


class CudaShared(RowState):
    """See `Shared`."""

    def __init__(self, code: RowCode, count: int) -> None:
        super().__init__(code, count, cupy.zeros(count * code.row_bytes, np.uint8))
        self.sums = cupy.zeros((count, code.sums), np.float64)
        self.changes = cupy.zeros((count, LENGTHS), np.float64)
        self.seen = cupy.zeros(3, np.float64)
        self.steps = RowSteps(self, self.sums, self.changes, self.seen)

    def begin(self) -> None:
        self.seen.fill(0)
        self.steps.begin()

    def left(self) -> int:
        return int(cupy.count_nonzero(self.status != DONE))


class CudaRowProblems:
    """Solves rows in step, batch by batch. See `RowProblemsProvider`."""

    codes = 1

    def __init__(self, device: CudaDevice, method: RowMethod) -> None:
        self.method, self._limits, self._number = method, device.limits, device.number

    def suits(self, kernel: Kernel, share: Share) -> bool:
        """See `RowProblemsProvider`: nonzeros must be in packed records."""
        packed = Offers.PACKED in kernel.offers
        return packed and suits(make_layout(kernel.name, share, self._limits), self.method, self._limits)

    def prepare(self, kernel: Kernel, share: Share, rank: int) -> None:
        layout, code = make_layout(kernel.name, share, self._limits), self._code(rank, share.dtype)
        prepare([finding(layout), code.passing(layout), code.stepping()])

    def bytes(self, kernel: Kernel, share: Share, nnz: int) -> RowBytes:
        if not nnz:
            return RowBytes(0, 0)
        code, rows = self._code(share.stride, share.dtype), share.rows.stop - share.rows.start
        tasks = most_tasks(share, nnz, self._limits)
        kept = 4 * (rows + min(rows, nnz) + 1 + 3 * tasks)
        return RowBytes(kept, batch_tasks(code, code.rank, tasks, most_of_row(nnz, self._limits)) * code.bytes)

    def _code(self, rank: int, dtype: FloatDType) -> RowCode:
        return RowCode(rank, dtype, self.method == "pdnr")

    def make(self, shard: CudaShard, share: Share, whole: slice | None = None) -> CudaRows:
        if isinstance(shard.memory, np.ndarray):  # page-locked, for streaming
            shard = replace(shard, memory=cupy.asarray(shard.memory))
        begins = find_rows(shard, share.rows.stop - share.rows.start)
        rows, empty = (np.flatnonzero(begins >= 0).astype(np.int32), np.flatnonzero(begins < 0).astype(np.int32))
        if whole is not None:
            empty = empty[(empty >= whole.start) & (empty < whole.stop)]
        starts, size = begins[rows], task_size(shard.nnz, self._limits)
        stops = np.append(starts[1:], np.int32(shard.nnz))[: rows.size]
        tasks, first = cut_tasks(starts, stops, np.arange(rows.size, dtype=np.int32), size)
        names = cupy.asarray(rows), cupy.asarray(empty)
        return CudaRows(rows, starts, stops, first, empty, size, *names, tasks)

    def run(
        self,
        made: CudaRows,
        shard: CudaShard,
        factors: Sequence[Array],
        own: Array,
        rank: int,
        limits: RowLimits,
        seen: Array,
        whole: slice | None = None,
        scratch: Array = None,
    ) -> None:
        """See `RowProblemsProvider`; queued on the current stream."""
        code = self._code(rank, own.dtype)
        bounds = (0, len(own)) if whole is None else (whole.start, whole.stop)
        begin, end = np.searchsorted(made.empty, bounds)
        clear_rows(code, made.empty_names[begin:end], own, seen)
        begin, end = np.searchsorted(made.rows, bounds)
        most = batch_tasks(code, own.shape[1], int(made.first[-1]), most_of_row(shard.nnz, self._limits))
        if scratch is None:
            scratch = cupy.empty(most * code.bytes, np.uint8)
        for rows in batches(made.first, int(begin), int(end), most):
            batch = made.tasks.part(rows, slice(int(made.first[rows.start]), int(made.first[rows.stop])))
            count = batch.row.size
            sums, changes, state = split(scratch, count * code.sums, count * LENGTHS)
            steps = RowSteps(RowState(code, rows.stop - rows.start, state), sums, changes, seen, batch)
            self._solve(self._passes(code, shard, factors, limits), steps, batch, made.names[rows], own, limits)

    def _solve(
        self, passes: RowPasses, steps: RowSteps, tasks: RowTasks, names: Array, own: Array, limits: RowLimits
    ) -> None:
        """Solve a batch of rows."""
        steps.begin(names, own)
        for number in range(1 + limits.inner):
            passes.add_sums(tasks, steps.state, steps.sums)
            steps.step(number, limits)
            passes.add_changes(tasks, steps.state, steps.changes)
            steps.advance(number)
        steps.end(names, own)

    def _passes(self, code: RowCode, shard: CudaShard, factors: Sequence[Array], limits: RowLimits) -> RowPasses:
        return RowPasses(code, shard, inputs_of(shard.layout, factors), limits.floor, self._number)

    def shared_bytes(self, rank: int) -> int:
        code = self._code(rank, np.dtype(np.float64))
        return code.row_bytes + 8 * (code.sums + LENGTHS)

    def share_rows(self, count: int, rank: int) -> CudaShared:
        return CudaShared(self._code(rank, np.dtype(np.float64)), count)

    def add_sums(
        self,
        made: CudaRows,
        shard: CudaShard,
        factors: Sequence[Array],
        places: Sequence[tuple[int, int]],
        shared: Any,
        limits: RowLimits,
        scratch: Array = None,
    ) -> None:
        tasks, rows = made.tasks_of(places)
        parts = split(scratch, tasks.row.size * shared.code.sums)[0]
        self._passes(shared.code, shard, factors, limits).add_sums(tasks, shared, parts, rows, shared.sums)

    def step(self, shared: Any, limits: RowLimits, number: int) -> None:
        shared.steps.step(number, limits)

    def add_changes(
        self,
        made: CudaRows,
        shard: CudaShard,
        factors: Sequence[Array],
        places: Sequence[tuple[int, int]],
        shared: Any,
        limits: RowLimits,
        scratch: Array = None,
    ) -> None:
        tasks, rows = made.tasks_of(places)
        parts = split(scratch, tasks.row.size * LENGTHS)[0]
        self._passes(shared.code, shard, factors, limits).add_changes(tasks, shared, parts, rows, shared.changes)

    def advance(self, shared: Any, limits: RowLimits, number: int) -> None:
        shared.steps.advance(number)


@ROWPROBLEMS.provider("cuda")
def providers(device: CudaDevice) -> Sequence[RowProblemsProvider[RowLimits]]:
    """Return the providers of the operation, one for each method."""
    return [CudaRowProblems(device, "pdnr"), CudaRowProblems(device, "pqnr")]


def most_of_row(nnz: int, limits: Limits) -> int:
    """Return the minimum task capacity of a batch: the tasks of a row with nearly all nonzeros, and of another row."""
    return -(-nnz // task_size(nnz, limits)) + 1


def batches(first: Ints, begin: int, end: int, most: int) -> Iterator[slice]:
    """Yield consecutive ranges of the rows from `begin` to `end`, each with at most `most` tasks."""
    while begin < end:
        stop = min(end, int(np.searchsorted(first, first[begin] + most, "right")) - 1)
        yield slice(begin, stop)
        begin = stop


def split(scratch: Array, *sizes: int) -> list[Array]:
    """Return float64 arrays of these sizes in scratch memory, then the rest of it as bytes."""
    if scratch is None:
        scratch = cupy.empty(8 * sum(sizes), np.uint8)
    ends = [0, *(int(end) for end in 8 * np.cumsum(sizes))]
    parts = [scratch[a:b].view(np.float64) for a, b in pairwise(ends)]
    return [*parts, scratch[ends[-1] :]]
